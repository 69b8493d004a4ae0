"""Connections to one Redis: lent to one command at a time, dropped after any error.

The pool of redis-py repeats commands and waits, where callers want an answer or none. Errors are
sorted here by their meaning for the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.asyncio import Connection, ConnectionPool
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import TimeoutError as SocketTimeout

from jobqueue.core.errors import Unavailable
from jobqueue.core.store import StoreAway

T = TypeVar("T")
_CONNECTIONS = 8
_CLOSE_TIMEOUT = 1.0


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Wait for ``work`` that long, then cancel it and raise TimeoutError.

    When the loop was blocked beyond the deadline, the reply may be waiting in the socket. A plain
    timeout would fire before it is read, and blame the server. This one goes once around the loop
    before it fires, so that a reply that has come is read first.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        timer = loop.call_later(seconds, lambda: limit.reschedule(loop.time()))
        try:
            return await work
        finally:
            timer.cancel()


class RedisConnections:
    """Sends commands. The caller bounds the time: a cancelled command leaves nothing behind."""

    def __init__(self, url: str) -> None:
        # RESP2 needs no greeting and is spoken by every Redis there is.
        self._maker = ConnectionPool.from_url(url, protocol=2, socket_timeout=None)
        self._make()  # an unknown option is an error now, not at the first call
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(_CONNECTIONS)
        self._closed = False

    @property
    def address(self) -> str:
        """Return host, port and database, for people."""
        said = self._maker.connection_kwargs
        return f"{said.get('host', 'localhost')}:{said.get('port', 6379)}/{said.get('db', 0)}"

    def open(self) -> None:
        """Keep connections after their commands, until ``close``."""
        self._closed = False

    async def connect(self) -> None:
        """Make one connection ready."""
        self.open()
        if not self._idle:
            self._idle.append(await self.connected())

    async def execute(
        self, *command: str | int | bytes, note: Callable[[], None] | None = None
    ) -> Any:
        """Send one command and read its answer; it must be safe to repeat.

        ``note`` is called before anything is sent: until then nothing can have happened.
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
                    continue  # the server closed it while it was idle
            return await self._run(await self.connected(), command, note)

    async def connected(self) -> Connection:
        """Return a new connection of the caller's own."""
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
        """Close every connection."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            try:
                await within(_CLOSE_TIMEOUT, connection.disconnect())
            except (TimeoutError, OSError, RedisError):
                continue  # the process closes it at its end


def _ended(connection: Connection) -> bool:
    """Return True if the server is known to have closed it."""
    reader = getattr(connection, "_reader", None)
    return reader is not None and bool(reader.at_eof())


# The connection is gone or silent: the command may have happened.
LOST: tuple[type[BaseException], ...] = (OSError, TimeoutError, Disconnected, SocketTimeout)
# All that a call to Redis may end with.
TROUBLE: tuple[type[BaseException], ...] = (OSError, TimeoutError, RedisError)
_REFUSED = (AuthenticationError, NoPermissionError, OutOfMemoryError, ReadOnlyError)
_REFUSED_CODES = ("MISCONF", "MASTERDOWN", "NOREPLICAS", "NOAUTH", "NOPERM", "OOM", "READONLY")
_PASSING_CODES = ("BUSY", "LOADING", "TRYAGAIN")
_REPLICA_CODES = ("READONLY", "MASTERDOWN")


def passes(error: BaseException) -> bool:
    """Return True if Redis did nothing and will do it when it is asked again."""
    return isinstance(error, BusyLoadingError) or _begins(error, _PASSING_CODES)


def refused(error: BaseException) -> bool:
    """Return True if Redis did nothing, and refuses until an operator mends it."""
    return isinstance(error, _REFUSED) or _begins(error, _REFUSED_CODES)


def replaced(error: BaseException) -> bool:
    """Return True for a replica: its address may lead to another server by now."""
    return isinstance(error, ReadOnlyError) or _begins(error, _REPLICA_CODES)


def _begins(error: BaseException, codes: tuple[str, ...]) -> bool:
    return isinstance(error, ResponseError) and str(error).startswith(codes)


def described(error: BaseException, where: str) -> str:
    """Return an error for people; ``where`` is the location of the server."""
    text = str(error).strip()
    if isinstance(error.__cause__ or error.__context__, ConnectionRefusedError):
        text = "connection refused"
    elif not text:
        text = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    return f"{where}: {text.splitlines()[0][:300]}"


def unavailable(error: BaseException, where: str) -> Unavailable:
    """Return the error for callers of a command that did not happen."""
    heals = passes(error) or (isinstance(error, LOST) and not refused(error))
    return (StoreAway if heals else Unavailable)(described(error, where))
