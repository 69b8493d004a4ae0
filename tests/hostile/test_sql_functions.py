"""What a database user can do who may call the functions of the schema jq, and nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from jobqueue.core.queue import Queue
from jobqueue.stores.postgres.store import PostgresStore
from tests import patience

pytestmark = pytest.mark.integration

MIB = 1024 * 1024


@pytest_asyncio.fixture
async def store(postgres_dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_dsn, patience=patience.stretched(5.0))
    await store.open()
    await store.queues.create(Queue(name="q"))
    yield store
    await store.close()


@pytest_asyncio.fixture
async def shop(store: PostgresStore, postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute("CREATE ROLE shop")
    await connection.execute("GRANT USAGE ON SCHEMA jq TO shop")
    await connection.execute("GRANT EXECUTE ON FUNCTION jq.submit, jq.submit_jobs TO shop")
    await connection.execute("SET ROLE shop")
    yield connection
    await connection.execute("RESET ROLE")
    await connection.execute("DROP OWNED BY shop")
    await connection.execute("DROP ROLE shop")
    await connection.close()


async def test_labels_of_many_spaces_are_refused(shop: asyncpg.Connection):
    """Before, a job could have labels with 1 GB of spaces, which its claim and each list read."""
    payload = base64.b64encode(b"1").decode()
    largest = {f"{n:02}": "\u20ac" * 255 for n in range(32)}
    spec = json.dumps({"queue": "q", "payload": payload, "labels": {"a": "b"}})
    wide = spec.replace('{"a"', "{" + " " * MIB + '"a"')
    full = json.dumps({"queue": "q", "payload": payload, "labels": largest})
    rows = await shop.fetch("SELECT * FROM jq.submit_jobs($1::json)", f"[{wide}, {full}]")
    assert [(row["status"], row["field"]) for row in rows] == [
        ("invalid", "labels"),
        ("accepted", None),
    ]
