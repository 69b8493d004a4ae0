"""A way to PostgreSQL on which the test can cut the line at an exact point.

It reads the messages that go by. Armed, it counts the commands of the store's write connections,
and cuts the line of the one that sends the n-th: before the server has it, or after the server
did it and before its answer arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

_EXECUTE = (b"E", b"Q")
_READY = b"Z"
_WRITING = b"enable_seqscan"  # in the settings that only the write connections ask for


class Cut(enum.Enum):
    """Which side of the command the line is cut on."""

    BEFORE = "before"
    AFTER = "after"


class Proxy:
    """One listening socket; ``dsn`` is the way through it."""

    def __init__(self, dsn: str) -> None:
        self._server_dsn = dsn
        parts = urlsplit(dsn)
        self._target = parts.hostname or "127.0.0.1", parts.port or 5432
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self._seen = 0
        self._marked: set[int] = set()
        self.when = Cut.AFTER
        self.cuts = 0
        self.dsn = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        parts = urlsplit(self._server_dsn)
        where = f"{parts.username}@127.0.0.1:{port}"
        self.dsn = urlunsplit(parts._replace(netloc=where, query="sslmode=disable"))

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for line in list(self._lines):
            line.cut()
        await self._server.wait_closed()
        while self._lines:
            await asyncio.sleep(0)

    def arm(self, when: Cut, *commands: int) -> None:
        """Cut the line at these commands, counted from now on."""
        self._seen, self._marked, self.when = 0, set(commands), when

    def disarm(self) -> None:
        self._marked = set()

    def cut_all(self) -> None:
        for line in list(self._lines):
            line.cut()

    def strikes(self) -> bool:
        """Count one command; whether the line is cut at it."""
        self._seen += 1
        if self._seen not in self._marked:
            return False
        self.cuts += 1
        return True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = _Line(self, reader, writer)
        self._lines.add(line)
        try:
            await line.run(*self._target)
        finally:
            self._lines.discard(line)


class _Line:
    """One client's connection and the one to the server behind it."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._client = reader, writer
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._counts = False
        self._doomed = False

    async def run(self, host: str, port: int) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self._server = await asyncio.open_connection(host, port)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._requests())
                both.create_task(self._answers())
        self.cut()

    def cut(self) -> None:
        for end in (self._client, self._server):
            if end is not None and end[1].transport is not None:
                end[1].transport.abort()

    async def _requests(self) -> None:
        assert self._server is not None
        reader, writer = self._client[0], self._server[1]
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            size = await reader.readexactly(4)
            hello = await reader.readexactly(int.from_bytes(size) - 4)
            self._counts = _WRITING in hello
            writer.write(size + hello)
            async for kind, message in _messages(reader):
                if self._counts and kind in _EXECUTE and self._proxy.strikes():
                    if self._proxy.when is Cut.BEFORE:
                        break
                    self._doomed = True
                writer.write(message)
                await writer.drain()
        self.cut()

    async def _answers(self) -> None:
        assert self._server is not None
        reader, writer = self._server[0], self._client[1]
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async for kind, message in _messages(reader):
                if self._doomed:
                    if kind == _READY:
                        break
                    continue
                writer.write(message)
                await writer.drain()
        self.cut()


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    while True:
        head = await reader.readexactly(5)
        yield head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4)
