"""The drivers of users' own connections to PostgreSQL, each as its users write it.

Each is imported where it is used: programs that are killed many times start with one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

BLOCKING = ["psycopg", "sqlalchemy", "sqlalchemy session", "django"]
ASYNC = ["asyncpg", "asyncpg pool", "psycopg async", "sqlalchemy async", "sqlalchemy async session"]


class RolledBack(Exception):
    """Ends a transaction without its effects."""


def _alchemy_url(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://", 1)


@dataclass
class Own:
    """A connection in a transaction, and a way to run a statement there."""

    connection: Any
    run: Callable[[str], Any]  # awaitable for asynchronous drivers


# -- asynchronous ------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def begun(driver: str, dsn: str) -> AsyncIterator[Own]:
    """A transaction that commits at the end of the block, and rolls back on an exception."""
    async with _OPEN[driver](dsn) as own:
        yield own


@contextlib.asynccontextmanager
async def _asyncpg(dsn: str) -> AsyncIterator[Own]:
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            yield Own(connection, connection.execute)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def _asyncpg_pool(dsn: str) -> AsyncIterator[Own]:
    import asyncpg

    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield Own(connection, connection.execute)


@contextlib.asynccontextmanager
async def _psycopg_async(dsn: str) -> AsyncIterator[Own]:
    import psycopg
    from psycopg.rows import dict_row

    rows: Any = dict_row  # a setting of the user's, which must not matter
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=rows) as connection:
        yield Own(connection, connection.execute)


@contextlib.asynccontextmanager
async def _alchemy_async(dsn: str) -> AsyncIterator[Own]:
    import sqlalchemy
    from sqlalchemy.ext import asyncio as alchemy

    engine = alchemy.create_async_engine(_alchemy_url(dsn, "asyncpg"))
    try:
        async with engine.begin() as connection:
            yield Own(connection, lambda sql: connection.execute(sqlalchemy.text(sql)))
    finally:
        await engine.dispose()


@contextlib.asynccontextmanager
async def _alchemy_async_session(dsn: str) -> AsyncIterator[Own]:
    import sqlalchemy
    from sqlalchemy.ext import asyncio as alchemy

    engine = alchemy.create_async_engine(_alchemy_url(dsn, "psycopg"))
    try:
        async with alchemy.AsyncSession(engine) as session, session.begin():
            yield Own(session, lambda sql: session.execute(sqlalchemy.text(sql)))
    finally:
        await engine.dispose()


_OPEN: dict[str, Callable[[str], contextlib.AbstractAsyncContextManager[Own]]] = {
    "asyncpg": _asyncpg,
    "asyncpg pool": _asyncpg_pool,
    "psycopg async": _psycopg_async,
    "sqlalchemy async": _alchemy_async,
    "sqlalchemy async session": _alchemy_async_session,
}


# -- blocking ----------------------------------------------------------------------------------


@contextlib.contextmanager
def begun_blocking(driver: str, dsn: str) -> Iterator[Own]:
    """The same, with a driver that blocks."""
    with _OPEN_BLOCKING[driver](dsn) as own:
        yield own


@contextlib.contextmanager
def _psycopg(dsn: str) -> Iterator[Own]:
    import psycopg

    with psycopg.connect(dsn) as connection:
        yield Own(connection, connection.execute)


@contextlib.contextmanager
def _alchemy(dsn: str) -> Iterator[Own]:
    import sqlalchemy

    engine = sqlalchemy.create_engine(_alchemy_url(dsn, "psycopg"))
    try:
        with engine.begin() as connection:
            yield Own(connection, lambda sql: connection.execute(sqlalchemy.text(sql)))
    finally:
        engine.dispose()


@contextlib.contextmanager
def _alchemy_session(dsn: str) -> Iterator[Own]:
    import sqlalchemy
    from sqlalchemy import orm

    engine = sqlalchemy.create_engine(_alchemy_url(dsn, "psycopg"))
    session = orm.scoped_session(orm.sessionmaker(engine))
    try:
        with session.begin():
            yield Own(session, lambda sql: session.execute(sqlalchemy.text(sql)))
    finally:
        session.remove()
        engine.dispose()


def django_connection(dsn: str) -> Any:
    """Django's default connection, to this database."""
    import django
    from django.conf import settings
    from django.db import connections

    parts = urlsplit(dsn)
    place = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": dict(place)}, USE_TZ=True)
        django.setup()
    connection = connections["default"]
    connection.close()
    connection.settings_dict.update(place)
    return connection


@contextlib.contextmanager
def _django(dsn: str) -> Iterator[Own]:
    connection = django_connection(dsn)
    from django.db import transaction

    try:
        with transaction.atomic():
            yield Own(connection, lambda sql: connection.cursor().execute(sql))
    finally:
        connection.close()


_OPEN_BLOCKING: dict[str, Callable[[str], contextlib.AbstractContextManager[Own]]] = {
    "psycopg": _psycopg,
    "sqlalchemy": _alchemy,
    "sqlalchemy session": _alchemy_session,
    "django": _django,
}


async def either(
    driver: str,
    dsn: str,
    work: Callable[[Own], Awaitable[Any]],
    blocking: Callable[[Own], Any],
    *,
    commit: bool,
) -> Any:
    """Do the work in a transaction with this driver, in a thread where the driver blocks."""

    def in_thread() -> Any:
        with begun_blocking(driver, dsn) as own:
            done = blocking(own)
            if not commit:
                raise RolledBack
            return done

    with contextlib.suppress(RolledBack):
        if driver in BLOCKING:
            return await asyncio.to_thread(in_thread)
        async with begun(driver, dsn) as own:
            done = await work(own)
            if not commit:
                raise RolledBack
            return done
    return None
