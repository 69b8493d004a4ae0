"""Starts what needs a store that may be later than we are."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from jobqueue.core.store import StoreAway

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
STOPPED_EARLY = "stopped before it was ready"


async def when_reached(
    start: Callable[[], Awaitable[None]], timeout: float, log: logging.Logger
) -> None:
    """Start, and again while the store is away: the last try begins within the timeout.

    What does not heal by itself, like a wrong password, is raised at once. ``start`` must bear to
    be called again after it failed.
    """
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while True:
        try:
            await start()
        except StoreAway as error:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            pause = min(pause, left)
            log.warning("cannot reach %s; trying again in %.1f s", error.message, pause)
        else:
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


async def started(start: Coroutine[Any, Any, object], stop: asyncio.Event) -> bool:
    """Start, unless a stop is asked for before that is done: then it is given up (False)."""
    starting = asyncio.create_task(start)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            return True
        return False
    finally:
        stopping.cancel()
        starting.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
