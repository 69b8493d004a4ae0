"""Reading the events as they are committed.

Numbers that are given out before the commit (a sequence, a transaction's id) do not tell the order
of commits: a reader that remembers the highest one it saw skips what commits late, and one that
waits until nothing earlier is open waits for whoever leaves a transaction open. So a reader
remembers what had been committed when it looked, and reads what has been committed since. Between
two such looks events come by job and version, so that the order of each job's own is kept.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import Any

from jobqueue.core.job import Event
from jobqueue.stores.postgres.reads import ROWS
from jobqueue.stores.postgres.statements import SQL


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What had been committed at one moment."""

    below: int = 0
    above: int = 0
    open: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Position:
    """Everything up to ``since`` was read; of what came until ``until``, all up to a key."""

    since: Snapshot
    until: Snapshot
    seq: int
    version: int
    number: int = 0  # in the outbox; of events 0
    part: bool = False  # ``until`` was no moment, only a part of what was committed then

    def pack(self) -> int:
        """In one number, for whoever keeps it."""
        text = json.dumps(astuple(self), separators=(",", ":"))
        return int.from_bytes(b"\1" + text.encode())

    @classmethod
    def unpack(cls, number: int) -> Position:
        """From the number; 0 is the beginning."""
        if number == 0:
            return cls(Snapshot(), Snapshot(), 0, 0)
        raw = number.to_bytes((number.bit_length() + 7) // 8)
        since, until, seq, version, *more = json.loads(raw[1:])
        return cls(
            Snapshot(since[0], since[1], tuple(since[2])),
            Snapshot(until[0], until[1], tuple(until[2])),
            seq,
            version,
            *more,
        )


async def events_after(db: Any, number: int, limit: int) -> list[tuple[int, Event]]:
    """See ``Store.events_after``."""
    at = Position.unpack(number)
    rows = await _between(db, at, limit) if at.until != at.since else []
    if not rows:
        at = Position(at.until, await snapshot(db), 0, 0)
        rows = await _between(db, at, limit)
        if rows:
            # Claims do not wait for the disk. A crash must not undo what was read, nor give the
            # number of a transaction that counts as read to another one.
            await db.execute(SQL["touch"])
    found = []
    for row in rows:
        place = Position(at.since, at.until, row[0], row[2])
        found.append((place.pack(), ROWS.event(row[1:])))
    return found


async def snapshot(db: Any) -> Snapshot:
    """What has been committed by now."""
    below, above, unfinished = await db.fetchrow(SQL["snapshot"])
    return Snapshot(below, above, tuple(unfinished))


async def _between(db: Any, at: Position, limit: int) -> list[Any]:
    rows: list[Any] = await db.fetch(SQL["events_between"], *between(at), at.seq, at.version, limit)
    return rows


def between(at: Position) -> tuple[int, list[int], int, list[int]]:
    """The two snapshots as the statements take them. What was open at the first one may have been
    committed since; whatever else is below its end had been."""
    return at.since.above, list(at.since.open), at.until.above, list(at.until.open)
