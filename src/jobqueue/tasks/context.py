"""Define the context that a handler gets, and the exceptions that a handler raises to end its
attempt."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from jobqueue.core.errors import Conflict
from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.core.progress import Progress


class RetryLater(Exception):
    """Raised by a handler to fail the attempt and retry after ``after`` seconds.

    This wait replaces the usual backoff.
    """

    def __init__(self, after: float, message: str = "") -> None:
        super().__init__(message or f"retry in {after:g} s")
        self.after = max(0.0, float(after))


class Abort(Exception):
    """Raised by a handler to fail the job without further retries."""


class PlainFailure(Abort):
    """Fails the job like ``Abort``; the job's error has no exception name before the message."""


class JobCancelled(Exception):
    """Raised by ``Context.raise_if_cancelled`` to end a handler that was cancelled."""


class UnknownTask(Exception):
    """Reports that this worker does not have the task of a job.

    Another worker, or a later version of this worker, may have the task.
    """


class Completions(Protocol):
    """Accepts the results of attempts inside transactions of their handlers."""

    async def complete(self, lease: int, result: Any, connection: object) -> None:
        """Accept a result, on a connection of the event loop."""

    def complete_blocking(self, lease: int, result: Any, connection: object) -> None:
        """Accept a result, on a connection that blocks."""


@dataclass(slots=True, kw_only=True, eq=False)
class Context:
    """The job, deadline and cancel flag of an attempt, for its handler.

    A handler gets the context in a parameter annotated ``Context``. Any thread may use the context.
    """

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
    lease: int = field(default=0, repr=False)  # a secret of the attempt
    completions: Completions | None = field(default=None, repr=False)
    # Plain attributes without a lock: reading and writing an attribute is atomic, and faster.
    _cancelled: bool = False
    _noticed: bool = False

    @property
    def cancelled(self) -> bool:
        """Return True if the handler should stop: a cancel was requested, or the timeout passed."""
        if self._cancelled:
            self._noticed = True
            return True
        return False

    def raise_if_cancelled(self) -> None:
        """Raise JobCancelled if the handler should stop."""
        if self.cancelled:
            raise JobCancelled("cancelled")

    def remaining(self) -> float | None:
        """Return the seconds until the deadline, at least 0, or None if the job has no timeout."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - time.monotonic())

    def progress(self, value: float | None = None, text: str = "") -> None:
        """Report how far the handler has come, like ``progress(0.4, "4 of 10 files")``.

        ``value`` is 0 to 1, or None if it is not known. ``text`` is shown as one line, and cut
        after 200 characters. The job's record shows the latest progress, about a second later,
        until the attempt ends. Calling this method often is cheap.
        """
        said = Progress.of(value, text)
        if said == self.latest_progress:
            return
        self.latest_progress = said
        if self.on_progress is not None:
            self.on_progress(said)

    async def complete(self, result: Any = None, *, connection: object) -> None:
        """Accept the job's result in the transaction of ``connection``, together with its effects.

        The connection is the handler's own, to the database of the jobs (PostgreSQL or SQLite).
        When the transaction commits, the job is DONE with this result, and what the handler returns
        is ignored. If it does not commit, the attempt fails, and the job is retried. Raises
        JobCancelled if a cancel was requested, and Conflict if the attempt is over; then the
        transaction must be rolled back.
        """
        await self._accepting().complete(self.lease, result, connection)

    def complete_blocking(self, result: Any = None, *, connection: object) -> None:
        """Do the same as ``complete``, in a ``def`` handler with a connection that blocks."""
        self._accepting().complete_blocking(self.lease, result, connection)

    def _accepting(self) -> Completions:
        if self.completions is None:
            raise Conflict("this context belongs to no attempt of a worker, so it has no result")
        return self.completions

    def request_cancel(self, *, noticed: bool = False) -> None:
        """Set the cancel flag. Only the worker calls this method.

        ``noticed`` is True if the handler knows of the cancel already.
        """
        self._cancelled = True
        self._noticed = self._noticed or noticed

    @property
    def cancel_noticed(self) -> bool:
        """Return True if the handler knows of the cancel.

        If such a handler returns, it has stopped because of the cancel.
        """
        return self._noticed
