"""Looks at a database with very many jobs, which the tests here share: none of them changes these.

As in test_plans.py, what is counted are the pages that each statement looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import asyncpg
import pytest

from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue
from jobqueue.core.store import JobFilter
from jobqueue.stores.postgres.following import Snapshot, StreamPlace
from jobqueue.stores.postgres.statements import SQL
from jobqueue.stores.postgres.store import PostgresStore
from tests.services.plugin import run_of
from tests.stores.driver import accept
from tests.stores.postgres.plans import FILL, MANY, watch


async def fill(dsn: str) -> None:
    store = PostgresStore(dsn)
    await store.open()
    await store.queues.create(Queue(name="q", retry_profile="scheduler"))
    await store.close()
    db = await asyncpg.connect(dsn)
    await db.execute(FILL)
    await db.execute("ANALYZE")
    await db.close()


@pytest.fixture(scope="module")
def filled(request: pytest.FixtureRequest) -> Iterator[str]:
    databases = run_of(request.config).databases
    name = databases.lend()
    asyncio.run(fill(databases.dsn(name)))
    yield databases.dsn(name)
    databases.give_back(name)


@pytest.fixture
def postgres_dsn(filled: str) -> str:
    return filled


@pytest.mark.parametrize("queue", ["q", None])
async def test_a_page_of_what_is_done_reads_no_more_than_its_windows(
    open_store, db, monkeypatch, queue
):
    plans = await watch(db, monkeypatch)
    store = await open_store()
    plans.seen.clear()
    wanted = JobFilter(queue=queue, states=(State.DONE,), limit=20)
    page = await store.reads.list_jobs(wanted)
    page += await store.reads.list_jobs(replace(wanted, before_seq=page[-1].seq))
    expected = [n for n in range(MANY, 0, -2) if n % 100][:40]
    assert [job.seq for job in page] == expected
    # The news of the worker may be told meanwhile.
    looks = [plan for plan in plans.seen if "pg_notify" not in plan.query]
    assert len(looks) == 4
    for plan in looks:
        # Of ends in rows of their own, a whole window is looked at.
        assert not plan.scanned, (plan.scanned, plan.query)
        assert plan.buffers < 3_000, (plan.buffers, plan.query)


@pytest.mark.req("jq:NFR-012")
async def test_a_follower_reads_what_is_new_and_not_the_rest(open_store, db, monkeypatch):
    plans = await watch(db, monkeypatch)
    store = await open_store()
    read = Snapshot(*await db.fetchrow(SQL["snapshot"]))
    here = StreamPlace(read, read, 0, 0).text()
    job_ids = await accept(store, 5)
    plans.seen.clear()
    for _ in range(10):  # a statement that is asked often gets a plan for any values
        found = await store.stream.events_after(here, 100)
        assert sorted(event.job_id for _, event in found) == sorted(job_ids)
        changes = await store.stream.changes_after(here, 100, 1 << 20)
        assert len(changes.items) == len(job_ids)
    assert len(plans.named("job_event")) >= 3 * 10
    for plan in plans.named("job_event"):
        assert not plan.scanned
        assert plan.buffers < 500, plan.indexes


@pytest.mark.req("jq:NFR-012")
async def test_retention_does_not_look_at_everything_that_waits_for_the_stream(
    open_store, db, monkeypatch
):
    """The lead cannot be renewed meanwhile, and Kafka may be away for days."""
    plans = await watch(db, monkeypatch)
    store = await open_store()
    term = await store.leadership.lead(1, 60.0)
    await store.stream.begin(term)
    plans.seen.clear()
    assert await store.upkeep.prune_done(4e9, 10, term) == 0
    looks = plans.named("SKIP LOCKED")
    assert len(looks) == 2
    for plan in looks:
        assert plan.buffers < 500, plan.buffers
