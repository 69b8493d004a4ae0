"""Heartbeats, in a thread of their own: they go on while a handler blocks the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable

from jobqueue.core.job import Pulse

log = logging.getLogger("jobqueue.worker")

_PAUSE = 1.0  # seconds at least between two heartbeats; an interval may be shorter
_REST = 10  # pauses are so many times as long as the last answer took: news must not crowd a server


class Heartbeat:
    """Calls ``beat`` at an interval, or earlier if there is news, and hands its answer to the loop.

    An early heartbeat is not a complete one: a job that is under way to the worker has the time of
    two intervals to arrive before it counts as lost, whatever its neighbours have to tell.
    """

    def __init__(
        self,
        worker_id: str,
        interval: float,
        beat: Callable[[bool], Pulse],
        deliver: Callable[[Pulse], None],
    ) -> None:
        self._worker_id = worker_id
        self._interval = interval
        self._pause = min(interval, _PAUSE)  # before the next heartbeat
        self._beat = beat  # is told whether the loop has run since the last complete beat
        self._deliver = deliver
        self._halt = threading.Event()
        self._news = threading.Event()
        self._awake = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gone: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start beating."""
        self._loop = asyncio.get_running_loop()
        self._gone = self._loop.create_future()
        threading.Thread(target=self._run, name="worker-heartbeat", daemon=True).start()

    def hurry(self) -> None:
        """There is news: do not wait for the interval. From any thread."""
        if not self._news.is_set():  # asking is much cheaper
            self._news.set()

    async def stop(self, timeout: float = 2.0) -> None:
        """Stop, and wait until the thread is gone, or blocked for too long."""
        self._halt.set()
        self._news.set()
        if self._gone is not None:
            await asyncio.wait({self._gone}, timeout=timeout)

    def _run(self) -> None:
        silent = False
        complete_at = time.monotonic() + self._interval
        while not self._halt.wait(self._pause):
            early = self._wait_until(complete_at, silent)
            if self._halt.is_set():
                break
            self._news.clear()
            if early:
                silent = not self._answered(False, silent)
                continue
            awake, self._awake = self._awake, False
            self._call(self._wake)
            silent = not self._answered(awake, silent)
            complete_at = time.monotonic() + self._interval
        self._call(self._leave)

    def _answered(self, complete: bool, silent: bool) -> bool:
        """Send a heartbeat, and deliver what it is answered."""
        began = time.monotonic()
        try:
            pulse = self._beat(complete)
        except Exception as error:
            if not silent:
                log.warning("heartbeat failed: %s", error, extra={"worker_id": self._worker_id})
            return False
        took = time.monotonic() - began
        self._pause = min(self._interval, max(_PAUSE, _REST * took))
        if silent:
            log.info("heartbeats are answered again", extra={"worker_id": self._worker_id})
        self._call(self._deliver, pulse)
        return True

    def _wait_until(self, at: float, silent: bool) -> bool:
        """Wait for the next heartbeat; True: there is news before its time.

        While the server does not answer, it is not asked more often.
        """
        left = at - time.monotonic()
        return left > 0 and (self._halt if silent else self._news).wait(left)

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *args)

    def _wake(self) -> None:
        self._awake = True

    def _leave(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
