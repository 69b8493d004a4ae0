"""Databases that tests use one after the other: the next test sees nothing of the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim
from jobqueue.stores.postgres.store import PostgresStore
from tests import patience
from tests.services.databases import FREE, Databases
from tests.stores.driver import accept, worker


@pytest.fixture
def databases(services) -> Iterator[Databases]:
    """The run's server, with no database that a test has used."""
    made = Databases(services.databases.dsn("postgres"), services.place.token)
    assert made.template == services.databases.template
    yield made
    for name in made.kept:
        made.drop(name)
    made.close()


async def lend(databases: Databases) -> str:
    return await asyncio.to_thread(databases.lend)


async def give_back(databases: Databases, name: str) -> None:
    await asyncio.to_thread(databases.give_back, name)


async def contents(dsn: str) -> dict[str, list[Any]]:
    connection = await asyncpg.connect(dsn)
    try:
        tables = await connection.fetch(
            "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'S') AND oid >= 16384"
        )
        return {
            name: [tuple(row) for row in await connection.fetch(f"SELECT * FROM {name}")]
            for (name,) in tables
        }
    finally:
        await connection.close()


@pytest.mark.integration
async def test_what_a_store_wrote_is_gone(databases: Databases) -> None:
    name = await lend(databases)
    new = await contents(databases.dsn(name))
    store = PostgresStore(databases.dsn(name))
    await store.open()
    await store.queues.create(Queue(name="q"))
    await store.workers.register(worker())
    await accept(store, 20)
    await store.jobs.claim([Claim(("q",), ["w"] * 9)])
    assert await store.leadership.lead(1, 60.0) is not None
    await store.close()
    assert await contents(databases.dsn(name)) != new
    await give_back(databases, name)
    assert await lend(databases) == name
    assert await contents(databases.dsn(name)) == new


@pytest.mark.integration
async def test_a_connection_that_was_left_open_is_ended_with_its_locks(
    databases: Databases,
) -> None:
    name = await lend(databases)
    left = await asyncpg.connect(databases.dsn(name))
    await left.execute("BEGIN; LOCK TABLE job_record; SELECT pg_advisory_lock(1)")
    await give_back(databases, name)
    assert await lend(databases) == name
    async with patience.timeout(10):
        while not left.is_closed():
            await asyncio.sleep(0.01)


@pytest.mark.integration
@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE mine ()",
        "ALTER TABLE queues ADD COLUMN mine int",
        "ALTER TABLE queues ALTER COLUMN name SET STATISTICS 5",
        "CREATE INDEX ON workers (id)",
        "DROP TABLE outbox CASCADE",
        "ALTER TABLE job_live DISABLE TRIGGER ALL",
        "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE OR REPLACE VIEW queue_depth AS SELECT * FROM queue_depth",
        "CREATE SCHEMA mine",
        "UPDATE instance SET generation = '2'",
        "DELETE FROM schema_history WHERE version = 1",
        "INSERT INTO workers SELECT FROM generate_series(1, 0); ANALYZE workers",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = 64', current_database());"
        " END $$",
    ],
)
async def test_a_database_that_is_not_as_it_was_is_not_used_again(
    databases: Databases, change: str
) -> None:
    name = await lend(databases)
    connection = await asyncpg.connect(databases.dsn(name))
    await connection.execute(change)
    await connection.close()
    await give_back(databases, name)
    assert await lend(databases) != name


@pytest.mark.integration
async def test_a_table_that_has_grown_is_small_again(databases: Databases) -> None:
    size = "SELECT pg_relation_size('worker_name') + pg_indexes_size('worker_name')"
    for _ in range(2):
        name = await lend(databases)
        connection = await asyncpg.connect(databases.dsn(name))
        before = await connection.fetchval(size)
        await connection.execute(
            "INSERT INTO worker_name (name) SELECT n::text FROM generate_series(1, 5000) n"
        )
        assert await connection.fetchval(size) > 10 * before
        await connection.close()
        await give_back(databases, name)
    assert await lend(databases) == name


@pytest.mark.integration
async def test_two_that_are_lent_are_different_and_few_are_kept(databases: Databases) -> None:
    names = [await lend(databases) for _ in range(FREE + 2)]
    assert len(set(names)) == len(names)
    for name in names:
        await give_back(databases, name)
    assert databases.kept == names[2:]
