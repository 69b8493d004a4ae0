"""Classify the errors of PostgreSQL by what they mean for the caller."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from jobqueue.core.errors import Unavailable
from jobqueue.core.store import StoreAway

# The connection is lost, or the server is stopping or starting. A write may have been committed.
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
# The server answered and rolled back everything, so the call can be repeated.
UNDONE: tuple[type[BaseException], ...] = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.InvalidCachedStatementError,  # a newer version's migration came in between
)
# To repeat the call does not help, but an operator can correct the reason.
REFUSED: tuple[type[BaseException], ...] = (
    asyncpg.InsufficientResourcesError,  # disk full, out of memory, too many connections
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.UndefinedTableError,
)


# The call itself was correct: the server may become available again without an operator.
_AWAY = (*LOST, asyncpg.TooManyConnectionsError)
_DEFAULT_PORT = "5432"


def location(dsn: str) -> str:
    """Return the hosts and ports in a DSN, without its user and password, for logs and errors."""
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
    """Return the error to raise for a call that had no effect.

    ``where`` is the server's location. The error is StoreAway if the server may become available
    again by itself.
    """
    kind = StoreAway if isinstance(error, _AWAY) else Unavailable
    return kind(f"{where}: {said(error)}")


def said(error: BaseException) -> str:
    """Return the first line of an error's text, or a short reason if it has no text."""
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):  # the text of asyncio may repeat the address
        return "connection refused"
    return (str(error).strip() or type(error).__name__).splitlines()[0]
