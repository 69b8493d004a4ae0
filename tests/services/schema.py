"""What the databases of tests hold before a test begins."""

from __future__ import annotations

from jobqueue.stores.postgres.migrate import migrate


async def prepare(dsn: str) -> None:
    """Fill an empty database, once for each run: the databases of tests are its copies."""
    await migrate(dsn)
