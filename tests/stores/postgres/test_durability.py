"""Whether what was accepted survives is said loudly at the start."""

from __future__ import annotations

import asyncio
import logging

import pytest

from jobqueue.stores.postgres.store import PostgresStore


@pytest.mark.parametrize("setting", ["fsync", "synchronous_commit", "full_page_writes"])
async def test_a_server_that_may_lose_jobs_is_warned_of(own_postgres, caplog, setting):
    server = await asyncio.to_thread(own_postgres, {"fsync": "on", setting: "off"})
    store = PostgresStore(server.dsn())
    with caplog.at_level(logging.WARNING):
        await store.open()
    await store.close()
    assert not store.durable
    assert f"NOT DURABLE: PostgreSQL runs with {setting} is off" in caplog.text


async def test_a_durable_server_is_not(own_postgres, caplog):
    server = await asyncio.to_thread(
        own_postgres, {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
    )
    store = PostgresStore(server.dsn())
    with caplog.at_level(logging.WARNING):
        await store.open()
    await store.close()
    assert store.durable
    assert not caplog.text


async def test_only_claims_do_not_wait_for_the_disk(store, db):
    """A claim lost in a crash is handed out again; anything else would be lost."""
    await store.submit([])
    database = store._database
    for runner, expected in ((database.writing, "on"), (database.dispatching, "off")):
        async with runner.connections.use() as one:
            assert await one.raw.fetchval("SHOW synchronous_commit") == expected
