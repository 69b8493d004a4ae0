"""The current attempt, for code that runs inside a handler without being handed its context."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol


class RunningAttempt(Protocol):
    """An attempt, as code inside its handler sees it."""

    @property
    def ended(self) -> bool:
        """True once the handler has ended, also for tasks that it left running."""

    def log_fields(self) -> Mapping[str, Any]:
        """Return the fields that every log line of the handler carries."""

    def waiting_for(self, queue: str | None) -> AbstractContextManager[None]:
        """Mark the block as waiting for a job of this queue; None: the queue is not known."""


_current: ContextVar[RunningAttempt | None] = ContextVar("jobqueue_attempt", default=None)

#: Called by executors before they run a handler, in the handler's own context.
enter_attempt = _current.set

#: Set while a ``def`` handler runs in its submitter's thread, on top of an event loop. In a worker
#: it runs in a thread without a loop, where the blocking client may be used.
in_place: ContextVar[bool] = ContextVar("jobqueue_in_place", default=False)


def current_attempt() -> RunningAttempt | None:
    """Return the attempt whose handler runs in this thread or task; None outside of handlers."""
    attempt = _current.get()
    return None if attempt is None or attempt.ended else attempt
