"""Count what the limits of queues still allow, for claims.

A claim first reads the counts without a lock, to plan how many jobs of each queue it takes. Then it
takes an advisory lock of each of these queues, counts again, leaves out the jobs that are too many,
and writes. The number of held jobs is in ``queue_tally``, because every write of a job's state also
writes its difference there. So a limit costs nothing at the end of a job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from jobqueue.core.limits import Allowance
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.queue_cache import Home
from jobqueue.stores.postgres.statements import SQL

# How long a claim waits for another claim's lock. A server that was suspended may keep it longer.
_PATIENCE = "500ms"
BUSY = 0.05  # seconds until the next try, if the wait was too short
_WHOLE_QUEUE = 0  # the key of the bucket of a queue

Allowances = dict[int, Allowance]
"""The starts that the limits of queues still allow, by the queues' numbers."""


class Limiting:
    """Reads the state of limits, takes their locks, and writes the state of their buckets."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def look(self, homes: Collection[Home]) -> Allowances:
        """Count without locks."""

        async def look(db: Db) -> Allowances:
            allowances = await self._count(db, homes)
            await self._write(db, SQL["shorten_buckets"], allowances)  # after a change of a limit
            return allowances

        return await self._database.dispatching.read("limits", look)

    async def lock(self, db: Db, homes: Collection[Home]) -> Allowances:
        """Lock the limits of queues until the transaction ends, then count.

        Raise asyncpg.LockNotAvailableError if other claims hold a lock for too long.
        """
        await db.execute(SQL["lock_limits"], _PATIENCE, sorted(home.id for home in homes))
        return await self._count(db, homes)  # in a new snapshot

    async def _count(self, db: Db, homes: Collection[Home]) -> Allowances:
        limits = {home.id: home.limits for home in homes}
        rows = await db.fetch(SQL["limit_state"], list(limits), self._database.now())
        allowances: Allowances = {}
        for queue, held, full_at, now in rows:
            found = limits[queue]
            assert found is not None
            allowances[queue] = found.allowance(held, full_at, now)
        return allowances

    async def write(self, db: Db, allowances: Allowances) -> None:
        """Write the state of the buckets from which starts were taken."""
        await self._write(db, SQL["put_buckets"], allowances)

    async def _write(self, db: Db, statement: str, allowances: Allowances) -> None:
        buckets = [
            (queue, _WHOLE_QUEUE, full_at)
            for queue, allowed in allowances.items()
            if (full_at := allowed.full_at) is not None
        ]
        if buckets:
            columns = [list(column) for column in zip(*buckets, strict=True)]
            await db.execute(statement, *columns)


def limited(homes: Iterable[Home]) -> list[Home]:
    """Return the queues that have limits."""
    return [home for home in homes if home.limits is not None]


def held_back(homes: Mapping[int, Home], allowances: Allowances) -> dict[str, float]:
    """Return ``Claimed.held_back`` for the queues whose limits allow no further start."""
    return {
        homes[queue].name: allowed.opens_in
        for queue, allowed in allowances.items()
        if not allowed.left
    }
