"""Measure what a run costs PostgreSQL: bytes of WAL, dead rows, and wait events of backends."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

from jobqueue.bench.cell import Pressure

_GLANCE = 0.1
_SCANNERS = 2
_TABLES = (
    "job_record", "job_live", "job_ready", "job_held", "job_ended", "job_event", "job_steps",
    "job_done",
)  # fmt: skip
_WAL = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
_DEAD = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables"
_WAITING = """
    SELECT coalesce(wait_event_type, 'none') AS type, count(*) AS backends
    FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()
    GROUP BY 1
"""


class DatabaseWatch:
    """Samples the wait events of a database during a load, and computes the load's costs."""

    def __init__(self, connection: Any, wal: int) -> None:
        self._connection = connection
        self._wal = wal
        self._waiting: Counter[str] = Counter()
        self._looks = 0

    async def look(self) -> None:
        """Sample the wait events of the active backends ten times a second, until cancelled."""
        while True:
            for row in await self._connection.fetch(_WAITING):
                self._waiting[row["type"]] += row["backends"]
            self._looks += 1
            await asyncio.sleep(_GLANCE)

    async def spent(self, jobs: int) -> dict[str, float]:
        """Return WAL bytes per job, dead rows, and the mean number of backends per wait event.

        WAL bytes count from the start of the watch. Dead rows are those at the time of the call.
        """
        wal = int(await self._connection.fetchval(_WAL)) - self._wal
        found = {"dead_rows": float(await self._connection.fetchval(_DEAD))}
        if jobs:
            found["wal_bytes_a_job"] = wal / jobs
        for kind, backends in sorted(self._waiting.items()):
            name = "running" if kind == "none" else f"waiting_{kind.lower()}"
            found[f"backends_{name}"] = backends / max(1, self._looks)
        return found


@contextlib.asynccontextmanager
async def connected(told: Mapping[str, str]) -> AsyncIterator[Any]:
    """Connect to the PostgreSQL that the environment variables in ``told`` name.

    Yields None if ``told`` is empty.
    """
    if not told:
        yield None
        return
    import asyncpg

    connection = await asyncpg.connect(told["JQ_DB_URL"], password=told.get("JQ_DB_PASSWORD"))
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def pressed(told: Mapping[str, str], pressure: Pressure) -> AsyncIterator[None]:
    """Put the given extra work on the database until the block ends."""
    if pressure is Pressure.NONE:
        yield
    elif pressure is Pressure.PINNED:
        async with connected(told) as db, db.transaction(isolation="repeatable_read"):
            await db.fetchval("SELECT count(*) FROM queues")  # takes the snapshot
            yield
    else:
        scanners = [asyncio.create_task(_scan(told)) for _ in range(_SCANNERS)]
        try:
            yield
        finally:
            for one in scanners:
                one.cancel()
            ended = await asyncio.gather(*scanners, return_exceptions=True)
        if failed := [one for one in ended if isinstance(one, Exception)]:
            raise failed[0]  # the pressure was lower than the record says


async def _scan(told: Mapping[str, str]) -> None:
    async with connected(told) as db:
        while True:
            async with db.transaction(isolation="repeatable_read"):
                for table in _TABLES:
                    await db.fetchval(f"SELECT count(*) FROM {table}", timeout=None)


@contextlib.asynccontextmanager
async def watched(connection: Any) -> AsyncIterator[DatabaseWatch | None]:
    """Yield a watch that samples the database until the block ends.

    Yields None if ``connection`` is None. The figures of the watch can be read after the block.
    """
    if connection is None:
        yield None
        return
    watch = DatabaseWatch(connection, int(await connection.fetchval(_WAL)))
    looking = asyncio.create_task(watch.look())
    try:
        yield watch
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
