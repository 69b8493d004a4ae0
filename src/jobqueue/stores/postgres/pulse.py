"""Heartbeats, in a thread with a connection of its own: they must survive a blocked loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from jobqueue.core.errors import Unavailable

T = TypeVar("T")
_TIMEOUT = 10.0


class SideLoop:
    """An event loop in a thread. ``run`` may be called from any other thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=loop.run_forever, name="jobqueue-postgres-pulse", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = _TIMEOUT) -> T:
        """Run something there and wait for it."""
        loop = self._loop
        if loop is None:
            work.close()
            raise Unavailable("PostgreSQL: the store is not open")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise Unavailable(f"PostgreSQL took no heartbeat within {timeout:g} s") from None
        except concurrent.futures.CancelledError:
            raise Unavailable("PostgreSQL: the store is closed") from None

    def stop(self) -> None:
        """End the thread; what runs there is cut off, and whoever waits for it hears of it."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_cut_off(), loop)
            thread.join(_TIMEOUT)
            loop.close()


async def _cut_off() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=_TIMEOUT / 2)
    asyncio.get_running_loop().stop()
