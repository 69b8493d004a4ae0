"""A deadline that tells a slow server from a busy event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Wait for ``work`` that long, then cancel it and raise TimeoutError.

    When the loop was blocked beyond the deadline, the reply may be waiting in the socket. A plain
    timeout would fire before it is read and blame the server. This one goes once around the loop
    before it fires: what has come is read, and whoever waited for it is woken first.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        timer = loop.call_later(seconds, lambda: limit.reschedule(loop.time()))
        try:
            return await work
        finally:
            timer.cancel()
