"""Define clocks. Parts of the system get a clock as an argument, so that tests can set the time."""

from __future__ import annotations

import time
from typing import Protocol

MAX_SECONDS = 10 * 365 * 86_400.0
"""The longest wait or duration that a caller may request."""
LATEST = 253_402_300_799.0  # the last second of the year 9999


class Clock(Protocol):
    """Returns the current time in seconds since the epoch."""

    def now(self) -> float:
        """Return the current time in seconds since the epoch."""


def milliseconds(at: float) -> int:
    """Convert seconds to whole milliseconds, which faces show and stores use to sort jobs."""
    return int(at * 1000)


class SystemClock:
    """A clock that returns the time of the operating system."""

    def now(self) -> float:
        return time.time()


class MonotonicClock:
    """A clock that never goes back. Its times are comparable only within this process."""

    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock for tests: its time changes only when ``advance`` is called."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time forward, rounded to microseconds like the times of real clocks."""
        self._now = round(self._now + seconds, 6)
