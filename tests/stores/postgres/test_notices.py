"""Word between replicas: heard, debounced, and missed without harm."""

from __future__ import annotations

import asyncio

import asyncpg

from jobqueue.core.job import Transition
from jobqueue.core.store import Change, Claim
from jobqueue.stores.postgres.heads import Heads
from tests import patience
from tests.stores.driver import accept
from tests.stores.postgres.waiting import until

LISTENERS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid() AND query LIKE 'LISTEN%'"
)


class Ears:
    """What one store was told."""

    def __init__(self, store) -> None:
        self.changes: list[Change] = []
        self._news = asyncio.Event()
        store.on_change(self._hear)

    def _hear(self, change: Change) -> None:
        self.changes.append(change)
        self._news.set()

    async def hear(self, change: Change) -> None:
        async with patience.timeout(20):
            while not any(change in one for one in self.changes):
                self._news.clear()
                await self._news.wait()


async def test_another_replica_hears_of_work_and_of_ends(open_store):
    one, two = await open_store(), await open_store()
    ears = Ears(two)
    await accept(one)
    await ears.hear(Change.WORK)
    (held,) = await two.jobs.claim([Claim(("q",), ["w"])])
    ears = Ears(one)
    await two.jobs.apply([Transition.succeeded(held.seq, held.lease, None, 0.1)])
    await ears.hear(Change.ENDED)


async def test_the_end_of_a_lease_by_somebody_else_is_said(open_store):
    one, two = await open_store(), await open_store()
    await accept(one)
    (held,) = await one.jobs.claim([Claim(("q",), ["w"])])
    await asyncio.sleep(0.1)  # let the word of the registration pass
    ears = Ears(one)
    await two.jobs.apply([Transition.worker_lost(held.seq, held.lease, "gone")])
    await ears.hear(Change.CONTROL)


async def test_a_listener_that_is_killed_comes_back_and_looks(open_store, db):
    """Well before its next question to the server would have failed."""
    one, two = await open_store(), await open_store()

    async def both_listen() -> bool:
        return len(await db.fetch(LISTENERS)) == 2

    await until(both_listen)
    killed = {row[0] for row in await db.fetch(LISTENERS)}
    ears = Ears(two)
    await db.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", list(killed))

    async def both_are_back() -> bool:
        back = {row[0] for row in await db.fetch(LISTENERS)}
        return len(back) == 2 and not back & killed

    await until(both_are_back, 4.5)
    await ears.hear(Change.WORK | Change.ENDED | Change.CONTROL)
    ears.changes.clear()
    await accept(one)
    await ears.hear(Change.WORK)


async def test_a_job_nobody_was_told_of_is_found_by_a_look(open_store, postgres_dsn, db):
    """The word was lost, or it was said by a server that died with it."""
    one, two = await open_store(), await open_store()
    assert await two.jobs.claim([Claim(("q",), ["w"])]) == []
    await one._speaker.close()  # says nothing any more
    (job_id,) = await accept(one)
    found: list[str] = []

    async def found_it() -> bool:
        found.extend(got.id for got in await two.jobs.claim([Claim(("q",), ["w"])]))
        return bool(found)

    await until(found_it)
    assert found == [job_id]


async def test_words_are_debounced(open_store, postgres_dsn):
    """A thousand writes in a burst are a handful of words, and the last one is said."""
    store = await open_store()
    words: list[str] = []
    ear = await asyncpg.connect(postgres_dsn)
    await ear.add_listener("jobqueue", lambda *said: words.append(said[3]))
    try:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(200):
            await accept(store)
        burst = loop.time() - began
        await store._speaker.close()
        await ear.fetchval("SELECT 1")
        # At most one for each pause of 20 ms, the first, and the last at the close.
        assert 1 <= len(words) <= burst / 0.02 + 2
        assert len(words) < 200
    finally:
        await ear.close()


def test_news_that_come_while_a_look_is_under_way_are_not_lost():
    """The look may have been made before them."""
    heads = Heads()
    heads.begin()
    heads.forget()
    heads.looked([], 0.001)
    assert heads.wants_look(known=True)
    heads.begin()
    heads.looked([], 0.001)
    assert not heads.wants_look(known=True)
