"""A database with many finished jobs, made by SQL: through the queue it would take an hour."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from bench.replicated.ground import Ground, Site
from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.stores.named_sql import load_statements
from jobqueue.stores.postgres.migrate import migrations

_SQL = load_statements(__package__, "fill.sql")
_CHUNK = 500_000


@contextlib.asynccontextmanager
async def filled(
    ground: Ground, jobs: int, say: Callable[[str], None]
) -> AsyncIterator[tuple[Site, str]]:
    """A database with so many finished jobs, and its size; one that is there is used again."""
    texts = [one.sql for one in migrations()] + list(_SQL.values())
    version = hashlib.sha256("".join(texts).encode()).hexdigest()[:8]
    async with ground.site(f"filled_{jobs}_{version}") as site:
        if (await site.stats()).succeeded < jobs:
            async with ground.connection(site.name) as db:
                await fill(db, jobs, say)
            await site.settle()
        async with ground.connection(site.name) as db:
            size = await db.fetchval("SELECT pg_size_pretty(pg_database_size(current_database()))")
        yield site, str(size)


async def fill(db: Any, jobs: int, say: Callable[[str], None] = lambda _: None) -> None:
    """Write them into a database that has a queue and no other jobs; go on where it was left."""
    await db.execute("SET synchronous_commit = off")
    queue = await db.fetchval("SELECT id FROM queues WHERE name = $1", DEFAULT_QUEUE)
    worker = await db.fetchval(
        "INSERT INTO worker_name (name) VALUES ('filled')"
        " ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id"
    )
    there = await db.fetchval("SELECT coalesce(max(seq), 0) FROM job_ended")
    for first in range(there + 1, jobs + 1, _CHUNK):
        say(f"filling: {first - 1:,} of {jobs:,} finished jobs")
        await _fill_some(db, first, min(jobs, first + _CHUNK - 1), queue, worker)
    for table in ("job_record", "job_ended", "job_event"):
        say(f"filling: vacuum {table}")
        await db.execute(f"VACUUM (ANALYZE) {table}", timeout=None)


async def _fill_some(db: Any, first: int, last: int, queue: int, worker: int) -> None:
    async with db.transaction():
        await db.execute(_SQL["records"], first, last, queue)
        await db.execute(_SQL["ends"], first, last, queue, worker)
        await db.execute(_SQL["events"], first, last, worker)
        await db.execute(_SQL["tally"], last - first + 1, queue)
        await db.execute(_SQL["continue"], last + 1)
