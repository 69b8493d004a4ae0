"""A way to Redis that can be cut: it counts the scripts."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit, urlunsplit

from tests.stores.cutting import CuttingProxy, Line, Pipe


class Proxy(CuttingProxy):
    """``url`` is the way through it."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        super().__init__(self._parts.hostname or "127.0.0.1", self._parts.port or 6379)
        self.deaf = False  # answers are kept back, for good
        self.url = ""

    async def open(self) -> None:
        """Listen; after a close, where it listened before."""
        port = await self.listen(urlsplit(self.url).port or 0)
        login, at, _ = self._parts.netloc.rpartition("@")
        self.url = urlunsplit(self._parts._replace(netloc=f"{login}{at}127.0.0.1:{port}"))

    def line(self, client: Pipe) -> Line:
        return _Line(self, client)

    def lead_to(self, url: str) -> None:
        """Another server, for whoever connects from now on. The lines that there are stay."""
        parts = urlsplit(url)
        self._target = parts.hostname or "127.0.0.1", parts.port or 6379


class _Line(Line):
    _proxy: Proxy

    async def requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            name, command = await _command(reader)
            if name.startswith(b"EVAL") and self.ends_here():
                return
            writer.write(command)
            await writer.drain()

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (answer := await reader.read(65_536)) and not self._doomed:
            if not self._proxy.deaf:
                writer.write(answer)
                await writer.drain()


async def _command(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """One command as it was sent, and its name."""
    head = await reader.readuntil(b"\r\n")
    parts, name = [head], b""
    for n in range(int(head[1:])):
        size = await reader.readuntil(b"\r\n")
        value = await reader.readexactly(int(size[1:]) + 2)
        parts += [size, value]
        if n == 0:
            name = value[:-2].upper()
    return name, b"".join(parts)
