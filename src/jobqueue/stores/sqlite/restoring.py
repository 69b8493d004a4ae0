"""A whole store, rebuilt from the stream, into an empty file; in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from jobqueue.core.ids import id_to_bytes
from jobqueue.core.lifecycle import TERMINAL
from jobqueue.core.queue import MAX_PRIORITY
from jobqueue.core.rebuild import Rebuilt
from jobqueue.core.restore import (
    Restored,
    RestoredQueue,
    Standing,
    Told,
    led,
    not_empty,
    standing,
    unused,
)
from jobqueue.core.store import Rules
from jobqueue.stores.queue_rows import settings_row
from jobqueue.stores.rows import write_labels, write_more
from jobqueue.stores.sqlite import outbox, reads
from jobqueue.stores.sqlite.statements import SQL, Row, write_rows
from jobqueue.stores.sqlite.writes import Tally

_BATCH = 1_024


def restore(db: sqlite3.Connection, state: Restored, now: float, rules: Rules, told: Told) -> None:
    """Write everything; Conflict if there is something."""
    _check_empty(db, now)
    outbox.end(db)
    db.execute("DELETE FROM queue")
    queues = {one.queue.name: _queue(db, one) for one in state.queues}
    tally = Tally()
    for start in range(0, len(state.jobs), _BATCH):
        told(start)
        _write(db, state.jobs[start : start + _BATCH], queues, now, rules, tally)
    tally.write(db)
    db.executemany(
        SQL["put_key"],
        (
            (queues[key.queue], key.key, key.job.seq, id_to_bytes(key.job.id), key.fingerprint,
             key.expires_at)
            for key in state.keys
        ),
    )  # fmt: skip
    for table, last in (("rec", state.last_seq), ("outbox", state.last_number)):
        if not db.execute(SQL["raise_sequence"], (last, table)).rowcount:
            db.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table, last))
    known = state.identity
    db.execute(
        "UPDATE instance SET id = ?, generation = ?, continues = ?",
        (known.store, known.generation, known.kept),
    )
    if state.published:
        db.execute(SQL["restore_mark"])
    told(len(state.jobs))


def _check_empty(db: sqlite3.Connection, now: float) -> None:
    holder, _, until = db.execute(SQL["leader"]).fetchone()
    if holder is not None and until > now:
        raise led()
    for table, what in (("rec", "jobs"), ("idempotency", "idempotency keys")):
        if db.execute(f"SELECT EXISTS (SELECT 1 FROM {table})").fetchone()[0]:
            raise not_empty(what)
    gone = db.execute("SELECT EXISTS (SELECT 1 FROM queue WHERE deleted = 1)").fetchone()[0]
    if gone or not unused(reads.stats(db, None)):
        raise not_empty("queues")


def _queue(db: sqlite3.Connection, one: RestoredQueue) -> int:
    queue, figures = one.queue, one.figures
    row = db.execute(
        SQL["restore_queue"],
        (queue.name, int(queue.paused), queue.created_at, int(one.deleted), figures.succeeded,
         figures.failed, figures.run_seconds, figures.succeeded + figures.failed,
         *settings_row(queue)),
    ).fetchone()  # fmt: skip
    return int(row[0])


def _write(
    db: sqlite3.Connection,
    jobs: Sequence[Rebuilt],
    queues: dict[str, int],
    now: float,
    rules: Rules,
    tally: Tally,
) -> None:
    records: list[Row] = []
    live: list[Row] = []
    events: list[Row] = []
    for rebuilt in jobs:
        job = rebuilt.job
        queue = queues[job.queue]
        tally.enter(queue, None, job.state)
        records.append(_record(rebuilt, queue))
        if job.state not in TERMINAL:
            live.append(_live(rebuilt, queue, standing(job, now, rules)))
        events += _events(rebuilt)
    write_rows(db, "restore_records", records)
    write_rows(db, "restore_live", live)
    write_rows(db, "insert_events", events)


def _record(rebuilt: Rebuilt, queue: int) -> Row:
    job = rebuilt.job
    head = (
        job.seq, id_to_bytes(job.id), queue, job.type, job.payload, write_labels(job.spec),
        write_more(job.spec), job.priority, job.max_retries, job.ttl, job.timeout,
        job.spec.stored_key, job.created_at,
    )  # fmt: skip
    if job.state not in TERMINAL:
        return (*head, *(None,) * 12)
    return (
        *head, int(job.state), job.version, job.attempt, job.retry_count, job.worker_id, job.run_at,
        int(job.cancel_requested), job.started_at, job.completed_at, job.result, job.error or None,
        job.reason.value,
    )  # fmt: skip


def _live(rebuilt: Rebuilt, queue: int, stands: Standing) -> Row:
    job = rebuilt.job
    return (
        job.seq, queue, job.type, MAX_PRIORITY - job.priority, int(stands.ready), int(job.state),
        job.version, job.attempt, job.retry_count, job.max_retries, stands.lease, job.worker_id,
        int(job.cancel_requested), rebuilt.deaths, job.timeout, job.run_at, job.expires_at,
        job.started_at, job.updated_at, stands.due, job.error or None, job.reason.value,
    )  # fmt: skip


def _events(rebuilt: Rebuilt) -> list[Row]:
    seq = rebuilt.job.seq
    rows: list[Row] = []
    for event in rebuilt.history:
        failed = rebuilt.failed(event.version)
        due = failed.next_retry_at if failed else None
        rows.append(
            (seq, event.version, None if event.from_state is None else int(event.from_state),
             int(event.to_state), event.reason.value, event.at, event.attempt, event.worker_id,
             event.detail or None, failed.started_at if failed else None,
             rebuilt.run_at if event.version == 1 else due)
        )  # fmt: skip
    return rows
