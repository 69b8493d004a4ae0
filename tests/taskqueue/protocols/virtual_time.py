"""Tests in virtual time, each run of which is the same, and the poll that goes with it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from tests.virtual_time import VirtualTimeLoop


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
