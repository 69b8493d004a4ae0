"""Whether what was accepted survives is said loudly at the start."""

from __future__ import annotations

import asyncio
import logging

import asyncpg
import pytest

from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Transition
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim
from jobqueue.stores.postgres.store import PostgresStore
from tests.stores.driver import new, spec, worker


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
    await store.jobs.submit([])
    database = store._database
    for runner, expected in ((database.writing, "on"), (database.dispatching, "off")):
        async with runner.connections.use() as one:
            assert await one.raw.fetchval("SHOW synchronous_commit") == expected


CRASHES = 3
CLIENTS = 4


async def test_a_crash_at_full_speed_loses_no_answered_write(own_postgres):
    """A claim may be lost: then its jobs are claimed again, and a report under it is refused."""
    durable = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
    server = await asyncio.to_thread(own_postgres, durable)
    store = PostgresStore(server.dsn(), patience=60.0, few=2)
    await store.open()
    answered: dict[str, bytes | None] = {}  # the results of jobs whose end was answered
    over = False

    async def work(client: int) -> None:
        count = 0
        while not over:
            jobs = new(*(spec() for _ in range(50)))
            try:
                submission = await store.jobs.submit(jobs)
                assert all(result.error is None for result in submission.results)
                answered.update((job.id, None) for job in jobs)
                held = await store.jobs.claim([Claim(("q",), ["w"] * 40)])
                moves = []
                for one in held:
                    count += 1
                    result = b"%d %d" % (client, count)
                    moves.append(Transition.succeeded(one.seq, one.lease, result, 0.0))
                applied = await store.jobs.apply(moves)
            except JobQueueError:
                continue  # said to be unknown
            for one, move, outcome in zip(held, moves, applied.outcomes, strict=True):
                if outcome.applied:
                    assert answered.get(one.id) is None, "two results"
                    answered[one.id] = move.result

    try:
        await store.queues.create(Queue(name="q"))
        await store.workers.register(worker(concurrency=10_000))
        clients = [asyncio.create_task(work(n)) for n in range(CLIENTS)]
        for _ in range(CRASHES):
            await asyncio.sleep(0.7)
            await asyncio.to_thread(server.restart, "immediate")
        await asyncio.sleep(0.5)
        over = True
        await asyncio.gather(*clients)
        assert len([one for one in answered.values() if one is not None]) > 100
        db = await asyncpg.connect(server.dsn())
        jobs = {str(row[0]): row[1] for row in await db.fetch("SELECT job_id, result FROM jobs")}
        histories = await db.fetch(
            "SELECT array_agg(version ORDER BY version) FROM job_events GROUP BY job_id"
        )
        await db.close()
        assert jobs.keys() >= answered.keys(), "an answered submit is lost"
        for job_id, result in answered.items():
            if result is not None:
                assert jobs[job_id] == result.decode()
        assert len(histories) == len(jobs)
        assert all(row[0] == list(range(1, len(row[0]) + 1)) for row in histories)
    finally:
        await store.close()
