"""Keep connections to a Redis server, and classify its errors.

A connection serves one command at a time, and is closed after an error. The pool of redis-py is
not used, because it repeats commands and waits, while callers here need an answer or an error in
limited time. Errors are classified by what they mean for the caller.
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
from jobqueue.core.waiting import FairSemaphore, to_its_end

T = TypeVar("T")
_CONNECTIONS = 8
_CLOSE_TIMEOUT = 1.0


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Wait for ``work`` at most ``seconds``, then cancel it and raise TimeoutError.

    If the event loop was blocked until after the deadline, the reply may already be in the socket.
    A plain timeout would fire before the reply is read. This timeout lets the event loop read its
    sockets once before it fires.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        timer = loop.call_later(seconds, lambda: limit.reschedule(loop.time()))
        try:
            return await work
        finally:
            timer.cancel()


class RedisConnections:
    """Sends commands to Redis on a few connections.

    A command has no time limit. A caller that cancels it closes its connection.
    """

    def __init__(self, url: str) -> None:
        # RESP2 needs no handshake, and every version of Redis supports it.
        self._maker = ConnectionPool.from_url(url, protocol=2, socket_timeout=None)
        self._make()  # an unknown option is an error now, not at the first call
        self._idle: list[Connection] = []
        self._slots = FairSemaphore(_CONNECTIONS)
        self._closed = False

    @property
    def address(self) -> str:
        """Return the server's host, port and database as a text for logs and errors."""
        said = self._maker.connection_kwargs
        return f"{said.get('host', 'localhost')}:{said.get('port', 6379)}/{said.get('db', 0)}"

    def open(self) -> None:
        """Allow connections to stay open after their commands, until ``close`` is called."""
        self._closed = False

    async def connect(self) -> None:
        """Open one connection if none is idle, so that the next command need not connect."""
        self.open()
        if not self._idle:
            self._idle.append(await self.connected())

    async def execute(
        self, *command: str | int | bytes, note: Callable[[], None] | None = None
    ) -> Any:
        """Send a command and return its answer. The command must be safe to repeat.

        ``note`` is called just before the command is sent. If it was not called, the command has
        had no effect.
        """
        async with self._slots:
            answer, given_up = await to_its_end(self._execute(command, note))
        if given_up:
            raise asyncio.CancelledError
        return answer

    async def _execute(
        self, command: tuple[str | int | bytes, ...], note: Callable[[], None] | None
    ) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if _ended(connection):
                await connection.disconnect(nowait=True)
                continue
            try:
                return await self._run(connection, command, note)
            except Disconnected:
                continue  # the server closed the connection while it was idle
        return await self._run(await self.connected(), command, note)

    async def connected(self) -> Connection:
        """Return a new open connection, which the caller must close."""
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
            self._idle.append(connection)  # the command was refused, but the connection works
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
        """Close idle connections without waiting, because their server may not answer."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close all idle connections. A connection in use closes after its command."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            try:
                await within(_CLOSE_TIMEOUT, connection.disconnect())
            except (TimeoutError, OSError, RedisError):
                continue  # the operating system closes it when the process ends


def _ended(connection: Connection) -> bool:
    """Return True if the server has closed the connection."""
    reader = getattr(connection, "_reader", None)
    return reader is not None and bool(reader.at_eof())


# The connection is lost or silent: the command may have taken effect.
LOST: tuple[type[BaseException], ...] = (OSError, TimeoutError, Disconnected, SocketTimeout)
# All errors that a call to Redis may raise.
TROUBLE: tuple[type[BaseException], ...] = (OSError, TimeoutError, RedisError)
_REFUSED = (AuthenticationError, NoPermissionError, OutOfMemoryError, ReadOnlyError)
_REFUSED_CODES = ("MISCONF", "MASTERDOWN", "NOREPLICAS", "NOAUTH", "NOPERM", "OOM", "READONLY")
_PASSING_CODES = ("BUSY", "LOADING", "TRYAGAIN")
_REPLICA_CODES = ("READONLY", "MASTERDOWN")


def passes(error: BaseException) -> bool:
    """Return True if Redis did not run the command, but can run it if it is sent again soon."""
    return isinstance(error, BusyLoadingError) or _begins(error, _PASSING_CODES)


def refused(error: BaseException) -> bool:
    """Return True if Redis will not run the command until an operator corrects the reason."""
    return isinstance(error, _REFUSED) or _begins(error, _REFUSED_CODES)


def replaced(error: BaseException) -> bool:
    """Return True if the server is a replica: its host name may lead to a new primary by now."""
    return isinstance(error, ReadOnlyError) or _begins(error, _REPLICA_CODES)


def _begins(error: BaseException, codes: tuple[str, ...]) -> bool:
    return isinstance(error, ResponseError) and str(error).startswith(codes)


def described(error: BaseException, where: str) -> str:
    """Return the server's location ``where``, followed by the text of an error."""
    text = str(error).strip()
    if isinstance(error.__cause__ or error.__context__, ConnectionRefusedError):
        text = "connection refused"
    elif not text:
        text = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    return f"{where}: {text.splitlines()[0][:300]}"


def unavailable(error: BaseException, where: str) -> Unavailable:
    """Return the error to raise for a command that had no effect.

    The error is StoreAway if Redis may become available again by itself.
    """
    heals = passes(error) or (isinstance(error, LOST) and not refused(error))
    return (StoreAway if heals else Unavailable)(described(error, where))
