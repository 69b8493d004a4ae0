"""A whole store, rebuilt from the stream, into empty tables; in one transaction, by COPY."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.lifecycle import HELD, TERMINAL, State
from jobqueue.core.queue import MAX_PRIORITY
from jobqueue.core.rebuild import Rebuilt
from jobqueue.core.restore import (
    Restored,
    Standing,
    Told,
    led,
    not_empty,
    standing,
    unused,
)
from jobqueue.core.store import Rules
from jobqueue.stores.postgres import reads
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.following import Position, snapshot
from jobqueue.stores.postgres.heads import kind_of
from jobqueue.stores.postgres.renumbering import including
from jobqueue.stores.postgres.statements import REASON_NUMBERS, SQL, text
from jobqueue.stores.queue_rows import settings_row
from jobqueue.stores.rows import write_labels, write_more

_BATCH = 2_000
_LOCK_TIMEOUT = "2s"
Row = tuple[Any, ...]

_RECORD = (
    "seq", "id", "created_at", "ttl", "timeout", "run_at", "queue", "max_retries", "priority",
    "type", "key", "labels", "payload", "more",
)  # fmt: skip
_LIVE = (
    "seq", "id", "lease", "due", "wake_at", "run_at", "expires_at", "started_at", "updated_at",
    "timeout", "queue", "version", "attempt", "retry_count", "max_retries", "worker", "last_worker",
    "prio", "kind", "ready", "state", "reason", "deaths", "cancel", "error",
)  # fmt: skip
_ENDED = (
    "seq", "completed_at", "started_at", "run_at", "queue", "version", "attempt", "retry_count",
    "worker", "state", "reason", "cancel", "result", "error",
)  # fmt: skip
_EVENT = (
    "seq", "xid", "at", "version", "attempt", "worker", "from_state", "to_state", "reason",
    "detail", "started_at", "due",
)  # fmt: skip
_KEY = ("queue", "key", "id", "expires_at", "fingerprint")


class Restoring:
    """Writes everything, or nothing."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules

    async def restore(self, state: Restored, told: Told) -> None:
        """See ``Store.restore``."""
        _refuse_nul(state)

        async def work(db: Any) -> None:
            async with db.transaction():
                await self._write(db, state, told)

        await self._database.writing.write("restore", work)
        told(len(state.jobs))

    async def _write(self, db: Any, state: Restored, told: Told) -> None:
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
            xid=int(await db.fetchval("SELECT pg_current_xact_id()::text")),
            now=now,
            rules=self._rules,
        )
        for start in range(0, len(state.jobs), _BATCH):
            told(start)
            await batch.write(db, state.jobs[start : start + _BATCH])
        await _copy(
            db,
            "job_key",
            _KEY,
            [
                (batch.queues[key.queue], key.key, key.job.id, key.expires_at, key.fingerprint)
                for key in state.keys
            ],
        )
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
            await _mark(db, batch.xid)

    async def _check_empty(self, db: Any) -> None:
        if await db.fetchval(SQL["led"], self._database.now()):
            raise led()
        for table, what in (("job_record", "jobs"), ("job_key", "idempotency keys")):
            if await db.fetchval(f"SELECT EXISTS (SELECT FROM {table})"):
                raise not_empty(what)
        gone = await db.fetchval("SELECT EXISTS (SELECT FROM queues WHERE deleted)")
        if gone or not unused(await reads.stats(db, None)):
            raise not_empty("queues")


class _Batch:
    """What every row has to know."""

    def __init__(
        self,
        queues: Mapping[str, int],
        workers: Mapping[str, int],
        xid: int,
        now: float,
        rules: Rules,
    ) -> None:
        self.queues = queues
        self.xid = xid
        self.depth: dict[str, Counter[State]] = defaultdict(Counter)
        self._workers = workers
        self._now = now
        self._rules = rules

    async def write(self, db: Any, jobs: Sequence[Rebuilt]) -> None:
        """Write jobs and their events."""
        live, ended, events = [], [], []
        for rebuilt in jobs:
            job = rebuilt.job
            self.depth[job.queue][job.state] += 1
            if job.state in TERMINAL:
                ended.append(self._ended(rebuilt))
            else:
                live.append(self._live(rebuilt, standing(job, self._now, self._rules)))
            events += self._events(rebuilt)
        await _copy(db, "job_record", _RECORD, [self._record(rebuilt) for rebuilt in jobs])
        await _copy(db, "job_live", _LIVE, live)
        await _copy(db, "job_ended", _ENDED, ended)
        await _copy(db, "job_event", _EVENT, events)

    def _worker(self, name: str | None) -> int | None:
        return None if name is None else self._workers[name]

    def _record(self, rebuilt: Rebuilt) -> Row:
        job = rebuilt.job
        return (
            job.seq, job.id, job.created_at, job.ttl, job.timeout, rebuilt.run_at,
            self.queues[job.queue], job.max_retries, job.priority, job.type, job.spec.stored_key,
            write_labels(job.spec), job.payload, write_more(job.spec),
        )  # fmt: skip

    def _live(self, rebuilt: Rebuilt, stands: Standing) -> Row:
        job = rebuilt.job
        held = job.state in HELD
        worker = self._worker(job.worker_id)
        # 1: since its submit, 2: it came back.
        ready = (1 if job.version == 1 else 2) if stands.ready else 0
        return (
            job.seq, job.id, stands.lease, stands.due if held else None,
            None if held else stands.due, job.run_at, job.expires_at, job.started_at,
            job.updated_at, job.timeout, self.queues[job.queue], job.version, job.attempt,
            job.retry_count, job.max_retries, worker if held else None, None if held else worker,
            MAX_PRIORITY - job.priority, kind_of(job.type), ready, int(job.state),
            REASON_NUMBERS[job.reason], rebuilt.deaths, job.cancel_requested, text(job.error),
        )  # fmt: skip

    def _ended(self, rebuilt: Rebuilt) -> Row:
        job = rebuilt.job
        return (
            job.seq, job.completed_at, job.started_at, job.run_at, self.queues[job.queue],
            job.version, job.attempt, job.retry_count, self._worker(job.worker_id), int(job.state),
            REASON_NUMBERS[job.reason], job.cancel_requested, job.result, text(job.error),
        )  # fmt: skip

    def _events(self, rebuilt: Rebuilt) -> list[Row]:
        rows: list[Row] = []
        for event in rebuilt.history:
            failed = rebuilt.failed(event.version)
            rows.append(
                (rebuilt.job.seq, self.xid, event.at, event.version, event.attempt,
                 self._worker(event.worker_id),
                 None if event.from_state is None else int(event.from_state), int(event.to_state),
                 REASON_NUMBERS[event.reason], text(event.detail),
                 failed.started_at if failed else None, failed.next_retry_at if failed else None)
            )  # fmt: skip
        return rows


def _refuse_nul(state: Restored) -> None:
    """PostgreSQL's text has no NUL. Other stores take one in a type or a key."""
    for rebuilt in state.jobs:
        job = rebuilt.job
        for field, said in (("type", job.type), ("idempotency_key", job.key)):
            if said and "\0" in said:
                raise InvalidArgument(
                    field, f"job {job.id}: PostgreSQL cannot keep a text with a NUL character"
                )


async def _copy(db: Any, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    await db.copy_records_to_table(table, columns=columns, records=rows)


async def _queues(db: Any, state: Restored) -> dict[str, int]:
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


async def _workers(db: Any, jobs: Sequence[Rebuilt]) -> dict[str, int]:
    names = {event.worker_id for rebuilt in jobs for event in rebuilt.history} - {None}
    names |= {rebuilt.job.worker_id for rebuilt in jobs} - {None}
    return {name: number for number, name in await db.fetch(SQL["name_workers"], list(names))}


async def _count(db: Any, state: Restored, batch: _Batch) -> None:
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


async def _mark(db: Any, xid: int) -> None:
    """Everything up to this transaction; whatever is open beside it comes later."""
    seen = including(await snapshot(db), xid)
    others = tuple(other for other in seen.open if other != xid)
    here = replace(seen, open=others)
    position = Position(here, here, 0, 0).pack()
    await db.execute(SQL["restore_mark"], str(position), here.above, list(others))
