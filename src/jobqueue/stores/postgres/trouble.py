"""What went wrong with the database, sorted by what it means for the caller."""

from __future__ import annotations

import asyncpg

from jobqueue.core.errors import Unavailable

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


def unavailable(error: BaseException) -> Unavailable:
    """The error for callers: it did not happen."""
    said = str(error).strip() or type(error).__name__
    return Unavailable(f"PostgreSQL: {said.splitlines()[0]}")
