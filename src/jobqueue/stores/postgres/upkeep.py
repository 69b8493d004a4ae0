"""Finds jobs that are due, deletes old jobs, deletes expired keys and sums up queue counts."""

from __future__ import annotations

import time
from typing import Any

import asyncpg

from jobqueue.core.decide import overdue
from jobqueue.core.lifecycle import State
from jobqueue.core.store import ANY_QUEUE, Change, DoneJobs, Overdue, Term
from jobqueue.core.stream import unpublished
from jobqueue.stores.postgres import reads
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.heads import Heads
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.leadership import PostgresLeadership
from jobqueue.stores.postgres.notices import Speaker, returned
from jobqueue.stores.postgres.queue_cache import QueueCache
from jobqueue.stores.postgres.statements import SQL
from jobqueue.stores.rows import STATES

_EVERY = 1.0  # seconds; expired keys and differences disturb no caller
_KEYS_AT_ONCE = 10_000
_FOLD_EVERY = 500  # writes of this process
# A removal and a lowering of the layout, which moves the ends of jobs to another table, wait for
# each other by this lock.
_RETENTION = (
    "SET LOCAL jobqueue.retention = 'on'; LOCK TABLE job_steps, job_done IN ROW EXCLUSIVE MODE"
)
_TO_DELETE = "SELECT e.state, e.queue, r.key, e.version FROM job_record AS r JOIN"


class Chores:
    """Deletes expired keys, and sums up the changes of queue counts that each write inserts."""

    def __init__(self, database: Database, queue_cache: QueueCache) -> None:
        self._database = database
        self._queue_cache = queue_cache
        self._due_at = 0.0
        self._writes_since_fold = 0

    def wrote(self) -> None:
        """Record that a write has inserted changes of queue counts."""
        self._writes_since_fold += 1

    async def do(self) -> None:
        """Delete expired keys and, after enough writes, sum up counts; at most once in a second."""
        if time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + _EVERY
        now = self._database.now()

        async def work(db: Db) -> None:
            await db.execute(SQL["expire_keys"], now, _KEYS_AT_ONCE)
            if self._queue_cache.limited:
                await db.execute(SQL["expire_buckets"], now)
            if self._writes_since_fold >= _FOLD_EVERY:
                self._writes_since_fold = 0
                await db.execute(SQL["fold"])

        await self._database.writing.write("chores", work, again=work)


class PostgresUpkeep:
    """Implements ``core.store.Upkeep``."""

    def __init__(
        self,
        database: Database,
        heads: Heads,
        holding: Holding,
        leadership: PostgresLeadership,
        speaker: Speaker,
        chores: Chores,
    ) -> None:
        self._database = database
        self._heads = heads
        self._holding = holding
        self._leadership = leadership
        self._speaker = speaker
        self._chores = chores

    async def due(self, limit: int) -> Overdue:
        """Find due jobs, make due delayed jobs claimable, and do the chores."""
        now = self._database.now()

        async def look(db: Db) -> tuple[Any, Any, Any]:
            waiting = await db.fetch(SQL["due_waiting"], now, limit)
            if not self._holding.slow:
                began = time.perf_counter()
                held = await db.fetch(SQL["due_held"], now, limit)
                self._holding.measured(time.perf_counter() - began)
                return waiting, held, await db.fetchrow(SQL["next_due"], now)
            if self._holding.wants_look():
                self._holding.begin()
                began = time.perf_counter()
                rows = await db.fetch(SQL["held_floors"])
                self._holding.looked(map(tuple, rows), time.perf_counter() - began)
            return waiting, *await self._read_holding(db, now, limit)

        waiting, held, (at, *times) = await self._database.writing.read("due", look)
        rows = [*waiting, *held]
        found = [
            overdue(STATES[state], seq, version, lease)
            for seq, state, version, lease, promotable in rows
            if not promotable
        ]
        promoted = 0
        if len(found) < len(rows):
            promoted = await self._promote(limit)
        await self._chores.do()
        next_at = (
            at if len(rows) >= limit else min((t for t in times if t is not None), default=None)
        )
        if next_at is not None and (here := self._database.here()) is not None:
            next_at += here - at  # the caller sleeps by the clock of this machine
        return Overdue(found[:limit], promoted, next_at)

    async def _read_holding(self, db: Db, now: float | None, limit: int) -> tuple[Any, Any]:
        """Read held jobs from the floors on. Return the due ones, the time, and the next times."""
        if pause := self._holding.pause():
            ((at, wake),) = await db.fetch(SQL["next_wake"], now)
            return [], (at, wake, at + pause)
        self._holding.begin()
        began = time.perf_counter()
        rows = await db.fetch(SQL["held_from"], *self._holding.columns())
        self._holding.read(((row[5], row[0]) for row in rows), time.perf_counter() - began)
        ((at, wake),) = await db.fetch(SQL["next_wake"], now)
        timed = [row for row in rows if row[7] is not None]
        due = [(row[0], row[3], row[6], row[1], False) for row in timed if row[7] <= at]
        later = min((row[7] for row in timed if row[7] > at), default=None)
        return due[:limit], (at, wake, later)

    async def _promote(self, limit: int) -> int:
        now = self._database.now()

        async def work(db: Db) -> Any:
            return await db.fetch(SQL["promote"], now, limit)

        async def again(db: Db) -> Any:
            self._heads.forget()  # where the ones were whose answer was lost
            return await work(db)

        rows = await self._database.writing.write("promote", work, again=again)
        heads = {(queue, rank, kind) for queue, rank, kind in rows}
        for head in heads:
            self._heads.lower(head)
        if heads:
            self._speaker.say(Change.WORK, returned(heads))
        return len(rows)

    async def delete_job(self, job_id: str, *, version: int | None = None) -> State | None:
        async def work(db: Db) -> State | None:
            async with db.transaction():
                await db.execute(_RETENTION)
                seq = await reads.find(db, job_id)
                if seq is None:
                    return None
                row = await db.fetchrow(f"{_TO_DELETE} job_ended AS e ON e.seq = r.seq"
                                        " WHERE r.seq = $1 FOR UPDATE OF e", seq)  # fmt: skip
                in_batch = row is None
                if in_batch:
                    row = await db.fetchrow(f"{_TO_DELETE} LATERAL job_done_of(r.seq) AS e ON true"
                                            " WHERE r.seq = $1 FOR UPDATE OF r", seq)  # fmt: skip
                if row is None:
                    live = await db.fetchval("SELECT state FROM job_live_of($1::bigint)", seq)
                    if live is not None:
                        return STATES[live]
                    if await reads.find(db, job_id) is not None:
                        # Each look has a snapshot of its own, and the job moved between two looks.
                        raise asyncpg.SerializationError(f"job {job_id} moved meanwhile")
                    return None
                state, queue, key, found = row
                if version not in (None, found):
                    return STATES[state]
                if not await db.fetch(SQL["in_stream"], [seq]):
                    raise unpublished(job_id)
                await db.execute(
                    "DELETE FROM job_key WHERE queue = $1 AND key = $2 AND id = $3",
                    queue, key, job_id,
                )  # fmt: skip
                if in_batch:
                    await db.execute(SQL["lock_batch"], seq)
                    await db.execute(SQL["take_out"], seq)
                await self._remove(db, [seq], [seq] if in_batch else [], key_freed=True)
                return STATES[state]

        return await self._database.writing.write("delete_job", work)

    async def prune_done(
        self, completed_before: float, limit: int, term: Term, where: DoneJobs = ANY_QUEUE
    ) -> int:
        database = self._database

        async def work(db: Db) -> int:
            async with db.transaction():
                await self._leadership.check(db, term)
                await db.execute(_RETENTION)
                asked = (database.here(), where.completed_after, list(where.queues), where.others)
                found = await db.fetch(SQL["old_done"], completed_before, limit, *asked)
                alone = [row[0] for row in found]
                left = limit - len(alone)
                found = await db.fetch(SQL["old_batches"], completed_before, left, *asked)
                batch = [row[0] for row in found]
                if alone or batch:
                    await self._remove(db, alone + batch, batch, key_freed=False)
                return len(alone) + len(batch)

        return await database.writing.write("prune_done", work, again=work)

    async def _remove(self, db: Db, seqs: list[int], batch: list[int], *, key_freed: bool) -> None:
        await db.execute(SQL["remove"], seqs, key_freed, self._database.now(), batch)
        await db.execute(SQL["lock_steps"], seqs)
        await db.execute(SQL["forget_steps"], seqs)
