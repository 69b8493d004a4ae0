"""The event stream's side of the file: what it reads, and how far it has come."""

from __future__ import annotations

import json
import sqlite3
from itertools import chain

from jobqueue.core.identity import Identity, identity_of
from jobqueue.core.queue import Queue
from jobqueue.core.store import Lag
from jobqueue.core.stream import Changes, QueueChange, bytes_of
from jobqueue.stores.outbox_rows import job_event, outbox_item
from jobqueue.stores.positions import pack, unpack
from jobqueue.stores.queue_rows import queue_body
from jobqueue.stores.sqlite import reads
from jobqueue.stores.sqlite.statements import SQL


def mark(db: sqlite3.Connection) -> int | None:
    """How far the stream has come; None: there is none."""
    row = db.execute("SELECT event, entry FROM stream").fetchone()
    return None if row is None else pack(*row)


def identity(db: sqlite3.Connection) -> Identity:
    """Which store this is."""
    return identity_of(*db.execute("SELECT id, generation, continues FROM instance").fetchone())


def begin(db: sqlite3.Connection, now: float) -> int:
    """Make the mark, unless it is there; every queue counts as just created."""
    there = mark(db)
    if there is not None:
        return there
    db.execute("INSERT INTO stream VALUES (1, 0, 0, 0)")
    for stats in reads.stats(db, None):
        body = queue_body(stats.queue)
        db.execute(
            "INSERT INTO outbox (after, kind, at, body) VALUES (0, ?, ?, ?)",
            (int(QueueChange.CREATED), now, body),
        )
    db.execute(SQL["flags_to_outbox"], (now,))
    return 0


def end(db: sqlite3.Connection) -> None:
    """There is no stream any more."""
    db.execute("DELETE FROM stream")
    db.execute("DELETE FROM outbox")


def put_queue(db: sqlite3.Connection, change: QueueChange, queue: Queue, now: float) -> None:
    """A queue was changed."""
    db.execute(SQL["put_outbox"], (int(change), now, queue_body(queue)))


def put_cancel(db: sqlite3.Connection, seq: int, now: float) -> None:
    """A running job was flagged."""
    db.execute(SQL["put_cancel"], (now, seq))


def put_deleted(
    db: sqlite3.Connection, seqs: list[tuple[int]], now: float, *, key_freed: bool
) -> None:
    """Jobs are about to be removed."""
    freed = json.dumps(key_freed)
    db.executemany(SQL["put_deleted"], [(now, freed, seq) for (seq,) in seqs])


def passed(db: sqlite3.Connection, seq: int) -> bool:
    """Whether the stream, if there is one, has got all of a job's events."""
    return db.execute(SQL["passed"], (seq,)).fetchone() is not None


def move(db: sqlite3.Connection, position: int, refused: int) -> None:
    """The stream has come that far."""
    event, entry = unpack(position)
    db.execute(
        "UPDATE stream SET event = ?, entry = ?, refused = refused + ?", (event, entry, refused)
    )
    db.execute("DELETE FROM outbox WHERE after < ?1 OR after = ?1 AND number <= ?2", (event, entry))


def changes_after(
    db: sqlite3.Connection, position: int, limit: int, size: int, now: float
) -> Changes:
    """Events and entries in the order they were written. A read has one snapshot for both."""
    event, entry = unpack(position)
    found = Changes([], position)
    events = db.execute(SQL["changes"], (event, limit, now))
    beside = iter(db.execute(SQL["outbox_after"], (event, entry, limit)).fetchall())
    held = next(beside, None)
    for row in chain(events, (None,)):
        while held is not None and (row is None or held[0] < row[0]) and len(found.items) < limit:
            found.items.append(outbox_item(held[2], held[1], held[3], held[4]))
            found.position = pack(held[0], held[1])
            held = next(beside, None)
        if row is None or size <= 0 or len(found.items) == limit:
            break
        item = job_event(reads.ROWS, row[1:])
        found.items.append(item)
        found.position = pack(row[0])
        size -= bytes_of(item)
    events.close()
    return found


def lag(db: sqlite3.Connection, now: float) -> Lag | None:
    """How far the mark is behind."""
    row = db.execute("SELECT event, entry, refused FROM stream").fetchone()
    if row is None:
        return None
    event, entry, refused = row
    events, oldest = db.execute(SQL["events_behind"], (event,)).fetchone()
    entries, older = db.execute(SQL["entries_behind"], (event, entry)).fetchone()
    times = [at for at in (oldest, older) if at is not None]
    return Lag(events + entries, max(0.0, now - min(times)) if times else 0.0, refused)
