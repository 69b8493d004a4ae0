"""A deadline that tells a slow server from a busy event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")
# Passes of the loop between a reply in the socket and the task that reads it: one to read, one to
# wake the task, one to spare.
_PASSES = 3


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Wait for ``work`` that long, then cancel it and raise TimeoutError.

    When the loop was blocked beyond the deadline, the reply may be waiting in the socket. A plain
    timeout would fire before it is read and blame the server; this one lets the loop read first.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.Handle

    def due(passes: int) -> None:
        nonlocal timer
        if passes:
            timer = loop.call_soon(due, passes - 1)
        else:
            limit.reschedule(loop.time())

    async with asyncio.timeout(None) as limit:
        timer = loop.call_later(seconds, due, _PASSES)
        try:
            return await work
        finally:
            timer.cancel()
