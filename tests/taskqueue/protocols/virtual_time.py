"""An event loop whose time jumps to the next timer when nothing else can happen.

Waiting costs nothing, every run is the same, and a test that waits for what cannot come fails at
once instead of hanging.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable
from typing import Any


class _Jump(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits for something that will not come")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at 0 seconds."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run the test in such a loop; it must leave no task behind."""

    @functools.wraps(test)
    def run(*args: Any, **keywords: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(_guarded(test(*args, **keywords)))

    return run


async def _guarded(test: Awaitable[None]) -> None:
    await test
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"the test left tasks behind: {left}"


async def until(condition: Callable[[], bool]) -> None:
    """Let the others run until it holds; in virtual time that takes no time."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to that")
