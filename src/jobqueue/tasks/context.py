"""The context that a handler gets, and the exceptions by which it ends its attempt."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.core.progress import Progress


class RetryLater(Exception):
    """Fail the attempt, and retry after that many seconds instead of the usual backoff."""

    def __init__(self, after: float, message: str = "") -> None:
        super().__init__(message or f"retry in {after:g} s")
        self.after = max(0.0, float(after))


class Abort(Exception):
    """Fail the job without further retries: it cannot succeed."""


class PlainFailure(Abort):
    """Like ``Abort``, but the job's error is this text alone, without the kind of the error."""


class JobCancelled(Exception):
    """Raised by ``Context.raise_if_cancelled``: the handler stops because it was asked to."""


class UnknownTask(Exception):
    """This worker does not have the job's task. Another one, or its next version, may."""


@dataclass(slots=True, kw_only=True, eq=False)
class Context:
    """Given to a handler that has a parameter annotated ``Context``. Usable from any thread."""

    job_id: str = ""
    queue: str = DEFAULT_QUEUE
    type: str = ""
    attempt: int = 1
    retry_count: int = 0
    max_retries: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    payload: bytes = b""
    deadline: float | None = None  # by time.monotonic(); None = no timeout
    latest_progress: Progress | None = None
    on_progress: Callable[[Progress], None] | None = field(default=None, repr=False)
    # Plain attributes: reading and writing them is atomic, a lock per job would cost more.
    _cancelled: bool = False
    _noticed: bool = False

    @property
    def cancelled(self) -> bool:
        """True if the handler should stop: cancel was requested, or its time is up."""
        if self._cancelled:
            self._noticed = True
            return True
        return False

    def raise_if_cancelled(self) -> None:
        """Raise JobCancelled if the handler should stop."""
        if self.cancelled:
            raise JobCancelled("cancelled")

    def remaining(self) -> float | None:
        """Return the seconds until the deadline, at least 0; None without a timeout."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - time.monotonic())

    def progress(self, value: float | None = None, text: str = "") -> None:
        """Show with the job how far the handler has come: ``progress(0.4, "4 of 10 files")``.

        ``value`` is 0 to 1, or None if it is not known. ``text`` is shown as one line, and cut
        after 200 characters. The last call counts, and is shown about a second later, until the
        attempt ends. Call it as often as you like.
        """
        said = Progress.of(value, text)
        if said == self.latest_progress:
            return
        self.latest_progress = said
        if self.on_progress is not None:
            self.on_progress(said)

    def request_cancel(self, *, noticed: bool = False) -> None:
        """Raise the flag. Called by the runtime; ``noticed`` if the handler has seen it."""
        self._cancelled = True
        self._noticed = self._noticed or noticed

    @property
    def cancel_noticed(self) -> bool:
        """True if the handler has seen the flag: then its return means that it stopped."""
        return self._noticed
