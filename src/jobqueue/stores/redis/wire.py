"""Connections to one Redis: lent to one command at a time, dropped when anything went wrong.

Not redis-py's own pool: it repeats commands, and waits, where we want an answer or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio import Connection, ConnectionPool
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import RedisError, ResponseError

from jobqueue.stores.redis.deadline import within

_CONNECTIONS = 8
_CLOSE_TIMEOUT = 1.0


class Wire:
    """Sends commands. The caller bounds the time: a command that is cancelled leaves nothing."""

    def __init__(self, url: str) -> None:
        # RESP2 needs no greeting and is spoken by every Redis there is.
        self._maker = ConnectionPool.from_url(url, protocol=2, socket_timeout=None)
        self._make()  # an option that it does not know is said now, not at the first call
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(_CONNECTIONS)
        self._closed = False

    @property
    def address(self) -> str:
        """Host, port and database, for people."""
        said = self._maker.connection_kwargs
        return f"{said.get('host', 'localhost')}:{said.get('port', 6379)}/{said.get('db', 0)}"

    def open(self) -> None:
        """Let connections live on after their first command."""
        self._closed = False

    async def connect(self) -> None:
        """Have one connection ready."""
        self.open()
        if not self._idle:
            self._idle.append(await self._connected())

    async def execute(
        self, *command: str | int | bytes, note: Callable[[], None] | None = None
    ) -> Any:
        """Send one command and read its answer; it must be safe to repeat.

        ``note`` is called before anything is sent: without it, nothing can have happened.
        """
        async with self._slots:
            while self._idle:
                connection = self._idle.pop()
                if _ended(connection):
                    await connection.disconnect(nowait=True)
                    continue
                try:
                    return await self._run(connection, command, note)
                except Disconnected:
                    continue  # the server closed it while it lay idle
            return await self._run(await self._connected(), command, note)

    async def dedicated(self) -> Connection:
        """A connection of the caller's own."""
        return await self._connected()

    async def _connected(self) -> Connection:
        connection = self._make()
        await connection.connect()  # type: ignore[no-untyped-call]
        return connection

    def _make(self) -> Connection:
        connection: Connection = self._maker.make_connection()  # type: ignore[no-untyped-call]
        return connection

    async def _run(
        self,
        connection: Connection,
        command: tuple[str | int | bytes, ...],
        note: Callable[[], None] | None,
    ) -> Any:
        try:
            if note is not None:
                note()
            await connection.send_command(*command)
            answer = await connection.read_response()
        except ResponseError:
            self._idle.append(connection)  # refused, but in order
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        if self._closed:
            await connection.disconnect(nowait=True)
        else:
            self._idle.append(connection)
        return answer

    async def drop(self) -> None:
        """Forget idle connections without waiting: their server may not answer any more."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close what is open."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            try:
                await within(_CLOSE_TIMEOUT, connection.disconnect())
            except (TimeoutError, OSError, RedisError):
                continue  # it goes with the process


def _ended(connection: Connection) -> bool:
    """Whether the server is known to have closed it."""
    reader = getattr(connection, "_reader", None)
    return reader is not None and bool(reader.at_eof())
