"""Read the changes for the event stream from PostgreSQL, and keep the mark of the stream.

``following.py`` defines the positions. If the stream is far behind, there are many events between
two snapshots. Then these are read in stretches of transaction numbers. One query reads the keys of
all events of a stretch; further queries read the contents page by page.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import islice
from typing import Any

from jobqueue.core.errors import Unavailable
from jobqueue.core.identity import Identity, identity_of
from jobqueue.core.job import Event
from jobqueue.core.store import BEGINNING, Lag, Position, Term
from jobqueue.core.stream import Changes, QueueChange, ScheduleChange, StreamItem
from jobqueue.stores.postgres import reads
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.following import Snapshot, StreamPlace, between, renumber, snapshot
from jobqueue.stores.postgres.leadership import PostgresLeadership
from jobqueue.stores.postgres.statements import SQL, array
from jobqueue.stores.queue_rows import queue_body
from jobqueue.stores.rows import SCHEDULES, job_event, outbox_item
from jobqueue.stores.schedule_rows import event_body, read_schedule

_KEYS_AT_ONCE = 200_000
Key = tuple[int, int, int, int | None]
"""The key of an item: job number, version, number in the outbox or 0, and the column ``lo`` of its
row for many jobs or None.
"""


class Stream:
    """Implements ``core.store.EventStream``.

    The keys of the next items are cached for one reader. Several readers at once are slow,
    because each empties the cache of the others.
    """

    def __init__(self, database: Database, leadership: PostgresLeadership) -> None:
        self._database = database
        self._leadership = leadership
        self._ahead: deque[Key] = deque()  # keys of the items after ``_ahead_of``
        self._ahead_of: StreamPlace | None = None

    async def events_after(self, position: Position, limit: int) -> list[tuple[Position, Event]]:
        at = StreamPlace.of(position)

        async def work(db: Db) -> list[tuple[Position, Event]]:
            here, rows = at, []
            if at.until != at.since:
                rows = await _events(db, at, limit)
            if not rows:
                here = StreamPlace(at.until, await snapshot(db), 0, 0)
                rows = await _events(db, here, limit)
                if rows:
                    await _settle(db)
            return [
                (
                    StreamPlace(here.since, here.until, row[0], row[2]).text(),
                    reads.ROWS.event(row[1:]),
                )
                for row in rows
            ]

        return await self._database.reading.read("events_after", work)

    async def begin(self, term: Term) -> Position:
        now = self._database.now()

        async def work(db: Db) -> Position:
            await renumber(db)
            async with db.transaction():
                await self._leadership.check(db, term)
                there = await db.fetchval(SQL["mark"])
                if there is not None:
                    return StreamPlace.of_stored(there).text()
                await db.execute(SQL["begin_stream"])
                for stats in await reads.stats(db, None):
                    body = queue_body(stats.queue)
                    await db.execute(SQL["put_queue"], int(QueueChange.CREATED), now, body)
                created = ScheduleChange.CREATED
                for row in await db.fetch(SQL["every_schedule"]):
                    body = event_body(created, read_schedule(*row))
                    await db.execute(SQL["put_queue"], SCHEDULES + created, now, body)
                await db.execute(SQL["flags_to_outbox"], now)
                return BEGINNING

        return await self._database.writing.write("begin_stream", work, again=work)

    async def end(self, term: Term) -> None:
        async def work(db: Db) -> None:
            async with db.transaction():
                await self._leadership.check(db, term)
                await db.execute("DELETE FROM stream")
                await db.execute("DELETE FROM outbox")

        await self._database.writing.write("end_stream", work, again=work)

    async def changes_after(self, position: Position, limit: int, size: int) -> Changes:
        at = StreamPlace.of(position)
        now = self._database.now()

        async def work(db: Db) -> Changes:
            here = at
            while True:
                here = await self._look_ahead(db, here)
                keys = list(islice(self._ahead, limit))
                if not keys:
                    return Changes([], position)
                items, passed = await _read(db, keys, size, now)
                for _ in range(passed):
                    self._ahead.popleft()
                seq, version, number, _ = keys[passed - 1]
                self._ahead_of = here = replace(here, seq=seq, version=version, number=number)
                if items:
                    return Changes(items, here.text())

        return await self._database.streaming.read("changes_after", work)

    async def _look_ahead(self, db: Db, at: StreamPlace) -> StreamPlace:
        """Read the keys of the next items, unless they are cached.

        Return the place before these items.
        """
        if self._ahead and self._ahead_of == at:
            return at
        self._ahead.clear()
        found = await _keys(db, at) if at.until != at.since else []
        if not found:
            at = await _stretch(db, at.until)
            found = await _keys(db, at)
            if found:
                await _settle(db)
        self._ahead.extend(found)
        self._ahead_of = at
        return at

    async def move_mark(self, position: Position, term: Term, refused: int = 0) -> None:
        # The mark need not reach the disk at once. If a crash sets it back, events are published
        # again. Jobs that were removed because of the mark are later in the write-ahead log, so
        # their removal is lost as well.
        at = StreamPlace.of(position)
        snapshots = between(at)

        async def work(db: Db) -> None:
            async with db.transaction():
                await self._leadership.check(db, term)
                await db.execute(
                    SQL["move_mark"], at.stored(), *snapshots, at.seq, at.version, refused
                )
                await db.execute(SQL["empty_outbox"], *snapshots[:2])

        await self._database.dispatching.write("move_mark", work, again=work)

    async def identity(self) -> Identity:
        async def work(db: Db) -> Identity:
            (row,) = await db.fetch(SQL["instance"])
            return identity_of(*row)

        return await self._database.reading.read("identity", work)

    async def lag(self) -> Lag | None:
        now = self._database.now()

        async def work(db: Db) -> Lag | None:
            row = await db.fetchrow("SELECT position, refused FROM stream")
            if row is None:
                return None
            mark = StreamPlace.of_stored(row[0])
            # Count the rest between the two snapshots of the mark, and all events after them.
            parts = [StreamPlace(mark.until, await snapshot(db), 0, -1)]
            if mark.until != mark.since:
                parts.append(mark)
            events, ages = 0, [0.0]
            for at in parts:
                key = at.seq, at.version, at.number
                ((count, oldest, clock),) = await db.fetch(SQL["behind"], *between(at), *key, now)
                events += count
                if oldest is not None:
                    ages.append(clock - oldest)
            return Lag(events, max(ages), row[1])

        return await self._database.reading.read("stream_lag", work)


async def _events(db: Db, at: StreamPlace, limit: int) -> list[Any]:
    rows: list[Any] = await db.fetch(SQL["events_between"], *between(at), at.seq, at.version, limit)
    return rows


async def _settle(db: Db) -> None:
    """Wait until all commits that were read are on the disk."""
    # Claims do not wait for the disk. A crash must not undo what was read, and must not give the
    # number of a transaction that counts as read to another transaction.
    await db.execute(SQL["touch"])


async def _stretch(db: Db, since: Snapshot) -> StreamPlace:
    """Return the place before all events between the snapshot ``since`` and the present snapshot.

    If these events are too many to read their keys at once, the place ends at an earlier snapshot.
    """
    now = await snapshot(db)
    if now.above < since.above:
        raise Unavailable(
            "PostgreSQL lacks transactions that were read from it before: a standby that had not"
            " received all commits took over"
        )
    last = await db.fetchval(
        SQL["end_of_stretch"], since.above, now.above, list(now.open), _KEYS_AT_ONCE
    )
    if last is None:
        return StreamPlace(since, now, 0, 0)
    unfinished = tuple(xid for xid in now.open if xid <= last)
    return StreamPlace(since, Snapshot(since.above, last + 1, unfinished), 0, 0, part=True)


async def _keys(db: Db, at: StreamPlace) -> list[Key]:
    here = at.seq, at.version, at.number
    ((seqs, *columns),) = await db.fetch(SQL["keys_between"], *between(at), *here, _KEYS_AT_ONCE)
    if not seqs:
        return []
    keys: list[Key] = list(zip(seqs, *columns, strict=True))
    if at.part:
        # A transaction may get its number early and write after one with a higher number. So events
        # beyond the stretch may be earlier in a job's order. They are read here and again later.
        latest = {key[0]: key[1] for key in keys}
        asked = array(latest), array(latest.values()), at.until.above
        for seq, version, lo in await db.fetch(SQL["overtaken"], *asked):
            if version <= latest.get(seq, 0) and (seq, version, 0) > here:
                keys.append((seq, version, 0, lo))
        keys = sorted(set(keys), key=lambda key: key[:3])
    return keys


async def _read(
    db: Db, keys: list[Key], size: int, now: float | None
) -> tuple[list[StreamItem], int]:
    """Read the items with the given keys in order, up to about ``size`` bytes.

    Return the items and the number of keys that they cover. A key may have no item, because a
    server of an earlier version removed its job.
    """
    events = [key for key in keys if not key[2]]
    numbers = [key[2] for key in keys if key[2]]
    rows: deque[Any] = deque()
    if events:
        seqs, versions = array(key[0] for key in events), array(key[1] for key in events)
        rows_of = array("NULL" if key[3] is None else key[3] for key in events)
        rows.extend(await db.fetch(SQL["changes"], seqs, versions, size, now, rows_of))
    beside = {}
    if numbers:
        beside = {row[0]: row for row in await db.fetch(SQL["outbox"], numbers)}
    found: list[StreamItem] = []
    gone = not rows  # no rows: the jobs are removed, because a large first row is read, too
    n = 0
    for passed, key in enumerate(keys):
        if key[2]:
            if key[2] in beside:
                number, kind, at, body = beside[key[2]]
                found.append(outbox_item(kind, number, at, body))
            continue
        n += 1
        if rows and rows[0][0] == n:
            found.append(job_event(reads.ROWS, rows.popleft()[1:]))
        elif not rows and not gone:
            return found, passed
    return found, len(keys)
