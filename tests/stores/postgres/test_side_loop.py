"""The thread of the heartbeats ends, and with it what still runs there."""

from __future__ import annotations

import asyncio
import threading

import pytest

from jobqueue.core.errors import Unavailable
from jobqueue.stores.postgres.database import SideLoop
from tests import patience


async def test_a_stop_cuts_off_what_runs_there_and_tells_whoever_waits() -> None:
    side = SideLoop()
    side.start()
    begun, ended = threading.Event(), threading.Event()

    async def beat() -> None:
        begun.set()
        try:
            await asyncio.sleep(3_600)
        finally:
            ended.set()

    waits = asyncio.create_task(asyncio.to_thread(side.run, beat(), 3_600))
    assert await asyncio.to_thread(begun.wait, 20)
    await asyncio.to_thread(side.stop)
    with pytest.raises(Unavailable, match="closed"):
        await patience.wait_for(waits, 20)
    assert ended.is_set()
