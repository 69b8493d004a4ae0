"""Reading the events as they are committed.

Numbers that are given out before the commit (a sequence, a transaction's id) do not tell the order
of commits: a reader that remembers the highest one it saw skips what commits late, and one that
waits until nothing earlier is open waits for any transaction that is left open. So a reader
remembers what had been committed when it looked, and reads what has been committed since. Between
two such looks events come by job and version, so that the order of each job's own is kept.
"""

from __future__ import annotations

import json
import logging
from dataclasses import astuple, dataclass

from jobqueue.core.store import BEGINNING, Position
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.statements import RENUMBER, SQL

_log = logging.getLogger("jobqueue.stores.postgres")
_TIMEOUT = 6 * 3600.0  # every event may have to be written anew
_LONGEST_NUMBER = 1_700  # bytes; more have more than 4,300 digits


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The transactions that had been committed at one moment."""

    below: int = 0
    above: int = 0
    open: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Everything up to ``since`` was read; of what came until ``until``, all up to a key."""

    since: Snapshot
    until: Snapshot
    seq: int
    version: int
    number: int = 0  # in the outbox; of events 0
    part: bool = False  # ``until`` was no moment, only a part of what was committed then

    def text(self) -> Position:
        """Return it in the form that callers keep."""
        if self == START:
            return BEGINNING
        return json.dumps(astuple(self), separators=(",", ":"))

    @classmethod
    def of(cls, position: Position) -> StreamPlace:
        """Read a place from the form that ``text`` gave."""
        if position == BEGINNING:
            return START
        since, until, seq, version, *more = json.loads(position)
        return cls(
            Snapshot(since[0], since[1], tuple(since[2])),
            Snapshot(until[0], until[1], tuple(until[2])),
            seq,
            version,
            *more,
        )

    def stored(self) -> str:
        """Return it in the form that the database keeps of the mark.

        A number, which servers of earlier versions read, too, unless so many transactions were open
        that Python refuses to write it in digits.
        """
        text = self.text()
        if self == START or len(text) > _LONGEST_NUMBER:
            return text or "0"
        return str(int.from_bytes(b"\1" + text.encode()))

    @classmethod
    def of_stored(cls, mark: str) -> StreamPlace:
        """Read a place from the form that ``stored`` gave; 0 is the beginning."""
        if mark.startswith("["):
            return cls.of(mark)
        number = int(mark)
        if number == 0:
            return START
        raw = number.to_bytes((number.bit_length() + 7) // 8)
        return cls.of(raw[1:].decode())


START = StreamPlace(Snapshot(), Snapshot(), 0, 0)


async def snapshot(db: Db) -> Snapshot:
    """Ask which transactions have been committed by now."""
    ((below, above, unfinished),) = await db.fetch(SQL["snapshot"])
    return Snapshot(below, above, tuple(unfinished))


def between(at: StreamPlace) -> tuple[int, list[int], int, list[int]]:
    """The two snapshots as the statements take them. What was open at the first one may have been
    committed since; whatever else is below its end had been."""
    return at.since.above, list(at.since.open), at.until.above, list(at.until.open)


async def renumber(db: Db) -> None:
    """Give events that the stream has not got a number of this cluster, if they have others.

    A database that was moved to another cluster, by a dump for example, has the numbers of the old
    cluster's transactions. Numbers that the new one has not given out yet would not be read before
    it has, and whatever it writes until then would count as read. Jobs go on meanwhile, and any
    server may do it: no term is needed.
    """
    if not await db.fetchval(SQL["numbers_of_others"]):
        return
    async with db.transaction():
        await db.execute(SQL["renumber_lock"])  # one at a time
        if not await db.fetchval(SQL["numbers_of_others"]):
            return
        _log.warning(
            "this database was moved here from another cluster: the transactions of its events are"
            " given new numbers, the event stream goes on after that"
        )
        own = int(await db.fetchval("SELECT pg_current_xact_id()::text"))
        await db.execute("SET LOCAL jobqueue.renumbering = 'on'")
        for statement in RENUMBER:
            await db.execute(statement, own, timeout=_TIMEOUT)
        await db.execute(SQL["renumber_outbox"], own, timeout=_TIMEOUT)
        here = including(await snapshot(db), own)
        at = StreamPlace(here, here, 0, 0)
        await db.execute(SQL["move_mark"], at.stored(), *between(at), 0, 0, 0)


def including(seen: Snapshot, own: int) -> Snapshot:
    """A snapshot of a transaction's own as others see it: itself is open, and so may be all that
    began since the latest one ended."""
    unfinished = {*seen.open, *range(seen.above, own), own}
    return Snapshot(seen.below, max(seen.above, own + 1), tuple(sorted(unfinished)))
