"""Lines to PostgreSQL that go dead without a word: nothing is refused, and nothing arrives."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from jobqueue.core.errors import Unavailable
from jobqueue.core.job import SubmitStatus, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Claim
from jobqueue.stores.postgres import runner, store
from tests import patience
from tests.stores.driver import accept, new, spec

LONG = patience.longest(60)


async def swallowed(proxy) -> None:
    """Wait until something was sent into the void."""
    async with patience.timeout(20):
        while not proxy.swallowed:
            await asyncio.sleep(0.01)


@pytest.mark.req("jq:NFR-005")
async def test_a_write_goes_through_soon_after_the_network_is_back(
    cuttable, proxy, db, monkeypatch
):
    monkeypatch.setattr(runner, "_ANSWER", patience.stretched(1.0))
    await accept(cuttable)
    proxy.swallows = True
    submitting = asyncio.create_task(cuttable.jobs.submit(new(spec(b"x"))))
    await swallowed(proxy)
    proxy.swallows = False  # the lines that are there have lost a part of what was said
    (result,) = (await patience.wait_for(submitting, 15)).results
    assert result.status is SubmitStatus.ACCEPTED
    assert await db.fetchval("SELECT count(*) FROM job_record") == 2


@pytest.mark.req("jq:NFR-005")
async def test_claims_reports_and_reads_go_through_as_well(cuttable, proxy, monkeypatch):
    monkeypatch.setattr(runner, "_ANSWER", patience.stretched(1.0))
    (job_id,) = await accept(cuttable)
    await cuttable.reads.get(job_id)
    proxy.swallows = True
    claiming = asyncio.create_task(cuttable.jobs.claim([Claim(("q",), ["w"])]))
    reading = asyncio.create_task(cuttable.reads.get(job_id))
    await swallowed(proxy)
    proxy.swallows = False
    (got,) = await patience.wait_for(claiming, 20)
    assert (await patience.wait_for(reading, 15)).id == job_id
    proxy.swallows, proxy.swallowed = True, 0
    reporting = asyncio.create_task(
        cuttable.jobs.apply([Transition.succeeded(got.seq, got.lease, b"ok")])
    )
    await swallowed(proxy)
    proxy.swallows = False
    await patience.wait_for(reporting, 15)
    assert (await cuttable.reads.get(job_id)).state is State.DONE


@pytest.mark.req("jq:NFR-005")
async def test_it_is_not_well_while_writes_are_not_answered(cuttable, proxy, monkeypatch):
    monkeypatch.setattr(runner, "_ANSWER", LONG)
    monkeypatch.setattr(store, "_SILENT", 0.1)
    await accept(cuttable)
    await cuttable.ping()
    proxy.swallows = True
    submitting = asyncio.create_task(cuttable.jobs.submit(new(spec(b"x"))))
    await swallowed(proxy)
    proxy.swallows = False
    async with patience.timeout(20):
        while cuttable._database.unanswered.seconds <= 0.1:
            await asyncio.sleep(0.01)
    with pytest.raises(Unavailable, match="a write has had no answer for"):
        await cuttable.ping()
    proxy.cut_all()
    await patience.wait_for(submitting, 20)
    await cuttable.ping()


async def test_a_statement_that_is_slow_is_given_more_time(store, db, postgres_dsn, monkeypatch):
    """Its line is given up once; the server says that it was at work."""
    monkeypatch.setattr(runner, "_ANSWER", 0.2)
    monkeypatch.setattr(runner, "_READ_IT", 0.1)
    await accept(store)
    blocked = "SELECT pid, now() - query_start > interval '1 s' FROM pg_stat_activity"
    blocked += " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    other = await asyncpg.connect(postgres_dsn)
    async with other.transaction():
        await other.execute("LOCK TABLE job_record IN ACCESS EXCLUSIVE MODE")
        submitting = asyncio.create_task(store.jobs.submit(new(spec(b"x"))))
        seen = set()
        async with patience.timeout(20):
            while True:
                rows = await db.fetch(blocked)
                seen |= {row[0] for row in rows}
                if any(row[1] for row in rows):
                    break
                await asyncio.sleep(0.01)
    await other.close()
    await patience.wait_for(submitting, 20)
    assert len(seen) == 2
    assert await db.fetchval("SELECT count(*) FROM job_record") == 2
