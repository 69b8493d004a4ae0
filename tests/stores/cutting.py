"""A way to a server on which the test can cut the line at an exact point.

Armed, it counts what a protocol calls a command, and cuts the line of the one that sends the n-th:
before the server has it, or after the server did it and before its answer arrives. What a command
is, and where an answer ends, the protocols know: ``postgres/proxy.py``, ``redis/proxy.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from abc import ABC, abstractmethod
from collections.abc import Coroutine

from tests import ports

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Cut(enum.Enum):
    """Which side of the command the line is cut on."""

    BEFORE = "before"
    AFTER = "after"


class CuttingProxy(ABC):
    """One listening socket."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._server: asyncio.Server | None = None
        self._lines: set[Line] = set()
        self._seen = 0
        self._marked: set[int] = set()
        self.when = Cut.AFTER
        self.cuts = 0
        self.swallows = False  # lines stay, and nothing that is sent on them arrives
        self.swallowed = 0

    @abstractmethod
    def line(self, client: Pipe) -> Line:
        """A client's connection."""

    async def listen(self, port: int | None = None) -> int:
        """Begin; returns where."""
        port = port or ports.take()  # it may close, and listen there again
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        return port

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
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

    def swallow(self) -> bool:
        """Whether a message that has come is lost without a word."""
        self.swallowed += self.swallows
        return self.swallows

    def strikes(self) -> bool:
        """Count one command; whether the line is cut at it."""
        self._seen += 1
        if self._seen not in self._marked:
            return False
        self.cuts += 1
        return True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = self.line((reader, writer))
        self._lines.add(line)
        try:
            await line.run(*self._target)
        finally:
            self._lines.discard(line)


class Line(ABC):
    """One client's connection and the one to the server behind it."""

    def __init__(self, proxy: CuttingProxy, client: Pipe) -> None:
        self._proxy = proxy
        self._client = client
        self._server: Pipe | None = None
        self._doomed = False

    async def run(self, host: str, port: int) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            server = self._server = await asyncio.open_connection(host, port)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._cut_after(self.requests(self._client[0], server[1])))
                both.create_task(self._cut_after(self.answers(server[0], self._client[1])))
        self.cut()

    async def _cut_after(self, way: Coroutine[None, None, None]) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await way
        self.cut()

    def cut(self) -> None:
        for end in (self._client, self._server):
            if end is not None and end[1].transport is not None:
                end[1].transport.abort()

    def ends_here(self) -> bool:
        """Count a command that is about to be passed on; True: it must not be."""
        if not self._proxy.strikes():
            return False
        if self._proxy.when is Cut.BEFORE:
            return True
        self._doomed = True
        return False

    @abstractmethod
    async def requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what the client sends, until the line is to be cut."""

    @abstractmethod
    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what the server says, until the line is to be cut."""
