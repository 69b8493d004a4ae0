"""Read the changes for the event stream from SQLite, and keep the mark of the stream."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from itertools import chain

from jobqueue.core.identity import Identity, identity_of
from jobqueue.core.job import Event
from jobqueue.core.queue import Queue
from jobqueue.core.schedule import Schedule
from jobqueue.core.store import Lag, Position, Term, TermEnded
from jobqueue.core.stream import Changes, QueueChange, ScheduleChange, bytes_of
from jobqueue.stores import schedule_rows
from jobqueue.stores.queue_rows import queue_body
from jobqueue.stores.rows import CANCEL, SCHEDULES, job_event, outbox_item, pack, unpack
from jobqueue.stores.sqlite import reads
from jobqueue.stores.sqlite.database import SqlitePart, reading, writing
from jobqueue.stores.sqlite.leadership import stands
from jobqueue.stores.sqlite.statements import SQL


class SqliteStream(SqlitePart):
    """Implements ``core.store.EventStream``.

    SQLite has one writer at a time, so events are numbered in the order of their commits.
    """

    @reading("events_after")
    def events_after(
        self, db: sqlite3.Connection, position: Position, limit: int
    ) -> list[tuple[Position, Event]]:
        rows = db.execute(SQL["events_after"], (unpack(position)[0], limit))
        return [(pack(row[0]), reads.ROWS.event(row[1:])) for row in rows]

    async def begin(self, term: Term) -> Position:
        mark = await self._find_mark(term)  # only to make the mark takes the write lock
        return await self._make_mark(term) if mark is None else mark

    @reading("stream_mark")
    def _find_mark(self, db: sqlite3.Connection, term: Term) -> Position | None:
        if not stands(db, term, self._clock.now()):
            raise TermEnded
        return _mark(db)

    @writing("begin_stream")
    def _make_mark(self, db: sqlite3.Connection, term: Term) -> Position | TermEnded:
        now = self._clock.now()
        if not stands(db, term, now):
            return TermEnded()
        mark = _mark(db)
        if mark is not None:
            return mark
        db.execute("INSERT INTO stream VALUES (1, 0, 0, 0)")
        for stats in reads.stats(db):
            db.execute(
                "INSERT INTO outbox (after, kind, at, body) VALUES (0, ?, ?, ?)",
                (int(QueueChange.CREATED), now, queue_body(stats.queue)),
            )
        for row in db.execute(SQL["every_schedule"]).fetchall():
            body = schedule_rows.event_body(
                ScheduleChange.CREATED, schedule_rows.read_schedule(*row)
            )
            db.execute(
                "INSERT INTO outbox (after, kind, at, body) VALUES (0, ?, ?, ?)",
                (SCHEDULES + ScheduleChange.CREATED, now, body),
            )
        flagged = db.execute("SELECT seq FROM live WHERE state = 3 AND cancel = 1").fetchall()
        put_jobs(db, CANCEL, [seq for (seq,) in flagged], now)
        return pack(0)

    @writing("end_stream")
    def end(self, db: sqlite3.Connection, term: Term) -> TermEnded | None:
        if not stands(db, term, self._clock.now()):
            return TermEnded()
        forget(db)
        return None

    @reading("changes_after")
    def changes_after(
        self, db: sqlite3.Connection, position: Position, limit: int, size: int
    ) -> Changes:
        event, entry = unpack(position)
        found = Changes([], position)
        events = db.execute(SQL["changes"], (event, limit, self._clock.now()))
        entries = iter(db.execute(SQL["outbox_after"], (event, entry, limit)).fetchall())
        held = next(entries, None)
        for row in chain(events, (None,)):
            while held and (row is None or held[0] < row[0]) and len(found.items) < limit:
                found.items.append(outbox_item(held[2], held[1], held[3], held[4]))
                found.position = pack(held[0], held[1])
                held = next(entries, None)
            if row is None or size <= 0 or len(found.items) == limit:
                break
            item = job_event(reads.ROWS, row[1:])
            found.items.append(item)
            found.position = pack(row[0])
            size -= bytes_of(item)
        events.close()
        return found

    @writing("move_mark")
    def move_mark(
        self, db: sqlite3.Connection, position: Position, term: Term, refused: int = 0
    ) -> TermEnded | None:
        if not stands(db, term, self._clock.now()):
            return TermEnded()
        mark = unpack(position)
        sql = "UPDATE stream SET event = ?, entry = ?, refused = refused + ?"
        db.execute(sql, (*mark, refused))
        db.execute("DELETE FROM outbox WHERE after < ?1 OR after = ?1 AND number <= ?2", mark)
        return None

    @reading("stream_lag")
    def lag(self, db: sqlite3.Connection) -> Lag | None:
        row = db.execute("SELECT event, entry, refused FROM stream").fetchone()
        if row is None:
            return None
        *mark, refused = row
        events, oldest = db.execute(SQL["events_behind"], mark[:1]).fetchone()
        entries, older = db.execute(SQL["entries_behind"], mark).fetchone()
        now = self._clock.now()
        times = [at for at in (oldest, older) if at is not None]
        return Lag(events + entries, max(0.0, now - min(times, default=now)), refused)

    @reading("identity")
    def identity(self, db: sqlite3.Connection) -> Identity:
        sql = "SELECT id, generation, continues FROM instance"
        return identity_of(*db.execute(sql).fetchone())


def _mark(db: sqlite3.Connection) -> Position | None:
    row = db.execute("SELECT event, entry FROM stream").fetchone()
    return None if row is None else pack(*row)


def forget(db: sqlite3.Connection) -> None:
    """Remove the stream's mark and all entries of the outbox."""
    db.execute("DELETE FROM stream")
    db.execute("DELETE FROM outbox")


def put_queue(db: sqlite3.Connection, change: QueueChange, queue: Queue, now: float) -> None:
    """Add a change of a queue to the outbox, if there is a stream."""
    db.execute(SQL["put_queue"], (int(change), now, queue_body(queue)))


def put_schedule(
    db: sqlite3.Connection, change: ScheduleChange, schedule: Schedule, now: float
) -> None:
    """Add a change of a schedule to the outbox, if there is a stream."""
    body = schedule_rows.event_body(change, schedule)
    db.execute(SQL["put_queue"], (SCHEDULES + change, now, body))


def put_jobs(
    db: sqlite3.Connection, kind: int, seqs: Iterable[int], now: float, *, key_freed: bool = False
) -> None:
    """Add an entry of the given kind for each job to the outbox, if there is a stream.

    ``kind`` is CANCEL or DELETED. ``key_freed`` is True if the job's idempotency key is freed.
    """
    freed = json.dumps(key_freed)
    db.executemany(SQL["put_job"], [(kind, now, freed, seq) for seq in seqs])


def passed(db: sqlite3.Connection, seq: int) -> bool:
    """Return True if there is no stream, or the stream has published all events of the job."""
    return db.execute(SQL["passed"], (seq,)).fetchone() is not None
