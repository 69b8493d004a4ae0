"""Keep a pool of connections to PostgreSQL, which reconnects by itself.

asyncpg's pool is not used, because it sends a reset with every return of a connection. That costs a
round trip, and a claim has only three. This pool also knows the backend (server process) of each
connection. If a connection is lost during a write, its backend is terminated first. Only then is it
certain whether the write was committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import asyncpg

from jobqueue.core.errors import Unavailable
from jobqueue.core.waiting import FairSemaphore, to_its_end
from jobqueue.stores.postgres.statements import LAYOUT, SQL
from jobqueue.stores.postgres.trouble import LOST, REFUSED, location, unavailable

_log = logging.getLogger("jobqueue.stores.postgres")
# A running server answers sooner; a connection that was cut off silently never gets an answer.
_CONNECT_TIMEOUT = 3.0
_CLOSE_TIMEOUT = 5.0
_COMMAND_TIMEOUT = 30.0  # of one statement; ``Runner`` gives calls that can be repeated less
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_GOODBYES = 100

# Statements that write find rows by key, independent of statistics: tables that were empty a moment
# ago get the same plan as tables with millions of rows.
FIXED_PLANS: Mapping[str, str] = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "max_parallel_workers_per_gather": "0",
}
# Values of filters differ widely: the plan that is best for one value may read the whole table for
# another value. PostgreSQL cannot estimate how many jobs the ranges hold. It would start parallel
# workers for the events of a few jobs: three processes and 30 ms instead of one millisecond.
READING: Mapping[str, str] = {
    "jit": "off",
    "plan_cache_mode": "force_custom_plan",
    "max_parallel_workers_per_gather": "0",
}

# Seconds, except TCP_USER_TIMEOUT: milliseconds for which sent data may stay unacknowledged.
_KEEPALIVE = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 5_000,
}
# Without these, the server would keep a lost connection and its locks for hours.
_SERVERS_KEEPALIVE = {
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}


Row = Sequence[Any]
"""The columns that a query selects, in its order."""


class Db(Protocol):
    """Declares the methods of an asyncpg connection that this package uses."""

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str: ...

    async def fetch(self, query: str, *args: object, timeout: float | None = None) -> list[Row]: ...

    async def fetchrow(
        self, query: str, *args: object, timeout: float | None = None
    ) -> Row | None: ...

    async def fetchval(self, query: str, *args: object, timeout: float | None = None) -> Any: ...

    def transaction(
        self, *, isolation: str | None = None, readonly: bool = False
    ) -> AbstractAsyncContextManager[object]: ...

    async def copy_records_to_table(
        self, table_name: str, *, records: Iterable[Row], columns: Sequence[str]
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class PostgresBackend:
    """Identifies a process of the PostgreSQL server by pid and start, because pids are reused."""

    pid: int
    began: datetime


# asyncpg reads the descriptions of array types anew on every connection, with a query that takes
# PostgreSQL ten times as long as the connection itself. The object ids below
# ``_FIRST_GENERATED_ID`` are assigned by hand in PostgreSQL's source: they mean the same in every
# database of every server.
_FIRST_GENERATED_ID = 10_000
_builtin_types: dict[frozenset[int], Sequence[Any]] = {}


class _NoStatement:
    """Takes the place of a prepared statement when ``_builtin_types`` already has the types."""

    name = "remembered"


class _Asked(asyncpg.Connection):  # type: ignore[misc]  # it has no types
    """Records when its latest statement was sent, and caches PostgreSQL's built-in types."""

    asked = 0.0

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> Any:
        wanted = frozenset(typeoids)
        known = _builtin_types.get(wanted)
        if known is not None:
            return known, _NoStatement
        found, statement = await super()._introspect_types(wanted, timeout)
        if all(oid < _FIRST_GENERATED_ID for oid in wanted):
            _builtin_types[wanted] = found
        return found, statement

    def execute(self, *args: Any, **options: Any) -> Any:
        self.asked = time.monotonic()
        return super().execute(*args, **options)

    def fetch(self, *args: Any, **options: Any) -> Any:
        self.asked = time.monotonic()
        return super().fetch(*args, **options)

    def fetchrow(self, *args: Any, **options: Any) -> Any:
        self.asked = time.monotonic()
        return super().fetchrow(*args, **options)

    def fetchval(self, *args: Any, **options: Any) -> Any:
        self.asked = time.monotonic()
        return super().fetchval(*args, **options)


@dataclass(slots=True, eq=False)
class Connection:
    """Holds an asyncpg connection and the server process that serves it."""

    raw: Any
    backend: PostgresBackend


async def connect(dsn: str, settings: Mapping[str, str]) -> Connection:
    """Open a connection with the given server settings. Raise OSError or an error of asyncpg."""
    raw = await asyncpg.connect(
        dsn,
        connection_class=_Asked,
        timeout=_CONNECT_TIMEOUT,
        command_timeout=_COMMAND_TIMEOUT,
        statement_cache_size=200,
        max_cached_statement_lifetime=0,
        server_settings={
            "application_name": "jobqueue",
            "jobqueue.layout": str(LAYOUT),
            **_SERVERS_KEEPALIVE,
            **settings,
        },
    )
    try:
        _watch_line(raw)
        row = await raw.fetchrow(
            "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()",
            timeout=_CONNECT_TIMEOUT,
        )
    except BaseException:
        raw.terminate()
        raise
    return Connection(raw, PostgresBackend(*row))


def _watch_line(raw: Any) -> None:
    """Set TCP options with which the operating system detects that the server is unreachable."""
    line = raw._transport.get_extra_info("socket")  # asyncpg has no option for this
    if line is None or line.family not in (socket.AF_INET, socket.AF_INET6):
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        option = getattr(socket, name, None)  # some systems lack some options
        if option is not None:
            line.setsockopt(socket.IPPROTO_TCP, option, value)


class Connections:
    """Keeps a pool of up to ``size`` connections, all with the same server settings."""

    def __init__(self, dsn: str, size: int, settings: Mapping[str, str], patience: float) -> None:
        self._dsn = dsn
        self.location = location(dsn)
        self._settings = settings
        self._patience = patience
        self._size = size
        self._idle: deque[Connection] = deque()
        self._free = FairSemaphore(size)
        self._closed = True

    def open(self) -> None:
        """Allow the pool to connect. Each connection is opened when it is first needed."""
        self._free = FairSemaphore(self._size)
        self._closed = False

    @contextlib.asynccontextmanager
    async def use(self, patience: float | None = None) -> AsyncIterator[Connection]:
        """Borrow a connection from the pool for the time of the context. Accounts take turns.

        Raise Unavailable if no connection is free or can be opened within ``patience`` seconds. If
        the context ends with an exception, the connection is closed.
        """
        deadline = time.monotonic() + (self._patience if patience is None else patience)
        free = self._free
        try:
            async with asyncio.timeout_at(_loop_time(deadline)):
                await free.acquire()
        except TimeoutError:
            raise Unavailable(f"{self.location}: every connection is busy") from None
        try:
            connection = self._idle_one() or await self._opened(deadline)
            try:
                yield connection
            except BaseException:
                # An answer may be only partly read (the caller was cancelled), or the server lost.
                connection.raw.terminate()
                raise
            if self._closed:
                await _close(connection)
            elif not connection.raw.is_closed():
                self._idle.append(connection)
        finally:
            free.release()

    def _idle_one(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.raw.is_closed():
                return connection
        return None

    async def _opened(self, deadline: float) -> Connection:
        connection, given_up = await to_its_end(self._connect(deadline))
        if given_up:
            self._idle.append(connection)
            raise asyncio.CancelledError
        return connection

    async def _connect(self, deadline: float) -> Connection:
        pause = _FIRST_PAUSE
        while True:
            connection = self._idle_one()
            if connection is not None:
                return connection
            if self._closed:
                raise Unavailable(f"{self.location}: the store is not open")
            try:
                return await connect(self._dsn, self._settings)
            except (*LOST, asyncpg.TooManyConnectionsError) as error:
                # If the server has too many connections, one of this pool may be idle soon.
                if time.monotonic() + pause > deadline:
                    raise unavailable(error, self.location) from error
            except REFUSED as error:
                raise unavailable(error, self.location) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def distrust(self) -> None:
        """Drop all idle connections. The caller suspects that they were cut off silently."""
        while self._idle:
            self._idle.pop().raw.terminate()

    async def close(self) -> None:
        """Close all idle connections. A connection in use closes when it is returned."""
        self._closed = True
        while self._idle:
            await _close(self._idle.pop())


async def _close(connection: Connection) -> None:
    with contextlib.suppress(*LOST):
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await connection.raw.close()
    connection.raw.terminate()


def _loop_time(deadline: float) -> float:
    return asyncio.get_running_loop().time() + max(0.0, deadline - time.monotonic())


async def dispel(connections: Connections, lost: PostgresBackend) -> bool:
    """Terminate a backend whose answer was lost, and wait until it has ended.

    Return True if the backend was still running a statement. Then the backend was slow, and its
    connection was not broken.
    """
    async with connections.use() as connection:
        found = await connection.raw.fetchrow(
            SQL["dispel"], lost.pid, lost.began, timeout=_CONNECT_TIMEOUT
        )
        for _ in range(_GOODBYES):
            if not await connection.raw.fetchval(
                SQL["still_there"], lost.pid, lost.began, timeout=_CONNECT_TIMEOUT
            ):
                return found is not None and bool(found["at_work"])
            await asyncio.sleep(_FIRST_PAUSE)
    raise Unavailable(
        f"{connections.location}: cannot terminate the backend with pid {lost.pid}, whose answer"
        " was lost; try again"
    )
