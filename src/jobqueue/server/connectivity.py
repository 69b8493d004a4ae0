"""Check that PostgreSQL can be reached, without changing anything in the database."""

from __future__ import annotations

import asyncio

from jobqueue.connect.extras import needed_by
from jobqueue.core.errors import InvalidArgument, Unavailable


async def postgres(dsn: str, timeout: float, field: str) -> str:
    """Connect to PostgreSQL, and describe its version and whether its commits are durable.

    The store itself is not opened, because that would create or change tables. Raises Unavailable
    if PostgreSQL cannot be reached within ``timeout`` seconds.
    """
    with needed_by(field, "asyncpg"):
        import asyncpg
    try:
        async with asyncio.timeout(timeout):
            connection = await asyncpg.connect(dsn)
            try:
                version = await connection.fetchval("SHOW server_version")
                off = [
                    name
                    for name in ("fsync", "synchronous_commit")
                    if await connection.fetchval(f"SHOW {name}") == "off"
                ]
            finally:
                connection.terminate()
    except TimeoutError:
        raise Unavailable(f"PostgreSQL does not answer within {timeout:g} s") from None
    except ValueError:  # its text may have parts of the password in the URL
        raise InvalidArgument(field, "is not a URL that PostgreSQL's client can read") from None
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Unavailable(f"PostgreSQL cannot be reached: {error}") from error
    durable = f"NOT DURABLE: {' and '.join(off)} off" if off else "durable"
    return f"PostgreSQL {version.split()[0]}, {durable}"
