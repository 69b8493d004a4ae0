"""Sorts the errors of the database by what they mean for the caller."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from jobqueue.core.errors import Unavailable
from jobqueue.core.store import StoreAway

# The connection is gone, or the server is going or coming: what was asked may have happened.
LOST: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.IdleSessionTimeoutError,
)
# The server answered, and undid everything: it can simply be tried again.
UNDONE: tuple[type[BaseException], ...] = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.InvalidCachedStatementError,  # a newer version's migration came in between
)
# It will not get better by trying again at once, but an operator can mend it.
REFUSED: tuple[type[BaseException], ...] = (
    asyncpg.InsufficientResourcesError,  # disk full, out of memory, too many connections
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.UndefinedTableError,
)


# Nothing is wrong with what was asked: the server may be back, or have room, by itself.
_AWAY = (*LOST, asyncpg.TooManyConnectionsError)
_DEFAULT_PORT = "5432"


def location(dsn: str) -> str:
    """Return the server that a DSN names, without its login."""
    parts = urlsplit(dsn)
    options = parse_qs(parts.query)
    places = parts.netloc.rpartition("@")[2] or ",".join(options.get("host", ()))
    port = ",".join(options.get("port", ())) or _DEFAULT_PORT
    shown = [
        place if place.startswith("/") or _has_port(place) else f"{place or 'localhost'}:{port}"
        for place in unquote(places).split(",")
    ]
    return f"PostgreSQL at {','.join(shown)}"


def _has_port(place: str) -> bool:
    return place.rpartition("]")[2].rpartition(":")[2].isdigit()


def unavailable(error: BaseException, where: str) -> Unavailable:
    """The error for callers: it did not happen. ``where`` is the server's location."""
    kind = StoreAway if isinstance(error, _AWAY) else Unavailable
    return kind(f"{where}: {said(error)}")


def said(error: BaseException) -> str:
    """The first line of what went wrong."""
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):  # the loop's text repeats the address, or not
        return "connection refused"
    return (str(error).strip() or type(error).__name__).splitlines()[0]
