"""Write the content of a store, rebuilt from the event stream, into an empty SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from jobqueue.core.decide import Live
from jobqueue.core.ids import id_to_bytes
from jobqueue.core.lifecycle import TERMINAL
from jobqueue.core.rebuild import (
    Rebuilt,
    Restored,
    RestoredQueue,
    Told,
    led,
    not_empty,
    standing,
    unused,
)
from jobqueue.core.store import Rules
from jobqueue.stores.queue_rows import settings_row
from jobqueue.stores.sqlite import reads, schedules, streaming, writes
from jobqueue.stores.sqlite.statements import SQL, Row, write_rows

_BATCH = 1_024


def restore(db: sqlite3.Connection, state: Restored, now: float, rules: Rules, told: Told) -> None:
    """Write the rebuilt content of a store in the open transaction.

    Raise Conflict if the file is not empty. ``told`` is called with the number of jobs written.
    """
    _check_empty(db, now)
    streaming.forget(db)
    db.execute("DELETE FROM queue")
    queues = {one.queue.name: _write_queue(db, one) for one in state.queues}
    writer = writes.JobWriter(db, now, rules)
    for start in range(0, len(state.jobs), _BATCH):
        told(start)
        _write_jobs(db, state.jobs[start : start + _BATCH], queues, now, rules, writer)
    writer.finish()
    keys = [
        (queues[key.queue], key.key, key.seq, id_to_bytes(key.job_id), key.fingerprint,
         key.expires_at) for key in state.keys
    ]  # fmt: skip
    db.executemany(SQL["put_key"], keys)
    for schedule in state.schedules:
        db.execute(SQL["create_schedule"], schedules.row_of(schedule))
    for table, last in (("rec", state.last_seq), ("outbox", state.last_number)):
        if not db.execute(SQL["raise_sequence"], (last, table)).rowcount:
            db.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table, last))
    known = state.identity
    sql = "UPDATE instance SET id = ?, generation = ?, continues = ?"
    db.execute(sql, (known.store, known.generation, known.kept))
    if state.published:
        db.execute(SQL["restore_mark"])
    told(len(state.jobs))


def _check_empty(db: sqlite3.Connection, now: float) -> None:
    holder, _, until = db.execute(SQL["leader"]).fetchone()
    if holder is not None and until > now:
        raise led()
    for table, what in (
        ("rec", "jobs"),
        ("idempotency", "idempotency keys"),
        ("schedule", "schedules"),
    ):
        if db.execute(f"SELECT EXISTS (SELECT 1 FROM {table})").fetchone()[0]:
            raise not_empty(what)
    gone = db.execute("SELECT EXISTS (SELECT 1 FROM queue WHERE deleted = 1)").fetchone()[0]
    if gone or not unused(reads.stats(db)):
        raise not_empty("queues")


def _write_queue(db: sqlite3.Connection, one: RestoredQueue) -> int:
    queue, figures = one.queue, one.figures
    row = db.execute(
        SQL["restore_queue"],
        (queue.name, int(queue.paused), queue.created_at, int(one.deleted), figures.succeeded,
         figures.failed, figures.run_seconds, figures.succeeded + figures.failed,
         *settings_row(queue)),
    ).fetchone()  # fmt: skip
    return int(row[0])


def _write_jobs(
    db: sqlite3.Connection, jobs: Sequence[Rebuilt], queues: dict[str, int], now: float,
    rules: Rules, writer: writes.JobWriter,
) -> None:  # fmt: skip
    """Write jobs: a new row for each job, followed by an update to its last state."""
    records: list[Row] = []
    new: list[Row] = []
    keyed: list[Row] = []
    moved: list[Row] = []
    ended: list[Row] = []
    events: list[Row] = []
    for rebuilt in jobs:
        live, ready = standing(rebuilt, now, rules, Live)
        spec, queue = rebuilt.spec, queues[rebuilt.spec.queue]
        writer.enter(queue, None, live.state)
        raw_id = id_to_bytes(rebuilt.id)
        records.append(writes.record_row(live.seq, raw_id, queue, spec, rebuilt.created_at))
        if live.state in TERMINAL:
            ended.append(writes.end_row(live))
        else:
            row = writes.new_row(live, queue, spec, ready, rebuilt.updated_at)
            if spec.concurrency_key is None:
                new.append(row)
            else:
                keyed.append((*row, spec.concurrency_key))
            moved.append(writes.live_row(live, ready, rebuilt.updated_at))
        events += writes.event_rows(live.seq, rebuilt.entries)
        if spec.unique is not None:  # the latest job with a key has it
            db.execute(SQL["put_unique_key"], (queue, spec.unique.stored, live.seq))
    write_rows(db, "insert_records", records)
    write_rows(db, "insert_live", new)
    write_rows(db, "insert_keyed", keyed)
    db.executemany(SQL["update_live"], moved)
    write_rows(db, "end_records", ended)
    write_rows(db, "insert_events", events)
