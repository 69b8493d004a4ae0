"""Heartbeats, in a thread of their own: they go on while a handler blocks the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from jobqueue.core.job import Pulse

log = logging.getLogger("jobqueue.worker")


class Heartbeat:
    """Calls ``beat`` at an interval and hands its answer to the loop."""

    def __init__(
        self,
        worker_id: str,
        interval: float,
        beat: Callable[[bool], Pulse],
        deliver: Callable[[Pulse], None],
    ) -> None:
        self._worker_id = worker_id
        self._interval = interval
        self._beat = beat  # is told whether the loop has run since the last beat
        self._deliver = deliver
        self._halt = threading.Event()
        self._awake = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gone: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start beating."""
        self._loop = asyncio.get_running_loop()
        self._gone = self._loop.create_future()
        threading.Thread(target=self._run, name="worker-heartbeat", daemon=True).start()

    async def stop(self, timeout: float = 2.0) -> None:
        """Stop, and wait until the thread is gone, or blocked for too long."""
        self._halt.set()
        if self._gone is not None:
            await asyncio.wait({self._gone}, timeout=timeout)

    def _run(self) -> None:
        silent = False
        while not self._halt.wait(self._interval):
            awake, self._awake = self._awake, False
            self._call(self._wake)
            try:
                pulse = self._beat(awake)
            except Exception as error:
                if not silent:
                    log.warning("heartbeat failed: %s", error, extra={"worker_id": self._worker_id})
                silent = True
                continue
            if silent:
                log.info("heartbeats are answered again", extra={"worker_id": self._worker_id})
            silent = False
            self._call(self._deliver, pulse)
        self._call(self._leave)

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *args)

    def _wake(self) -> None:
        self._awake = True

    def _leave(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
