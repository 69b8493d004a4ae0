"""Anybody who may connect to the database may send hints to servers. None stops their claims."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from jobqueue.core.queue import Queue
from jobqueue.core.store import Change, Claim
from jobqueue.stores.postgres.heads import kind_of
from jobqueue.stores.postgres.notices import CHANNEL
from jobqueue.stores.postgres.store import PostgresStore
from tests import patience
from tests.stores.driver import new, spec, worker

pytestmark = pytest.mark.integration

KIND = kind_of("")
HINTS = [
    f"[0,1,[[1,9,{KIND},-99999999999999999999]]]",
    "[0,1,[[1,9,99999999999999999999,0]]]",
    f"[0,1,[[1,99999,{KIND},0]]]",
    f"[0,1,[[99999999999,9,{KIND},0]]]",
    f"[0,1,[[1,9,{KIND},1e999]]]",
    f"[0,1,[[1,9,{KIND},NaN]]]",
    "[0,1,[[1,9,null,0]]]",
    "[0,1,[[1,9]]]",
    "[0,1,[1]]",
    "[0,1,{}]",
    "[0,1e999,null]",
    "[0,[],null]",
    "[0,99999999999999999999999,null]",
    "[" * 7_000,
    "\u00e9",
]


@pytest_asyncio.fixture
async def store(postgres_dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_dsn, patience=patience.stretched(5.0))
    await store.open()
    await store.queues.create(Queue(name="q"))
    await store.workers.register(worker())
    yield store
    await store.close()


async def test_no_hint_stops_claims(
    store: PostgresStore, postgres_dsn: str, caplog: pytest.LogCaptureFixture
):
    """Before, numbers that have no column failed each claim until the next full look."""
    heard = asyncio.Queue[Change]()

    async def say(hint: str) -> None:
        """Send a hint, and wait until it was heard: the one that is sent after it was."""
        for text in (hint, f"[0,{Change.ENDED.value},null]"):
            await stranger.execute("SELECT pg_notify($1, $2)", CHANNEL, text)
        while await heard.get() is not Change.ENDED:
            pass

    store.on_change(heard.put_nowait)
    stranger = await asyncpg.connect(postgres_dsn)
    try:
        await stranger.execute("CREATE ROLE stranger")
        await stranger.execute("SET ROLE stranger")
        while heard.empty():  # until the store listens
            await stranger.execute(
                "SELECT pg_notify($1, $2)", CHANNEL, f"[0,{Change.CONTROL.value},null]"
            )
            await asyncio.sleep(0.02)
        for hint in HINTS:
            await store.jobs.submit(new(spec()))
            while not await store.jobs.claim([Claim(("q",), ["w"])]):
                pass
            await store.jobs.submit(new(spec()))
            with caplog.at_level(logging.WARNING):
                await say(hint)
            assert len(await store.jobs.claim([Claim(("q",), ["w"])])) == 1, hint[:80]
        assert not [one.message for one in caplog.records if "_hear" in one.message]
    finally:
        await stranger.execute("RESET ROLE")
        await stranger.execute("DROP ROLE stranger")
        await stranger.close()
