"""Tell open pages by server-sent events that there is news, so that they fetch themselves again.

One task reads the store for all streams, at most once in an interval. A stream says only that
something has changed, never what: the page that is fetched again is made for its own caller.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable

from fastapi import Request
from starlette.responses import Response, StreamingResponse

from jobqueue.api.console.console import FRESH, Console, SharedReads
from jobqueue.api.http.authorizer import still_admitted
from jobqueue.api.http.context import give_up
from jobqueue.core.errors import JobQueueError, PermissionDenied, Unauthenticated

_log = logging.getLogger("jobqueue.console")
QUIET = 5.0
"""Seconds after which pages are fetched again although the shared reads have not changed.

Progress, heartbeats and schedules are not part of the shared reads.
"""
PAGES_PER_SECOND = 40
"""The most pages that all streams together let fetch in a second: beyond, the interval grows."""
_RETRY = 3_000  # milliseconds after which a browser connects again
_LOOK = b"event: look\ndata: {}\n\n"
_OVER = b"event: over\ndata: {}\n\n"
_STILL_HERE = b": still here\n\n"


class News:
    """Counts what is new in the shared reads, for all streams. It reads only while there are some.

    A stream that is slow misses numbers and not news: it waits for a number that it has not seen.
    """

    def __init__(self, read: Callable[[], Awaitable[Hashable]]) -> None:
        """Set the function that reads what pages show: a changed answer is news."""
        self._read = read
        self._seen: Hashable = None
        self._changed_at = 0.0
        self._next = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.streams = 0
        self.number = 0

    @property
    def interval(self) -> float:
        """Return the seconds between two reads: more with many streams."""
        return max(FRESH, self.streams / PAGES_PER_SECOND)

    def enter(self) -> None:
        """Count a stream. The first one starts the task that reads."""
        self.streams += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="jobqueue-console-news")

    def leave(self) -> None:
        """Count a stream no more. After the last one, nothing is read.

        The method does not wait, because a stream may end by being cancelled.
        """
        self.streams -= 1
        if not self.streams and self._task is not None:
            self._task.cancel()
            self._task = None

    async def after(self, number: int) -> int:
        """Wait until there is news after ``number``, and return the latest number."""
        while self.number == number:
            await self._next.wait()
        return self.number

    async def look(self) -> None:
        """Read once, for all streams."""
        try:
            now: Hashable = await self._read()
        except JobQueueError as error:
            now = error.code.value  # the pages say more
        quiet = time.monotonic() - self._changed_at >= max(QUIET, self.interval)
        if now != self._seen or quiet:
            self._seen, self._changed_at = now, time.monotonic()
            self.number += 1
            news, self._next = self._next, asyncio.Event()
            news.set()

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                _log.exception("looking for news for open pages failed; trying again")
            await asyncio.sleep(self.interval)


async def digest(reads: SharedReads) -> Hashable:
    """Return what changes with jobs, queues, workers and health."""
    queues, workers, health = (
        await reads.list_queues(),
        await reads.list_workers(),
        await reads.health(),
    )
    return (
        tuple(
            (repr(one.queue), tuple(sorted(one.depth.items())), one.processed, len(one.unserved))
            for one in queues
        ),
        tuple((one.info.id, one.status, one.running, one.overrun) for one in workers),
        health.status,
    )


def pages(console: Console) -> None:
    context = console.context
    settings = context.settings
    news = News(lambda: digest(console.reads))

    @console.page("/live")
    async def live(request: Request) -> Response:
        return StreamingResponse(
            lines(request), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    def is_over(request: Request) -> bool:
        """Return True if the caller's session has ended, or its key or role was taken away."""
        try:
            still_admitted(settings.access, request.scope, "server.live")
        except (Unauthenticated, PermissionDenied):
            return True
        return False

    async def lines(request: Request) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + settings.stream_timeout
        seen = news.number
        news.enter()
        draining = asyncio.ensure_future(context.draining.wait())
        upcoming: asyncio.Future[int] | None = None
        try:
            yield f"retry: {_RETRY}\n\n".encode()
            while True:
                upcoming = asyncio.ensure_future(news.after(seen))
                while not upcoming.done():
                    left = ends_at - loop.time()
                    if left <= 0 or draining.done():
                        return  # the browser connects again
                    await asyncio.wait(
                        [upcoming, draining],
                        timeout=min(left, settings.stream_heartbeat),
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    if is_over(request):
                        yield _OVER
                        return
                    if not upcoming.done() and not draining.done():
                        yield _STILL_HERE
                seen = upcoming.result()
                yield _LOOK
        finally:
            news.leave()
            await give_up(draining, *([upcoming] if upcoming is not None else []))
