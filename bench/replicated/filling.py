"""A database with many finished jobs, which is kept for the next run."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable

from bench.replicated.ground import Ground, Site
from jobqueue.bench.filling import STATEMENTS, fill
from jobqueue.stores.postgres.migrate import migrations


@contextlib.asynccontextmanager
async def filled(
    ground: Ground, jobs: int, say: Callable[[str], None]
) -> AsyncIterator[tuple[Site, str]]:
    """A database with so many finished jobs, and its size; one that is there is used again."""
    texts = [one.sql for one in migrations()] + list(STATEMENTS.values())
    version = hashlib.sha256("".join(texts).encode()).hexdigest()[:8]
    async with ground.site(f"filled_{jobs}_{version}") as site:
        if (await site.stats()).succeeded < jobs:
            async with ground.connection(site.name) as db:
                await fill(db, jobs, say)
            await site.settle()
        async with ground.connection(site.name) as db:
            size = await db.fetchval("SELECT pg_size_pretty(pg_database_size(current_database()))")
        yield site, str(size)
