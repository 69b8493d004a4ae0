"""Versioned migrations, applied at the start, once, whoever comes first."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets

import asyncpg
import pytest
import pytest_asyncio

from jobqueue.core.errors import Conflict, NotFound, Unavailable
from jobqueue.stores.postgres import migrate as module
from jobqueue.stores.postgres.migrate import Migration, bring_up, look, migrate, migrations
from jobqueue.stores.postgres.statements import REASON_NUMBERS
from jobqueue.stores.postgres.store import PostgresStore
from jobqueue.stores.rows import STATES

pytestmark = pytest.mark.req("jq:NFR-020")

MORE = Migration(len(migrations()) + 1, "more", "CREATE TABLE more (id int); SELECT 1;")


@pytest_asyncio.fixture
async def empty(empty_postgres_dsn):
    connection = await asyncpg.connect(empty_postgres_dsn)
    yield connection
    await connection.close()


async def applied(connection) -> list[int]:
    rows = await connection.fetch("SELECT version FROM schema_history ORDER BY version")
    return [row[0] for row in rows]


async def tables(connection) -> set[str]:
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return {row[0] for row in rows}


async def test_replicas_that_start_at_once_apply_each_migration_once(empty_postgres_dsn, empty):
    stores = [PostgresStore(empty_postgres_dsn) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    for store in stores:
        await store.close()
    assert await applied(empty) == [one.version for one in migrations()]


async def test_a_second_start_changes_nothing(postgres_dsn, db):
    before = await db.fetch("SELECT * FROM schema_history")
    assert await migrate(postgres_dsn) == migrations()[-1].version
    assert await db.fetch("SELECT * FROM schema_history") == before


async def test_a_store_that_only_looks_creates_nothing(empty_postgres_dsn, empty):
    store = PostgresStore(empty_postgres_dsn, create=False)
    with pytest.raises(NotFound, match="no job queue in this database yet: jq-server creates"):
        await store.open()
    assert await tables(empty) == set()


async def test_a_store_that_only_looks_changes_no_older_schema(postgres_dsn, db, monkeypatch):
    before = await applied(db)
    monkeypatch.setattr(module, "migrations", lambda: [*migrations(), MORE])
    looking = PostgresStore(postgres_dsn, create=False)
    with pytest.raises(Conflict, match=rf"\(V{before[-1]}\) is older .* needs \(V{MORE.version}\)"):
        await looking.open()
    assert await applied(db) == before
    assert "more" not in await tables(db)
    starting = PostgresStore(postgres_dsn)
    await starting.open()
    await starting.close()
    assert await applied(db) == [*before, MORE.version]
    await looking.open()
    assert await looking.queues.stats() == []
    await looking.close()


async def test_a_store_that_only_looks_heeds_what_a_newer_schema_says(postgres_dsn, db):
    needs = dataclasses.replace(MORE, sql=f"-- oldest: {MORE.version}\n{MORE.sql}")
    await bring_up(db, [*migrations(), needs])
    with pytest.raises(Conflict, match=f"knows V{MORE.version}.*update jobqueue"):
        await PostgresStore(postgres_dsn, create=False).open()


async def test_a_migration_that_was_changed_is_refused(db):
    *others, last = migrations()
    changed = [*others, dataclasses.replace(last, sql=last.sql + "\n")]
    for work in (bring_up, look):
        with pytest.raises(Conflict, match=rf"V{last.version}__{last.name} was changed"):
            await work(db, changed)
    # The lock is given back: the next one is not kept waiting.
    assert await bring_up(db, migrations()) == last.version


async def test_a_migration_that_fails_leaves_nothing(empty):
    broken = Migration(MORE.version, "broken", "CREATE TABLE half (id int); SELECT 1 / 0;")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await bring_up(empty, [*migrations(), broken])
    assert "half" not in await tables(empty)
    assert await applied(empty) == [one.version for one in migrations()]
    await bring_up(empty, [*migrations(), MORE])
    assert "more" in await tables(empty)


async def test_a_migration_that_is_interrupted_leaves_nothing(empty_postgres_dsn, empty):
    slow = Migration(1, "slow", "CREATE TABLE half (id int); SELECT pg_sleep(60);")
    victim = await asyncpg.connect(empty_postgres_dsn)
    start = asyncio.create_task(bring_up(victim, [slow]))
    while not await empty.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%'"
        " AND state = 'active' AND pid = $1",
        victim.get_server_pid(),
    ):
        await asyncio.sleep(0.01)
    await empty.execute("SELECT pg_terminate_backend($1)", victim.get_server_pid())
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await start
    await bring_up(empty, migrations())
    assert "half" not in await tables(empty)


async def test_an_older_replica_goes_on_with_a_warning(postgres_dsn, db, caplog):
    await bring_up(db, [*migrations(), MORE])
    with caplog.at_level(logging.WARNING):
        store = PostgresStore(postgres_dsn)
        await store.open()
        await store.ping()
        await store.close()
    assert "newer than this version of jobqueue" in caplog.text


async def test_an_older_replica_stays_out_where_a_migration_says_so(postgres_dsn, db):
    needs = dataclasses.replace(MORE, sql=f"-- oldest: {MORE.version}\n{MORE.sql}")
    await bring_up(db, [*migrations(), needs])
    with pytest.raises(Conflict, match=f"knows V{MORE.version}.*update jobqueue"):
        await migrate(postgres_dsn)


async def test_a_table_that_is_in_use_is_not_waited_for_without_end(db, postgres_dsn, monkeypatch):
    """Whoever comes after a change that waits for a table waits as well."""
    monkeypatch.setattr(module, "_TRIES", 1)
    change = Migration(MORE.version, "change", "ALTER TABLE workers ADD COLUMN more int;")
    monkeypatch.setattr(module, "migrations", lambda: [*migrations(), change])
    transaction = db.transaction()
    await transaction.start()
    await db.execute("LOCK TABLE workers IN ACCESS SHARE MODE")
    with pytest.raises(Unavailable, match="lock timeout"):
        await migrate(postgres_dsn)
    await transaction.rollback()
    assert await migrate(postgres_dsn) == change.version


async def test_a_replica_at_work_survives_another_ones_migration(store, db):
    await store.queues.stats()
    await bring_up(
        db,
        [*migrations(), dataclasses.replace(MORE, sql="ALTER TABLE job_live ADD more int;")],
    )
    await store.upkeep.due(10)
    assert await store.queues.stats()


async def test_a_role_that_may_not_create_tables_can_start(postgres_dsn, db):
    clerk = f"clerk_{secrets.token_hex(4)}"  # roles belong to all databases of a server
    await db.execute(f"CREATE ROLE {clerk} LOGIN")
    try:
        await db.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        rights = "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public"
        await db.execute(f"GRANT {rights} TO {clerk}")
        store = PostgresStore(postgres_dsn.replace("postgres@", f"{clerk}@"))
        await store.open()
        await store.ping()
        await store.close()
    finally:
        await db.execute(f"DROP OWNED BY {clerk}; DROP ROLE {clerk}")


async def test_numbers_in_rows_are_those_of_the_code(db):
    """Rows keep them for ever."""
    states = {row[0]: row[1] for row in await db.fetch("SELECT state, name FROM state_name")}
    assert states == {number: state.name for number, state in STATES.items()}
    reasons = {row[1]: row[0] for row in await db.fetch("SELECT reason, name FROM reason_name")}
    assert reasons == {reason.value: number for reason, number in REASON_NUMBERS.items()}
