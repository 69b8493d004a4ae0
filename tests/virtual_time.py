"""An event loop whose time jumps to the next timer when nothing else can happen.

Waiting costs nothing, a busy machine changes nothing, and a test that waits for an event that
cannot come fails at once instead of hanging. While the loop runs, ``time.monotonic`` tells its
time as well, so code that measures with it sees the same seconds pass. Time stands still while a
thread works for the loop (``asyncio.to_thread``).

A test that takes a real file, server or process needs the machine's own time.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Jump(selectors.DefaultSelector):
    def __init__(self, step: float) -> None:
        super().__init__()
        self.now = 0.0
        self._step = step
        self.at_work: set[asyncio.Future[Any]] = set()  # in threads
        self.ends_threads = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.ends_threads or any(not future.done() for future in self.at_work):
            return super().select(0 if timeout == 0 else None)
        if timeout is None:
            raise RuntimeError("everything waits for something that will not come")
        self.now += max(self._step, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at 0 seconds.

    A pass of the loop takes ``step`` seconds. With a step, a task that polls by ``sleep(0)`` does
    not keep time from passing; without one, timers meet their moments exactly.
    """

    def __init__(self, step: float = 0.0) -> None:
        self._jump = _Jump(step)
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now

    def run_forever(self) -> None:
        real, time.monotonic = time.monotonic, self.time
        try:
            super().run_forever()
        finally:
            time.monotonic = real

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._jump.at_work.add(future)
        future.add_done_callback(self._jump.at_work.discard)
        return future

    async def shutdown_default_executor(self) -> None:
        self._jump.ends_threads = True
        await super().shutdown_default_executor()

    def stand_still(self, seconds: float) -> None:
        """Let that time pass without anything being done, as in a process that is paused."""
        self._jump.now += seconds


def stand_still(seconds: float) -> None:
    """The same for the loop that runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.stand_still(seconds)
