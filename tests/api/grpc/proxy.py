"""A TCP relay between client and server that can be cut, to break connections on purpose."""

from __future__ import annotations

import asyncio


class Proxy:
    """Relays to ``port``; ``cut`` resets every connection, ``refuse`` takes no new ones."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.refuse = False
        self.mute = False  # swallow what the server says
        self._server: asyncio.Server | None = None
        self.half_open = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._to_clients: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut_from_client(self) -> None:
        """Reset the clients' side; the server is left with connections that nobody uses."""
        self.half_open = True
        for writer in self._to_clients:
            writer.transport.abort()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        self._to_clients.add(writer)
        for source, sink, muted in ((reader, far_writer, False), (far_reader, writer, True)):
            task = asyncio.create_task(self._relay(source, sink, muted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _relay(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, from_server: bool
    ) -> None:
        try:
            while data := await source.read(65536):
                if from_server and (self.mute or self.half_open):
                    continue
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            if not self.half_open:
                sink.transport.abort()
                self._writers.discard(sink)
