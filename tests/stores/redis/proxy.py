"""A way to Redis on which the test can cut the line at an exact point.

It reads the commands that go by. Armed, it counts the scripts, and cuts the line of the one that
sends the n-th: before the server has it, or after the server did it and before its answer arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from urllib.parse import urlsplit, urlunsplit


class Cut(enum.Enum):
    """Which side of the command the line is cut on."""

    BEFORE = "before"
    AFTER = "after"


class Proxy:
    """One listening socket; ``url`` is the way through it."""

    def __init__(self, url: str) -> None:
        self._server_url = url
        parts = urlsplit(url)
        self._target = parts.hostname or "127.0.0.1", parts.port or 6379
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self._seen = 0
        self._marked: set[int] = set()
        self.when = Cut.AFTER
        self.cuts = 0
        self.deaf = False  # answers are kept back, for good
        self.url = ""

    async def open(self) -> None:
        """Listen; after a close, where it listened before."""
        port = urlsplit(self.url).port or 0
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        port = self._server.sockets[0].getsockname()[1]
        self.url = urlunsplit(urlsplit(self._server_url)._replace(netloc=f"127.0.0.1:{port}"))

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for line in list(self._lines):
            line.cut()
        await self._server.wait_closed()
        while self._lines:
            await asyncio.sleep(0)

    def lead_to(self, url: str) -> None:
        """Another server, for whoever connects from now on. The lines that there are stay."""
        parts = urlsplit(url)
        self._target = parts.hostname or "127.0.0.1", parts.port or 6379

    def arm(self, when: Cut, *commands: int) -> None:
        """Cut the line at these scripts, counted from now on."""
        self._seen, self._marked, self.when = 0, set(commands), when

    def disarm(self) -> None:
        self._marked = set()

    def strikes(self) -> bool:
        """Count one script; whether the line is cut at it."""
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
            while True:
                name, command = await _command(reader)
                if name.startswith(b"EVAL") and self._proxy.strikes():
                    if self._proxy.when is Cut.BEFORE:
                        break
                    self._doomed = True
                writer.write(command)
                await writer.drain()
        self.cut()

    async def _answers(self) -> None:
        assert self._server is not None
        reader, writer = self._server[0], self._client[1]
        with contextlib.suppress(OSError):
            while (answer := await reader.read(65_536)) and not self._doomed:
                if not self._proxy.deaf:
                    writer.write(answer)
                    await writer.drain()
        self.cut()


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
