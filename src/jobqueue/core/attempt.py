"""Give code inside a handler access to the current attempt, without a context argument."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol


class RunningAttempt(Protocol):
    """An attempt, as code inside its handler sees the attempt."""

    @property
    def ended(self) -> bool:
        """Return True if the handler has ended.

        This is also True for asyncio tasks that the handler left running.
        """

    def log_fields(self) -> Mapping[str, Any]:
        """Return the fields that are added to every log line of the handler."""

    def waiting_for(self, queue: str | None) -> AbstractContextManager[None]:
        """Record, while the block runs, that the handler waits for a job of ``queue``.

        ``queue`` is None if the queue is not known.
        """


_current: ContextVar[RunningAttempt | None] = ContextVar("jobqueue_attempt", default=None)

#: Called by executors before they run a handler, in the handler's own context.
enter_attempt = _current.set

#: True while a ``def`` handler runs inline: in its submitter's thread, which has an event loop. In
#: a worker, a ``def`` handler runs in a thread without a loop and may use the blocking client.
in_place: ContextVar[bool] = ContextVar("jobqueue_in_place", default=False)


def current_attempt() -> RunningAttempt | None:
    """Return the attempt whose handler runs in this thread or task, or None outside handlers."""
    attempt = _current.get()
    return None if attempt is None or attempt.ended else attempt
