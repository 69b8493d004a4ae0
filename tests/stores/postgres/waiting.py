"""Waiting for something that another party does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests import patience


async def until(holds: Callable[[], Awaitable[bool]], timeout: float = 20.0) -> None:
    """Look again and again; fail when it does not come true in time."""
    async with patience.timeout(timeout):
        while not await holds():
            await asyncio.sleep(0.01)
