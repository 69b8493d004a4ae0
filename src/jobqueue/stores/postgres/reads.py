"""Rows to domain objects, and the queries that people and faces ask."""

from __future__ import annotations

import json
from typing import Any

from jobqueue.core.job import (
    NO_LABELS,
    Event,
    Held,
    Job,
    Queue,
    QueueStats,
    Worker,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.store import JobFilter
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.statements import REASONS, SQL, STATES

_QUEUE = " JOIN queues AS q ON q.id = r.queue"
# Looked up one by one: see the head of queries.sql.
_LIVE = " LEFT JOIN LATERAL (SELECT * FROM job_live WHERE seq = r.seq OFFSET 0) AS l ON true"
_ENDED = " LEFT JOIN job_ended AS e ON e.seq = r.seq"
_JOBS = f" FROM job_record AS r{_LIVE}{_ENDED}{_QUEUE}"
_LIVE_JOBS = f" FROM job_live AS l JOIN job_record AS r ON r.seq = l.seq{_ENDED}{_QUEUE}"
_ENDED_JOBS = f" FROM job_ended AS e JOIN job_record AS r ON r.seq = e.seq{_LIVE}{_QUEUE}"


async def find(db: Any, job_id: str) -> int | None:
    """A job's number."""
    seq: int | None = await db.fetchval(SQL["find"], job_id)
    return seq


async def get(db: Any, job_id: str) -> Job | None:
    """One job by its id."""
    seq = await find(db, job_id)
    if seq is None:
        return None
    row = await db.fetchrow(f"{SQL['job_columns']}{_JOBS} WHERE r.seq = $1", seq)
    return None if row is None else job_row(row)


async def list_jobs(db: Any, wanted: JobFilter) -> list[Job]:
    """A page, newest first. Jobs in a named state are looked up from its side."""
    if not wanted.states:
        return await _select(db, _JOBS, "r", wanted, "")
    if len(wanted.states) == 1:
        return await _list_states(db, wanted)
    # In one snapshot: a job that moves meanwhile is shown once.
    async with db.transaction(isolation="repeatable_read", readonly=True):
        return await _list_states(db, wanted)


async def _list_states(db: Any, wanted: JobFilter) -> list[Job]:
    jobs: list[Job] = []
    live = [int(state) for state in wanted.states if state not in TERMINAL]
    if live:
        numbers = ", ".join(map(str, live))
        jobs += await _select(db, _LIVE_JOBS, "l", wanted, f"l.state IN ({numbers})")
    if State.DONE in wanted.states:
        jobs += await _select(db, _ENDED_JOBS, "e", wanted, "e.state = 4")
    if State.DEAD_LETTERED in wanted.states:
        jobs += await _select(db, _ENDED_JOBS, "e", wanted, "e.state = 6")
    jobs.sort(key=lambda job: -job.seq)
    return jobs[: wanted.limit]


async def _select(db: Any, source: str, side: str, wanted: JobFilter, condition: str) -> list[Job]:
    if "\0" in f"{wanted.queue}{wanted.type}":
        return []  # PostgreSQL's text has no NUL, so nothing is called that
    conditions: list[str] = [condition] if condition else []
    values: list[object] = []
    if wanted.queue is not None:
        values.append(wanted.queue)
        conditions.append(f"{side}.queue = (SELECT id FROM queues WHERE name = ${len(values)})")
    if wanted.type is not None:
        values.append(wanted.type)
        conditions.append(f"r.type = ${len(values)}")
    if wanted.before_seq is not None:
        values.append(wanted.before_seq)
        conditions.append(f"{side}.seq < ${len(values)}")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    values.append(wanted.limit)
    sql = f"{SQL['job_columns']}{source}{where} ORDER BY {side}.seq DESC LIMIT ${len(values)}"
    return [job_row(row) for row in await db.fetch(sql, *values)]


async def history(db: Any, job_id: str) -> list[Event]:
    """A job's events in order."""
    seq = await find(db, job_id)
    if seq is None:
        return []
    return [event_row(row) for row in await db.fetch(SQL["history"], seq)]


async def stats(db: Any, name: str | None) -> list[QueueStats]:
    """The figures that every write adds to."""
    return [_stats(row) for row in await db.fetch(SQL["stats"], name)]


async def held(db: Any, worker_id: str | None, floor: int = 0) -> list[Held]:
    """Leases in force, of one worker (from a number on) or of all."""
    if worker_id is None:
        return [held_row(row) for row in await db.fetch(SQL["held"])]
    return [held_row(row) for row in await db.fetch(SQL["held_by"], worker_id, floor)]


async def held_from(db: Any, holding: Holding) -> list[Held]:
    """Leases in force, as far as they are known, where reading all is slow."""
    return [held_row(row) for row in await db.fetch(SQL["held_from"], *holding.columns())]


async def workers(db: Any, holding: Holding | None = None) -> list[Worker]:
    """Every worker, by id."""
    if holding is not None and holding.slow:
        rows = await db.fetch(SQL["workers_from"], *holding.columns())
    else:
        rows = await db.fetch(SQL["workers"])
    return [_worker(row) for row in rows]


def held_row(row: Any) -> Held:
    """A lease from its columns."""
    seq, lease, worker, state, cancel = row
    return Held(seq, lease, worker, STATES[state], cancel)


def job_row(row: Any) -> Job:
    """A job from its columns."""
    (job_id, seq, queue, kind, payload, priority, max_retries, state, version, attempt,
     retry_count, created_at, updated_at, run_at, expires_at, ttl, timeout, key, labels, worker,
     cancel, started_at, completed_at, next_retry_at, result, error, reason) = row  # fmt: skip
    return Job(
        id=str(job_id),
        seq=seq,
        queue=queue,
        type=kind,
        payload=payload,
        priority=priority,
        max_retries=max_retries,
        state=STATES[state],
        version=version,
        attempt=attempt,
        retry_count=retry_count,
        created_at=created_at,
        updated_at=updated_at,
        run_at=run_at,
        expires_at=expires_at,
        ttl=ttl,
        timeout=timeout,
        key=key,
        labels=json.loads(labels) if labels else NO_LABELS,
        worker_id=worker,
        cancel_requested=bool(cancel),
        started_at=started_at,
        completed_at=completed_at,
        next_retry_at=next_retry_at,
        result=result,
        error=error or "",
        reason=REASONS[reason],
    )


def event_row(row: Any) -> Event:
    """An event from its columns."""
    job_id, version, before, after, reason, at, attempt, worker, detail, queue = row
    return Event(
        str(job_id),
        version,
        None if before is None else STATES[before],
        STATES[after],
        REASONS[reason],
        at,
        attempt,
        worker,
        detail or "",
        queue,
    )


def _stats(row: Any) -> QueueStats:
    (name, max_retries, ttl, timeout, capacity, retry_profile, weights, paused, created_at,
     *depth, succeeded, failed, run_seconds) = row  # fmt: skip
    queue = Queue(
        name=name,
        max_retries=max_retries,
        ttl=ttl,
        timeout=timeout,
        capacity=capacity,
        retry_profile=retry_profile,
        priority_weights=read_weights(weights),
        paused=paused,
        created_at=created_at,
    )
    return QueueStats(
        queue=queue,
        depth=dict(zip(State, depth, strict=True)),
        processed=succeeded + failed,
        succeeded=succeeded,
        failed=failed,
        run_seconds=run_seconds,
        timed=succeeded + failed,
    )


def read_weights(column: str | None) -> dict[int, int] | None:
    """Priority weights from their column."""
    return {int(k): int(v) for k, v in json.loads(column).items()} if column else None


def _worker(row: Any) -> Worker:
    (worker_id, incarnation, hostname, pid, concurrency, queues, version, link, status,
     registered_at, last_seen, running) = row  # fmt: skip
    info = WorkerInfo(
        id=worker_id,
        incarnation=incarnation,
        hostname=hostname,
        pid=pid,
        concurrency=concurrency,
        queues=tuple(queues),
        version=version,
        link=link,
    )
    return Worker(
        info=info,
        status=WorkerStatus(status),
        registered_at=registered_at,
        last_seen=last_seen,
        running=running,
    )
