"""Define positions in the events, so that a reader gets all events in the order of their commits.

Sequences and transactions get their numbers before the commit, so these numbers are not in the
order of commits. A reader that remembered only the highest number would miss lower numbers that are
committed later. If it waited for all earlier transactions, one open transaction would stop it. So a
reader remembers a snapshot: which transactions were committed at a moment. It reads the events that
were committed between two snapshots, in order of job and version.
"""

from __future__ import annotations

import json
import logging
from dataclasses import astuple, dataclass

from jobqueue.core.store import BEGINNING, Position
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.statements import RENUMBER, SQL

_log = logging.getLogger("jobqueue.stores.postgres")
_TIMEOUT = 6 * 3600.0  # all events of the database may have to be rewritten
_LONGEST_NUMBER = 1_700  # bytes; the number of a longer text has more than 4,300 digits


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Describes which transactions had ended at one moment.

    All transactions below ``above`` had ended, except those in ``open``.
    """

    below: int = 0
    above: int = 0
    open: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Describes the position of a reader.

    The reader has read all events that were committed at the snapshot ``since``. Of the events that
    were committed between ``since`` and ``until``, the reader has read those up to the key
    (``seq``, ``version``).
    """

    since: Snapshot
    until: Snapshot
    seq: int
    version: int
    number: int = 0  # of the last entry of the outbox; 0 for an event
    part: bool = False  # ``until`` is not a real snapshot but ends at a transaction's number

    def text(self) -> Position:
        """Return this place as a position, the form that callers store."""
        if self == START:
            return BEGINNING
        return json.dumps(astuple(self), separators=(",", ":"))

    @classmethod
    def of(cls, position: Position) -> StreamPlace:
        """Return the place that ``text`` wrote as a position."""
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
        """Return this place in the form that the database stores for the stream's mark.

        The form is a number, which servers of earlier versions can read. If many open transactions
        make the number too long for Python to write, the form is the text of a position.
        """
        text = self.text()
        if self == START or len(text) > _LONGEST_NUMBER:
            return text or "0"
        return str(int.from_bytes(b"\1" + text.encode()))

    @classmethod
    def of_stored(cls, mark: str) -> StreamPlace:
        """Return the place that ``stored`` wrote. The number 0 is the place before all events."""
        if mark.startswith("["):
            return cls.of(mark)
        number = int(mark)
        if number == 0:
            return START
        raw = number.to_bytes((number.bit_length() + 7) // 8)
        return cls.of(raw[1:].decode())


START = StreamPlace(Snapshot(), Snapshot(), 0, 0)


async def snapshot(db: Db) -> Snapshot:
    """Return the present snapshot of the database."""
    ((below, above, unfinished),) = await db.fetch(SQL["snapshot"])
    return Snapshot(below, above, tuple(unfinished))


def between(at: StreamPlace) -> tuple[int, list[int], int, list[int]]:
    """Return the parameters of a statement that reads between the two snapshots of a place.

    These are the end and the open transactions of ``since``, then those of ``until``.
    """
    return at.since.above, list(at.since.open), at.until.above, list(at.until.open)


async def renumber(db: Db) -> None:
    """Renumber the unpublished events of a database that was moved to another cluster.

    Such a database, for example one restored from a dump, has transaction numbers of the old
    cluster. The new cluster has not reached these numbers yet: the stream would not read such
    events for a long time, and would take new events, with lower numbers, for published. So the
    events get the number of a transaction of this cluster. Jobs continue meanwhile. Any server may
    do this, not only the leader.
    """
    if not await db.fetchval(SQL["numbers_of_others"]):
        return
    async with db.transaction():
        await db.execute(SQL["renumber_lock"])  # one server at a time
        if not await db.fetchval(SQL["numbers_of_others"]):
            return
        _log.warning(
            "this database was moved here from another PostgreSQL cluster: its events get new"
            " transaction numbers, which may take long; then the event stream continues"
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
    """Return the snapshot ``seen``, which the transaction ``own`` took, with ``own`` as open.

    Transactions between the end of ``seen`` and ``own`` count as open, too, because they may be.
    """
    unfinished = {*seen.open, *range(seen.above, own), own}
    return Snapshot(seen.below, max(seen.above, own + 1), tuple(sorted(unfinished)))
