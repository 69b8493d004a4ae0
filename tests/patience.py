"""How long tests wait: limits that are right on a quiet machine and grow with the load they meet.

A limit in a test ends a hang. It measures nothing, so it must not fire because the machine is
slow: the time that counts against it runs slower while more processes want to run than there are
cores. It runs at least at a sixteenth of its speed, so a hung test ends on any machine.

    async with patience.timeout(10): ...        instead of asyncio.timeout(10)
    await patience.wait_for(job, 10)            instead of asyncio.wait_for(job, 10)
    patience.until(lambda: gone(pid), "...")    a poll, for what sends no signal
    limit = patience.Limit(10)                  for loops of other kinds: limit.over
    process.wait(patience.longest(10))          for calls that take a number and cannot be extended
    patience.stretched(2)                       for a setting: worker.heartbeat_timeout

The limit of a whole test (60 s, or what `@pytest.mark.timeout` says) is such a limit as well:
`tests/plugin_patience.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 16.0  # times a limit, on the busiest machine
_STEP = 1.0  # seconds after which the load is looked at again
_PAUSE = 0.02
_now = time.monotonic
_LOAD = Path("/proc/loadavg")
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def slowness() -> float:
    """How many processes share a core: 1 on a quiet machine, at most ``MOST``."""
    return min(MOST, max(1.0, _load() / _CORES))


def _load() -> float:
    """The mean of the last minute, or the number of the moment: load that came now counts now."""
    try:
        mean, _, _, moment, *_ = _LOAD.read_text().split()
    except FileNotFoundError:  # not Linux
        return os.getloadavg()[0]
    return max(float(mean), float(moment.partition("/")[0]))


class Limit:
    """So many seconds of a quiet machine."""

    def __init__(self, seconds: float, clock: Callable[[], float] | None = None) -> None:
        self._left = seconds
        self._clock = clock or _now
        self._looked = self._clock()

    def left(self) -> float:
        """Seconds that are left; 0: none. On a busy machine they last longer than they say."""
        now = self._clock()
        self._left = max(0.0, self._left - (now - self._looked) / slowness())
        self._looked = now
        return self._left

    @property
    def over(self) -> bool:
        return self.left() == 0

    def step(self) -> float:
        """How long to wait before the next look."""
        return min(self.left(), _STEP)


@contextlib.asynccontextmanager
async def timeout(seconds: float) -> AsyncIterator[asyncio.Timeout]:
    """``asyncio.timeout``, with patience."""
    loop = asyncio.get_running_loop()
    limit = Limit(seconds, loop.time)
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        if limit.over:
            scope.reschedule(loop.time())
        else:
            timer = loop.call_later(limit.step(), look)

    async with asyncio.timeout(None) as scope:
        look()
        try:
            yield scope
        finally:
            if timer is not None:
                timer.cancel()


async def wait_for(awaited: Awaitable[T], seconds: float) -> T:
    """``asyncio.wait_for``, with patience."""
    async with timeout(seconds):
        return await awaited


def until(done: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Poll until something is so; returns it."""
    limit = Limit(seconds)
    while not (found := done()):
        assert not limit.over, f"not within {seconds:g} s: {what}"
        time.sleep(_PAUSE)
    return found


def wait_on(changed: threading.Condition, done: Callable[[], Any], seconds: float) -> Any:
    """``Condition.wait_for``, with patience."""
    limit = Limit(seconds)
    while not (found := done()) and not limit.over:
        changed.wait(limit.step())
    return found


def stretched(seconds: float) -> float:
    """A time that the product is told, such as after how long a worker counts as lost.

    On a busy machine a healthy worker is silent for longer. At most four times as long: the test
    waits for it.
    """
    return seconds * min(4.0, slowness())


def longest(seconds: float) -> float:
    """The limit of the busiest machine. On a quiet one the limit of the test ends a hang before."""
    return seconds * MOST
