"""Apply the migrations ``migrations/V*__*.sql``, each once, in order, under a lock.

Migrations only add columns, tables and the like. So servers of an older version continue beside
servers of a newer version, and may even be restarted. A migration that breaks older servers names
the oldest version that may still run: with the line ``-- oldest: 3``, servers that know less than
V3 refuse to start.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib import resources
from typing import Any

import asyncpg

from jobqueue.core.errors import Conflict, NotFound
from jobqueue.stores.postgres import layout
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.trouble import LOST, REFUSED, UNDONE, location, unavailable

_log = logging.getLogger("jobqueue.stores.postgres")
_LOCK = 0x6A71_6D69_6772  # "jqmigr"
_NAME = re.compile(r"V(\d+)__(\w+)\.sql")
_OLDEST = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)
_TRIES = 5
_FIRST_WITH_LAYOUT = 15
_NEW = 3  # the layout of a new database

_HISTORY = """
CREATE TABLE schema_history (
    version      int PRIMARY KEY,
    name         text NOT NULL,
    checksum     text NOT NULL,
    oldest       int NOT NULL,
    installed_at timestamptz NOT NULL DEFAULT now(),
    installed_by text NOT NULL DEFAULT current_user
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """Holds one migration: its number, its name and its SQL text."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Return the SHA-256 hash of the text. An applied migration must not change."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def oldest(self) -> int:
        """Return the lowest schema version that a server must know to run after this migration."""
        said = _OLDEST.search(self.sql)
        return int(said[1]) if said else 1


def migrations() -> list[Migration]:
    """Return the migrations of this version of jobqueue, in order."""
    found = []
    for entry in resources.files(__package__).joinpath("migrations").iterdir():
        match = _NAME.fullmatch(entry.name)
        if match:
            found.append(Migration(int(match[1]), match[2], entry.read_text()))
    found.sort(key=lambda one: one.version)
    assert [one.version for one in found] == list(range(1, len(found) + 1))
    return found


async def migrate(dsn: str) -> int:
    """Apply the missing migrations to a database and return the version of its schema."""
    return await _connected(dsn, bring_up)


async def check(dsn: str) -> int:
    """Return the version of a database's schema, without changing the database.

    Raise NotFound or Conflict if a server would have to create or migrate the schema first.
    """
    return await _connected(dsn, look)


async def layout_of(dsn: str, wanted: int | None = None) -> int:
    """Return the layout of a database, which says what kinds of rows servers may write.

    If ``wanted`` is given, change the layout to it first.
    """

    async def work(connection: Db, known: list[Migration]) -> int:
        await look(connection, known)
        if wanted is not None:
            await layout.change(connection, wanted)
        return await layout.read(connection)

    return await _connected(dsn, work)


async def _connected(
    dsn: str, work: Callable[[Db, list[Migration]], Coroutine[Any, Any, int]]
) -> int:
    where = location(dsn)
    try:
        connection = await asyncpg.connect(dsn, timeout=10.0)
    except (*LOST, *REFUSED) as error:
        raise unavailable(error, where) from error
    try:
        return await work(connection, migrations())
    except (*LOST, *REFUSED, *UNDONE) as error:
        raise unavailable(error, where) from error
    finally:
        await connection.close()


async def look(connection: Db, known: list[Migration]) -> int:
    """Return the version of the schema if no migration is missing.

    Raise NotFound for a database without a job queue, and Conflict for a schema that does not fit
    this version of jobqueue.
    """
    rows = await _history(connection)
    if not rows:
        raise NotFound(
            "there is no job queue in this database yet: jq-server creates its tables when it"
            " starts"
        )
    applied = {row[0]: row for row in rows}
    mine, newest = known[-1].version, max(applied)
    if mine not in applied:
        raise Conflict(
            f"the database's schema (V{newest}) is older than this version of jobqueue needs"
            f" (V{mine}): start jq-server of this version, which migrates the database"
        )
    for one in known:
        _check(one, applied[one.version])
    if newest > mine:
        _check_newer(mine, rows)
    return int(newest)


async def _history(connection: Db) -> list[Any] | None:
    if await connection.fetchval("SELECT to_regclass('schema_history')") is None:
        return None
    rows: list[Any] = await connection.fetch(
        "SELECT version, name, checksum, oldest FROM schema_history ORDER BY version"
    )
    return rows


async def bring_up(connection: Db, known: list[Migration]) -> int:
    """Apply the missing migrations and return the version of the schema.

    A lock lets one server migrate at a time. The other servers wait for it.
    """
    await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)
    try:
        await connection.execute("SET client_min_messages = warning")
        rows = await _history(connection)
        if rows is None:
            # Not CREATE TABLE IF NOT EXISTS: a role may use tables but not create any.
            await connection.execute(_HISTORY)
            rows = []
        applied = {row[0]: row for row in rows}
        for one in known:
            if one.version in applied:
                _check(one, applied[one.version])
            else:
                await _apply(connection, one)
        if not applied and known[-1].version >= _FIRST_WITH_LAYOUT:
            await layout.change(connection, _NEW)
        newest = max([*applied, known[-1].version])
        if newest > known[-1].version:
            _check_newer(known[-1].version, rows)
        return int(newest)
    finally:
        await connection.execute("SELECT pg_advisory_unlock($1)", _LOCK)


def _check(one: Migration, applied: Any) -> None:
    if applied[2] != one.checksum:
        raise Conflict(
            f"migration V{one.version}__{one.name} was changed after it was applied to this"
            f" database (checksum {applied[2][:12]}…, the file has {one.checksum[:12]}…);"
            " restore the file, and make a new migration for the change"
        )


def _check_newer(mine: int, rows: list[Any]) -> None:
    oldest = max(row[3] for row in rows)
    if oldest > mine:
        raise Conflict(
            f"the database's schema needs a version of jobqueue that knows V{oldest}; this version"
            f" knows migrations up to V{mine}: update jobqueue"
        )
    _log.warning(
        "the database's schema (V%d) is newer than this version of jobqueue (V%d); continuing,"
        " because the newer schema allows this version",
        rows[-1][0],
        mine,
    )


async def _apply(connection: Db, one: Migration) -> None:
    """Apply a migration in one transaction. Retry if a table is locked for two seconds."""
    # A longer wait for a table's lock would block all later users of the table.
    for left in reversed(range(_TRIES)):
        try:
            async with connection.transaction():
                await connection.execute("SET LOCAL lock_timeout = '2s'")
                await connection.execute(one.sql)
                await connection.execute(
                    "INSERT INTO schema_history (version, name, checksum, oldest)"
                    " VALUES ($1, $2, $3, $4)",
                    one.version, one.name, one.checksum, one.oldest,
                )  # fmt: skip
        except asyncpg.LockNotAvailableError:
            if not left:
                raise
            await asyncio.sleep(1.0)
        else:
            _log.info("applied migration V%d__%s to the database", one.version, one.name)
            return
