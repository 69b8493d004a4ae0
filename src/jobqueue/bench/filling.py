"""Write finished jobs into PostgreSQL by SQL, because running millions would take an hour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.stores.named_sql import load_statements

STATEMENTS = load_statements(__package__, name="fill.sql")
_CHUNK = 500_000


async def fill(db: Any, jobs: int, say: Callable[[str], None] = lambda _: None) -> None:
    """Write finished jobs until the highest job number is ``jobs``. Existing jobs are kept."""
    await db.execute("SET synchronous_commit = off")
    queue = await db.fetchval("SELECT id FROM queues WHERE name = $1", DEFAULT_QUEUE)
    worker = await db.fetchval(
        "INSERT INTO worker_name (name) VALUES ('filled')"
        " ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id"
    )
    there = await db.fetchval("SELECT coalesce(max(seq), 0) FROM job_record")
    for first in range(there + 1, jobs + 1, _CHUNK):
        say(f"filling: {first - 1:,} of {jobs:,} finished jobs")
        last = min(jobs, first + _CHUNK - 1)
        async with db.transaction():
            await db.execute(STATEMENTS["records"], first, last, queue)
            await db.execute(STATEMENTS["ends"], first, last, queue, worker)
            await db.execute(STATEMENTS["events"], first, last, worker)
            await db.execute(STATEMENTS["tally"], last - first + 1, queue)
            await db.execute(STATEMENTS["continue"], last + 1)
    for table in ("job_record", "job_ended", "job_event"):
        say(f"filling: vacuum {table}")
        await db.execute(f"VACUUM (ANALYZE) {table}", timeout=None)
