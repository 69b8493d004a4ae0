"""A way to PostgreSQL that can go silent, or be slow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

_CHUNK = 1 << 16


class Relay:
    """Passes bytes on, unless it is told to lose or to delay them. ``url`` leads through it."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self.url = ""
        self.silent = False  # connections stay; what is sent on them, and on new ones, is lost
        self.delay = 0.0  # seconds, each way
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Relay]:
        """Listen on a free port."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        login = self._parts.netloc.rpartition("@")[0]
        place = f"{login}@127.0.0.1:{port}" if login else f"127.0.0.1:{port}"
        query = "&".join(filter(None, [self._parts.query, "sslmode=disable"]))
        self.url = urlunsplit(self._parts._replace(netloc=place, query=query))
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(self._parts.hostname, self._parts.port or 5432)
        self._writers |= {writer, there[1]}
        for source, sink in ((reader, there[1]), (there[0], writer)):
            task = asyncio.create_task(self._pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(_CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if not self.silent:
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()
