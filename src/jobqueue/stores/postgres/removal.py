"""Jobs that ended leave, with their history."""

from __future__ import annotations

from typing import Any

from jobqueue.core.lifecycle import State
from jobqueue.core.store import ANY_QUEUE, DoneJobs, Term
from jobqueue.core.stream import unpublished
from jobqueue.stores.postgres import reads
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.leadership import Leadership
from jobqueue.stores.postgres.statements import SQL
from jobqueue.stores.rows import STATES


class Removal:
    """By a person's wish, or because they are old."""

    def __init__(self, database: Database, leadership: Leadership) -> None:
        self._database = database
        self._leadership = leadership

    async def delete_job(self, job_id: str, *, version: int | None = None) -> State | None:
        """See ``Store.delete_job``."""

        async def work(db: Any) -> State | None:
            async with db.transaction():
                seq = await reads.find(db, job_id)
                if seq is None:
                    return None
                row = await db.fetchrow(
                    "SELECT e.state, e.queue, r.key, e.version FROM job_ended AS e"
                    " JOIN job_record AS r ON r.seq = e.seq WHERE e.seq = $1 FOR UPDATE OF e",
                    seq,
                )
                if row is None:
                    live = await db.fetchval("SELECT state FROM job_live WHERE seq = $1", seq)
                    return None if live is None else STATES[live]
                state, queue, key, found = row
                if version not in (None, found):
                    return STATES[state]
                if not await db.fetch(SQL["in_stream"], [seq]):
                    raise unpublished(job_id)
                await db.execute(
                    "DELETE FROM job_key WHERE queue = $1 AND key = $2 AND id = $3",
                    queue, key, job_id,
                )  # fmt: skip
                await self._remove(db, [seq], key_freed=True)
                return STATES[state]

        return await self._database.writing.write("delete_job", work)

    async def prune_done(
        self, completed_before: float, limit: int, term: Term, where: DoneJobs = ANY_QUEUE
    ) -> int:
        """See ``Store.prune_done``."""
        database = self._database

        async def work(db: Any) -> int:
            async with db.transaction():
                await self._leadership.check(db, term)
                rows = await db.fetch(
                    SQL["old_done"], completed_before, limit, database.here(),
                    where.completed_after, list(where.queues), where.others,
                )  # fmt: skip
                if rows:
                    await self._remove(db, [row[0] for row in rows], key_freed=False)
                return len(rows)

        return await database.writing.write("prune_done", work, again=work)

    async def _remove(self, db: Any, seqs: list[int], *, key_freed: bool) -> None:
        await db.execute("SET LOCAL jobqueue.retention = 'on'")
        await db.execute(SQL["remove"], seqs, key_freed, self._database.now())
