"""The event stream's side of the database: what it reads, and how far it has come.

Positions are those of ``following.py``. A long way behind, what lies between two snapshots is
large, and is read by stretches of transaction numbers. Where the events of a stretch are is read
once, what they hold page by page.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import islice
from typing import Any

from jobqueue.core.errors import Unavailable
from jobqueue.core.identity import Identity, identity_of
from jobqueue.core.store import Lag, Term
from jobqueue.core.stream import Changes, QueueChange, StreamItem
from jobqueue.stores.outbox_rows import job_event, outbox_item
from jobqueue.stores.postgres import reads
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.following import Position, Snapshot, between, snapshot
from jobqueue.stores.postgres.leadership import Leadership
from jobqueue.stores.postgres.renumbering import renumber
from jobqueue.stores.postgres.statements import SQL, array
from jobqueue.stores.queue_rows import queue_body

_KEYS_AT_ONCE = 200_000
Key = tuple[int, int, int]
"""Where an item is: seq, version, and its number in the outbox or 0."""


class Streaming:
    """The calls of whoever publishes the stream. One reader at a time reads fast."""

    def __init__(self, database: Database, leadership: Leadership) -> None:
        self._database = database
        self._leadership = leadership
        self._ahead: deque[Key] = deque()  # what comes after the position below
        self._ahead_of: Position | None = None

    async def begin(self, term: Term) -> int:
        """See ``Store.begin_stream``."""
        now = self._database.now()

        async def work(db: Any) -> int:
            await renumber(db)
            async with db.transaction():
                await self._leadership.check(db, term)
                there = await db.fetchval(SQL["mark"])
                if there is not None:
                    return int(there)
                await db.execute(SQL["begin_stream"])
                for stats in await reads.stats(db, None):
                    body = queue_body(stats.queue)
                    await db.execute(SQL["put_queue"], int(QueueChange.CREATED), now, body)
                await db.execute(SQL["flags_to_outbox"], now)
                return 0

        return await self._database.writing.write("begin_stream", work, again=work)

    async def end(self, term: Term) -> None:
        """See ``Store.end_stream``."""

        async def work(db: Any) -> None:
            async with db.transaction():
                await self._leadership.check(db, term)
                await db.execute("DELETE FROM stream")
                await db.execute("DELETE FROM outbox")

        await self._database.writing.write("end_stream", work, again=work)

    async def changes_after(self, number: int, limit: int, size: int) -> Changes:
        """See ``Store.changes_after``."""
        at = Position.unpack(number)
        now = self._database.now()

        async def work(db: Any) -> Changes:
            here = at
            while True:
                here = await self._look_ahead(db, here)
                keys = list(islice(self._ahead, limit))
                if not keys:
                    return Changes([], number)
                items, passed = await _read(db, keys, size, now)
                for _ in range(passed):
                    self._ahead.popleft()
                self._ahead_of = here = _moved(here, keys[passed - 1])
                if items:
                    return Changes(items, here.pack())

        return await self._database.streaming.read("changes_after", work)

    async def _look_ahead(self, db: Any, at: Position) -> Position:
        """Find what comes next, unless that is known; between which snapshots it lies."""
        if self._ahead and self._ahead_of == at:
            return at
        self._ahead.clear()
        found = await _keys(db, at) if at.until != at.since else []
        if not found:
            at = await _stretch(db, at.until)
            found = await _keys(db, at)
            if found:
                # Claims do not wait for the disk. A crash must not undo what was read, nor give
                # the number of a transaction that counts as read to another one.
                await db.execute(SQL["touch"])
        self._ahead.extend(found)
        self._ahead_of = at
        return at

    async def move_mark(self, number: int, term: Term, refused: int) -> None:
        """See ``Store.move_mark``.

        It need not reach the disk at once: a mark that a crash sets back means that events are
        published again, and what was removed by its leave comes after it in the log.
        """
        at = Position.unpack(number)
        snapshots = between(at)

        async def work(db: Any) -> None:
            async with db.transaction():
                await self._leadership.check(db, term)
                await db.execute(
                    SQL["move_mark"], str(number), *snapshots, at.seq, at.version, refused
                )
                await db.execute(SQL["empty_outbox"], *snapshots[:2])

        await self._database.dispatching.write("move_mark", work, again=work)

    async def identity(self) -> Identity:
        """See ``Store.identity``."""

        async def work(db: Any) -> Identity:
            return identity_of(*await db.fetchrow(SQL["instance"]))

        return await self._database.reading.read("identity", work)

    async def lag(self) -> Lag | None:
        """See ``Store.stream_lag``."""
        now = self._database.now()

        async def work(db: Any) -> Lag | None:
            row = await db.fetchrow("SELECT position, refused FROM stream")
            if row is None:
                return None
            mark = Position.unpack(int(row[0]))
            # Of what the mark lies in the middle of, the rest; and all that came after it.
            parts = [Position(mark.until, await snapshot(db), 0, -1)]
            if mark.until != mark.since:
                parts.append(mark)
            events, ages = 0, [0.0]
            for at in parts:
                key = at.seq, at.version, at.number
                count, oldest, clock = await db.fetchrow(SQL["behind"], *between(at), *key, now)
                events += count
                if oldest is not None:
                    ages.append(clock - oldest)
            return Lag(events, max(ages), row[1])

        return await self._database.reading.read("stream_lag", work)


def _moved(at: Position, key: Key) -> Position:
    seq, version, number = key
    return replace(at, seq=seq, version=version, number=number)


async def _stretch(db: Any, since: Snapshot) -> Position:
    """From there to what has been committed by now; or to a part of it that can be read at once."""
    now = await snapshot(db)
    if now.above < since.above:
        raise Unavailable(
            "PostgreSQL: the server has gone back behind what was read from it: another one took"
            " over that has not got everything"
        )
    last = await db.fetchval(
        SQL["end_of_stretch"], since.above, now.above, list(now.open), _KEYS_AT_ONCE
    )
    if last is None:
        return Position(since, now, 0, 0)
    unfinished = tuple(xid for xid in now.open if xid <= last)
    return Position(since, Snapshot(since.above, last + 1, unfinished), 0, 0, part=True)


async def _keys(db: Any, at: Position) -> list[Key]:
    here = at.seq, at.version, at.number
    seqs, versions, numbers = await db.fetchrow(
        SQL["keys_between"], *between(at), *here, _KEYS_AT_ONCE
    )
    if not seqs:
        return []
    keys: list[Key] = list(zip(seqs, versions, numbers, strict=True))
    if at.part:
        # A transaction may have its number before it writes on after one with a higher number:
        # what is beyond the stretch and has to come first is read here, and there once more.
        latest = {seq: version for seq, version, _ in keys}
        asked = array(latest), array(latest.values()), at.until.above
        before = [(*key, 0) for key in await db.fetch(SQL["overtaken"], *asked)]
        keys = sorted({*keys, *(key for key in before if key > here)})
    return keys


async def _read(
    db: Any, keys: list[Key], size: int, now: float | None
) -> tuple[list[StreamItem], int]:
    """What is at those places, in order, as far as the size allows; and how many were passed.

    A server of an earlier version keeps nothing for a stream: what it removed is passed over.
    """
    events = [key for key in keys if not key[2]]
    numbers = [key[2] for key in keys if key[2]]
    rows: deque[Any] = deque()
    if events:
        seqs, versions = array(key[0] for key in events), array(key[1] for key in events)
        rows.extend(await db.fetch(SQL["changes"], seqs, versions, size, now))
    beside = {}
    if numbers:
        beside = {row[0]: row for row in await db.fetch(SQL["outbox"], numbers)}
    found: list[StreamItem] = []
    gone = not rows  # the first one is read whatever its size
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
