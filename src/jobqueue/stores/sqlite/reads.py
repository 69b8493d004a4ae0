"""Rows to domain objects, and the queries that people and faces ask."""

from __future__ import annotations

import json
import sqlite3

from jobqueue.core.ids import id_from_bytes, id_to_bytes
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
from jobqueue.core.lifecycle import TERMINAL, Reason, State
from jobqueue.core.store import JobFilter
from jobqueue.stores.sqlite.statements import SQL, Row

_JOBS = " FROM rec AS r LEFT JOIN live AS l ON l.seq = r.seq JOIN queue AS q ON q.id = r.queue"
_LIVE_JOBS = (
    " FROM live AS l CROSS JOIN rec AS r ON r.seq = l.seq JOIN queue AS q ON q.id = r.queue"
)


def get(connection: sqlite3.Connection, job_id: str) -> Job | None:
    """One job by its id."""
    sql = f"{SQL['job_columns']}{_JOBS} WHERE r.id = ?"
    row = connection.execute(sql, (id_to_bytes(job_id),)).fetchone()
    return None if row is None else job_row(row)


def list_jobs(connection: sqlite3.Connection, wanted: JobFilter) -> list[Job]:
    """A page, newest first. Unfinished jobs are few, so they are looked up from their side."""
    jobs: list[Job] = []
    live = [int(state) for state in wanted.states if state not in TERMINAL]
    ended = [int(state) for state in wanted.states if state in TERMINAL]
    if live or not wanted.states:
        if not wanted.states:
            jobs += _select(connection, _JOBS, "r.seq", wanted, "")
        else:
            marks = ", ".join(map(str, live))
            jobs += _select(connection, _LIVE_JOBS, "l.seq", wanted, f"l.state IN ({marks})")
    for state in ended:  # one by one, so that the index of dead letters serves
        jobs += _select(connection, _JOBS, "r.seq", wanted, f"r.state = {state}")
    jobs.sort(key=lambda job: -job.seq)
    return jobs[: wanted.limit]


def _select(
    connection: sqlite3.Connection, source: str, seq: str, wanted: JobFilter, condition: str
) -> list[Job]:
    conditions: list[str] = [condition] if condition else []
    values: list[object] = []
    if wanted.queue is not None:
        side = "l" if seq == "l.seq" else "r"
        conditions.append(f"{side}.queue = (SELECT id FROM queue WHERE name = ?)")
        values.append(wanted.queue)
    if wanted.type is not None:
        conditions.append("r.type = ?")
        values.append(wanted.type)
    if wanted.before_seq is not None:
        conditions.append(f"{seq} < ?")
        values.append(wanted.before_seq)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    sql = f"{SQL['job_columns']}{source}{where} ORDER BY {seq} DESC LIMIT ?"
    return [job_row(row) for row in connection.execute(sql, (*values, wanted.limit))]


def history(connection: sqlite3.Connection, job_id: str) -> list[Event]:
    """A job's events in order."""
    return [_event(row) for row in connection.execute(SQL["history"], (id_to_bytes(job_id),))]


def events_after(
    connection: sqlite3.Connection, position: int, limit: int
) -> list[tuple[int, Event]]:
    """Events in commit order: one writer at a time, so position order is commit order."""
    rows = connection.execute(SQL["events_after"], (position, limit))
    return [(row[0], _event(row[1:])) for row in rows]


def stats(connection: sqlite3.Connection, name: str | None) -> list[QueueStats]:
    """The figures that every write keeps."""
    return [_stats(row) for row in connection.execute(SQL["stats"], (name, name))]


def held(connection: sqlite3.Connection, worker_id: str | None) -> list[Held]:
    """Leases in force."""
    return [held_row(row) for row in connection.execute(SQL["held"], (worker_id,))]


def workers(connection: sqlite3.Connection) -> list[Worker]:
    """Every worker, by id."""
    return [_worker(row) for row in connection.execute(SQL["workers"])]


def held_row(row: Row) -> Held:
    """A lease from its columns."""
    seq, lease, worker, state, cancel = row
    return Held(seq, lease, worker, State(state), bool(cancel))


def job_row(row: Row) -> Job:
    """A job from its columns."""
    (raw_id, seq, queue, kind, payload, priority, max_retries, state, version, attempt,
     retry_count, created_at, updated_at, run_at, expires_at, ttl, timeout, key, labels, worker,
     cancel, started_at, completed_at, next_retry_at, result, error, reason) = row  # fmt: skip
    return Job(
        id=id_from_bytes(raw_id),
        seq=seq,
        queue=queue,
        type=kind,
        payload=payload,
        priority=priority,
        max_retries=max_retries,
        state=State(state),
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
        reason=Reason(reason),
    )


def _event(row: Row) -> Event:
    raw_id, version, before, after, reason, at, attempt, worker, detail, queue = row
    return Event(
        id_from_bytes(raw_id),
        version,
        None if before is None else State(before),
        State(after),
        Reason(reason),
        at,
        attempt,
        worker,
        detail or "",
        queue,
    )


def _stats(row: Row) -> QueueStats:
    (name, max_retries, ttl, timeout, capacity, retry_profile, weights, paused, created_at,
     *depth, succeeded, failed, run_seconds, timed) = row  # fmt: skip
    queue = Queue(
        name=name,
        max_retries=max_retries,
        ttl=ttl,
        timeout=timeout,
        capacity=capacity,
        retry_profile=retry_profile,
        priority_weights=read_weights(weights),
        paused=bool(paused),
        created_at=created_at,
    )
    return QueueStats(
        queue=queue,
        depth=dict(zip(State, depth, strict=True)),
        processed=succeeded + failed,
        succeeded=succeeded,
        failed=failed,
        run_seconds=run_seconds,
        timed=timed,
    )


def read_weights(text: str | None) -> dict[int, int] | None:
    """Priority weights from their column."""
    return {int(k): int(v) for k, v in json.loads(text).items()} if text else None


def _worker(row: Row) -> Worker:
    (worker_id, incarnation, hostname, pid, concurrency, queues, version, link, status,
     registered_at, last_seen, running) = row  # fmt: skip
    info = WorkerInfo(
        id=worker_id,
        incarnation=incarnation,
        hostname=hostname,
        pid=pid,
        concurrency=concurrency,
        queues=tuple(json.loads(queues)),
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
