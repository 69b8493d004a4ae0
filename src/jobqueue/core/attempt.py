"""The attempt whose handler runs here, for code that a handler calls without passing it on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol


class RunningAttempt(Protocol):
    """An attempt, as the code inside its handler sees it."""

    @property
    def ended(self) -> bool:
        """Whether the handler has ended. What it left running may still be in its context."""
        ...

    def log_fields(self) -> Mapping[str, Any]:
        """What every log line of the handler carries."""
        ...

    def waiting_for(self, queue: str | None) -> AbstractContextManager[None]:
        """The handler waits for a job of that queue while the block runs. None: not known."""
        ...


_current: ContextVar[RunningAttempt | None] = ContextVar("jobqueue_attempt", default=None)

#: Called by executors before they run a handler, in the handler's own context.
enter_attempt = _current.set

#: Set while a ``def`` handler runs in its submitter's thread, on top of a loop. In a worker it has
#: a thread without one, where the blocking client may be used.
in_place: ContextVar[bool] = ContextVar("jobqueue_in_place", default=False)


def current_attempt() -> RunningAttempt | None:
    """The attempt whose handler runs here, in its thread or on the loop; None elsewhere."""
    attempt = _current.get()
    return None if attempt is None or attempt.ended else attempt
