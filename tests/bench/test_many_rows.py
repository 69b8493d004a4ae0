"""Finished jobs are in nobody's way: what a claim looks at does not grow with their number.

Pages that were looked at are counted, not seconds. ``jq-bench run replicated --only finished``
measures the same with ten million.
"""

from __future__ import annotations

import asyncpg
import pytest

from jobqueue.bench.filling import fill
from jobqueue.bench.scenarios.rates import hand_out
from jobqueue.connect.backends import create_store
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from tests.services.run import Run

JOBS = 5_000
FINISHED = 30_000


async def pages_looked_at(dsn: str) -> int:
    """By everybody, of all tables and indexes. A backend has counted all of it when it ends."""
    db = await asyncpg.connect(dsn)
    try:
        return int(
            await db.fetchval(
                "SELECT sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read, 0)"
                " + coalesce(idx_blks_hit, 0)) FROM pg_statio_user_tables"
            )
        )
    finally:
        await db.close()


async def cost_of_handing_out(dsn: str, finished: int) -> float:
    """Pages for each job, from submit to ASSIGNED."""
    engine = Engine(create_store(dsn), EngineSettings())
    await engine.start()  # makes the queue
    await engine.stop()
    db = await asyncpg.connect(dsn)
    await fill(db, finished)
    await db.close()
    before = await pages_looked_at(dsn)
    engine = Engine(create_store(dsn), EngineSettings())
    await engine.start()
    await hand_out(engine, JOBS)
    await engine.stop()
    return (await pages_looked_at(dsn) - before) / JOBS


@pytest.mark.req("jq:NFR-012")
@pytest.mark.integration
@pytest.mark.slow
async def test_a_job_is_handed_out_at_the_same_cost_among_many_finished_ones(
    services: Run,
):
    databases = services.databases
    costs = []
    for finished in (0, FINISHED):
        name = databases.create()
        try:
            costs.append(await cost_of_handing_out(databases.dsn(name), finished))
        finally:
            databases.drop(name)
    empty, full = costs
    assert full < 1.5 * empty  # indexes are a level deeper
