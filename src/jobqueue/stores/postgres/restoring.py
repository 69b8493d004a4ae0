"""Write the content of a store, rebuilt from the event stream, into empty tables of PostgreSQL."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jobqueue.core.decide import Live
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import NewJob
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.rebuild import Rebuilt, Restored, Told, led, not_empty, parts, standing, unused
from jobqueue.core.store import Rules
from jobqueue.stores.postgres import reads
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.deciding import END, EVENT, LIVE, end_row, event_row, live_row
from jobqueue.stores.postgres.following import StreamPlace, including, snapshot
from jobqueue.stores.postgres.schedules import row_of
from jobqueue.stores.postgres.statements import SQL, columns
from jobqueue.stores.postgres.submitting import columns_of, field_with_nul
from jobqueue.stores.queue_rows import settings_row
from jobqueue.stores.rows import write_more

# Limits of one statement: its arguments must be smaller than 1 GB, and its time is limited.
_MOST_JOBS = 2_000
_MOST_EVENTS = 10_000
_MOST_BYTES = 16 * 1024 * 1024
_LOCK_TIMEOUT = "2s"


class Restoring:
    """Writes the rebuilt content of a store in one transaction."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules

    async def restore(self, state: Restored, told: Told) -> None:
        _refuse_nul(state)

        async def work(db: Db) -> None:
            async with db.transaction():
                await self._write(db, state, told)

        await self._database.writing.write("restore", work)
        told(len(state.jobs))

    async def _write(self, db: Db, state: Restored, told: Told) -> None:
        await db.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        await db.execute(SQL["restore_lock"])
        await self._check_empty(db)
        for table in ("stream", "outbox", "queue_tally", "queues"):
            await db.execute(f"DELETE FROM {table}")
        now = self._database.now()
        if now is None:
            now = await db.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
        batch = _Batch(
            queues=await _queues(db, state),
            workers=await _workers(db, state.jobs),
            now=now,
            rules=self._rules,
        )
        written = 0
        for part in parts(state.jobs, _MOST_JOBS, _MOST_EVENTS, _MOST_BYTES):
            told(written)
            await batch.write(db, part)
            written += len(part)
        await db.copy_records_to_table(
            "job_key",
            columns=("queue", "key", "id", "expires_at", "fingerprint"),
            records=[
                (batch.queues[key.queue], key.key, key.job_id, key.expires_at, key.fingerprint)
                for key in state.keys
            ],
        )
        for schedule in state.schedules:
            await db.execute(SQL["create_schedule"], *row_of(schedule), False)
        await _count(db, state, batch)
        for table, column, last in (
            ("job_record", "seq", state.last_seq),
            ("outbox", "number", state.last_number),
        ):
            if last:
                await db.execute(SQL["restore_sequence"], table, last, column)
        known = state.identity
        await db.execute(SQL["restore_instance"], known.store, known.generation, known.kept)
        if state.published:
            await _mark(db, int(await db.fetchval("SELECT pg_current_xact_id()::text")))

    async def _check_empty(self, db: Db) -> None:
        if await db.fetchval(SQL["led"], self._database.now()):
            raise led()
        for table, what in (
            ("job_record", "jobs"),
            ("job_key", "idempotency keys"),
            ("schedules", "schedules"),
        ):
            if await db.fetchval(f"SELECT EXISTS (SELECT FROM {table})"):
                raise not_empty(what)
        gone = await db.fetchval("SELECT EXISTS (SELECT FROM queues WHERE deleted)")
        if gone or not unused(await reads.stats(db, None)):
            raise not_empty("queues")


class _Batch:
    """Writes batches of rebuilt jobs, and counts the jobs of each queue by state."""

    def __init__(
        self, queues: Mapping[str, int], workers: Mapping[str, int], now: float, rules: Rules
    ) -> None:
        self.queues = queues
        self.depth: dict[str, Counter[State]] = defaultdict(Counter)
        self._workers = workers
        self._now = now
        self._rules = rules

    async def write(self, db: Db, jobs: Sequence[Rebuilt]) -> None:
        """Write jobs: a new row for each job, followed by an update to its last state."""
        new = [NewJob(rebuilt.id, rebuilt.spec) for rebuilt in jobs]
        await db.execute(
            SQL["restore_records"],
            [rebuilt.created_at for rebuilt in jobs],
            [self.queues[one.spec.queue] for one in new],
            *columns_of(new),
            [one.spec.stored_key for one in new],
            new[0].spec.type,
            [rebuilt.live.seq for rebuilt in jobs],
            [write_more(one.spec) for one in new],
        )
        moved, ended, events = [], [], []
        for rebuilt in jobs:
            live, ready = standing(rebuilt, self._now, self._rules, Live)
            queue, worker = rebuilt.spec.queue, self._worker(live.worker_id)
            self.depth[queue][live.state] += 1
            if live.state in TERMINAL:
                ended.append(end_row(live, self.queues[queue], worker, None))
            else:
                # 1: claimable since its submit; 2: claimable again.
                level = (1 if live.version == 1 else 2) if ready else 0
                moved.append(live_row(live, worker, None, level, rebuilt.updated_at))
            for entry in rebuilt.entries:
                events.append(event_row(live.seq, entry, self._worker(entry[7])))
        unique = {
            (self.queues[spec.queue], spec.unique.stored): (rebuilt.id, rebuilt.live.seq)
            for rebuilt in jobs  # in the order of their numbers: the latest job with a key has it
            if (spec := rebuilt.spec).unique is not None
        }
        if unique:
            await db.execute(
                SQL["restore_unique"],
                [queue for queue, _ in unique],
                [key for _, key in unique],
                [job_id for job_id, _ in unique.values()],
                [seq for _, seq in unique.values()],
                self._now,
            )
        await db.execute(SQL["restore_live"], *columns(moved, LIVE))
        await db.execute(SQL["end"], *columns(ended, END))
        await db.execute(SQL["insert_events"], *columns(events, EVENT))

    def _worker(self, name: str | None) -> int | None:
        return None if name is None else self._workers[name]


def _refuse_nul(state: Restored) -> None:
    for rebuilt in state.jobs:
        field = field_with_nul(rebuilt.spec)
        if field is not None:
            raise InvalidArgument(
                field, f"job {rebuilt.id}: PostgreSQL cannot keep a text with a NUL character"
            )


async def _queues(db: Db, state: Restored) -> dict[str, int]:
    numbers = {}
    for one in state.queues:
        queue = one.queue
        numbers[queue.name] = await db.fetchval(
            SQL["restore_queue"],
            queue.name,
            queue.paused,
            queue.created_at,
            one.deleted,
            *settings_row(queue),
        )
    return numbers


async def _workers(db: Db, jobs: Sequence[Rebuilt]) -> dict[str, int]:
    names = {entry[7] for rebuilt in jobs for entry in rebuilt.entries} - {None}
    return {name: number for number, name in await db.fetch(SQL["name_workers"], list(names))}


async def _count(db: Db, state: Restored, batch: _Batch) -> None:
    for one in state.queues:
        depth, figures = batch.depth[one.queue.name], one.figures
        await db.execute(
            SQL["count"],
            batch.queues[one.queue.name],
            *(depth[state] for state in State),
            figures.succeeded,
            figures.failed,
            figures.run_seconds,
        )


async def _mark(db: Db, xid: int) -> None:
    """Set the stream's mark: the restored events, written by ``xid``, count as published."""
    # Other transactions that are open now come after the mark.
    seen = including(await snapshot(db), xid)
    others = tuple(other for other in seen.open if other != xid)
    here = replace(seen, open=others)
    mark = StreamPlace(here, here, 0, 0).stored()
    await db.execute(SQL["restore_mark"], mark, here.above, list(others))
