"""A way to PostgreSQL that can be cut: it counts the commands of the store's write connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

from tests.stores.cutting import CuttingProxy, Line, Pipe

_EXECUTE = (b"E", b"Q")
_READY = b"Z"
_WRITING = b"enable_seqscan"  # in the settings that only the write connections ask for


class Proxy(CuttingProxy):
    """``dsn`` is the way through it."""

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        super().__init__(self._parts.hostname or "127.0.0.1", self._parts.port or 5432)
        self.dsn = ""

    async def open(self) -> None:
        login, at, _ = self._parts.netloc.rpartition("@")
        where = f"{login}{at}127.0.0.1:{await self.listen()}"
        self.dsn = urlunsplit(self._parts._replace(netloc=where, query="sslmode=disable"))

    def line(self, client: Pipe) -> Line:
        return _Line(self, client)


class _Line(Line):
    async def requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = await reader.readexactly(4)
        hello = await reader.readexactly(int.from_bytes(size) - 4)
        counts = _WRITING in hello
        if not self._proxy.swallow():
            writer.write(size + hello)
        async for kind, message in _messages(reader):
            if self._proxy.swallow():
                continue
            if counts and kind in _EXECUTE and self.ends_here():
                return
            writer.write(message)
            await writer.drain()

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for kind, message in _messages(reader):
            if self._proxy.swallow():
                continue
            if self._doomed:
                if kind == _READY:
                    return
                continue
            writer.write(message)
            await writer.drain()


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    while True:
        head = await reader.readexactly(5)
        yield head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4)
