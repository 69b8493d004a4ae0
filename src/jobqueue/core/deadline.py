"""How much time the caller of the work under way still has, if it said so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ENDS: ContextVar[float | None] = ContextVar("jobqueue_deadline", default=None)


@contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Work inside has so long, None: as long as it takes.

    What must be done though the caller gives up (undoing half of something) takes None.
    """
    token = _ENDS.set(None if seconds is None else time.monotonic() + seconds)
    try:
        yield
    finally:
        _ENDS.reset(token)


def remaining(most: float) -> float:
    """Seconds left, at most ``most``, at least 0."""
    ends = _ENDS.get()
    return most if ends is None else max(0.0, min(most, ends - time.monotonic()))
