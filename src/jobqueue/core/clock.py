"""Time, passed in rather than looked up, so that tests can hold it still."""

from __future__ import annotations

import time
from typing import Protocol

MAX_SECONDS = 10 * 365 * 86_400.0
LATEST = 253_402_300_799.0  # the last second of the year 9999
"""The longest time that anything may be told to wait or to last."""


class Clock(Protocol):
    """Seconds since the epoch, as the store sees them."""

    def now(self) -> float:
        """Return the current time."""
        ...


def milliseconds(at: float) -> int:
    """A time as faces that count in milliseconds show it, and as stores sort by it."""
    return int(at * 1000)


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> float:
        """Return the current time."""
        return time.time()


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the current time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move time forward, by whole microseconds: real clocks are no finer."""
        self._now = round(self._now + seconds, 6)
