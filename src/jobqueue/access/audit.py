"""The audit log: who changed what, and whose credential was refused.

Each line has the fields ``caller`` (a name, empty if none was asked for or the credential was
refused), ``address``, ``action`` (of ``access/rules.py``), ``object`` (an id or a name) and
``outcome`` (OK, or the error's code). No line has a credential, a payload or a result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jobqueue.access.callers import Caller, current_caller
from jobqueue.core.errors import Code, JobQueueError

log = logging.getLogger("jobqueue.audit")

OK = "OK"
ABANDONED = "ABANDONED"  # the caller went away before the answer: it may have happened
_LONGEST = 256  # characters of an object


@dataclass(slots=True)
class Change:
    """A change as it is made."""

    object: str
    outcome: str = ""  # until it is known


def write(caller: Caller, action: str, object: str, outcome: str, *, count: int = 1) -> None:
    """Write a line. ``count`` is how many it stands for."""
    extra: dict[str, int | str] = {
        "caller": caller.name,
        "address": caller.address,
        "action": action,
        "object": object[:_LONGEST],
        "outcome": outcome,
    }
    if count > 1:
        extra["count"] = count
    log.info("%s: %s", action, outcome, extra=extra)


@contextmanager
def change(action: str, object: str = "") -> Iterator[Change]:
    """Write the line of a change that the current caller makes inside, when it has ended."""
    line = Change(object)
    try:
        yield line
        line.outcome = line.outcome or OK
    except JobQueueError as error:
        line.outcome = error.code.value
        raise
    except Exception:
        line.outcome = Code.INTERNAL.value
        raise
    finally:
        write(current_caller(), action, line.object, line.outcome or ABANDONED)
