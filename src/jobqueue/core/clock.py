"""Time, passed in rather than looked up, so that tests can hold it still."""

from __future__ import annotations

import time
from typing import Protocol

MAX_SECONDS = 10 * 365 * 86_400.0
"""The longest wait or duration that a caller may ask for."""
LATEST = 253_402_300_799.0  # the last second of the year 9999


class Clock(Protocol):
    """Seconds since the epoch, as the store sees them."""

    def now(self) -> float:
        """Return the current time."""


def milliseconds(at: float) -> int:
    """Return a time in whole milliseconds, as some faces show it and stores sort by it."""
    return int(at * 1000)


class SystemClock:
    def now(self) -> float:
        return time.time()


class MonotonicClock:
    """A clock that is never set back; its times mean nothing outside this process."""

    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move time forward, by whole microseconds: real clocks are no finer."""
        self._now = round(self._now + seconds, 6)
