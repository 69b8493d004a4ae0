"""How long one attempt of a call may take, and a call with all its attempts."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from jobqueue.core.errors import InvalidArgument
from jobqueue.services.model import CANCEL_SECONDS, READ_SECONDS, SUBMIT_SECONDS

_LONGEST = 3_600.0


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds for one attempt of each method.

    A call makes 4 attempts at most and waits 0.1, 0.2 and 0.4 s between them at most: with these
    defaults SubmitJob (with a key) and CancelJob end within 12.7 s, the others within 4.7 s.
    """

    submit_job: float = SUBMIT_SECONDS
    cancel_job: float = CANCEL_SECONDS
    get_job_status: float = READ_SECONDS
    get_job_result: float = READ_SECONDS
    list_jobs: float = READ_SECONDS

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if (
                not isinstance(value, int | float)
                or isinstance(value, bool)
                or not math.isfinite(value)
                or not 0 < value <= _LONGEST
            ):
                raise InvalidArgument(
                    f"deadlines.{one.name}",
                    f"expected seconds, more than 0 and at most {_LONGEST:g}, got {value!r:.40}",
                )
