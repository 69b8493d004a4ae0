"""Elect a leader in SQLite, and count the changes to workers and leadership."""

from __future__ import annotations

import sqlite3

from jobqueue.core.store import Leader, Term
from jobqueue.stores.sqlite.database import SqlitePart, reading, writing
from jobqueue.stores.sqlite.statements import SQL


class SqliteLeadership(SqlitePart):
    """Implements ``core.store.LeaderStore`` with the only row of the table ``leader``."""

    async def lead(self, holder: int, ttl: float, name: str = "") -> Term | None:
        # Standbys only read.
        return await self._lead(holder, ttl, name) if await self._may_lead(holder) else None

    @reading("leader")
    def _may_lead(self, db: sqlite3.Connection, holder: int) -> bool:
        current, _, until = db.execute(SQL["leader"]).fetchone()
        return bool(current == holder or current is None or until <= self._clock.now())

    @writing("lead")
    def _lead(self, db: sqlite3.Connection, holder: int, ttl: float, name: str) -> Term | None:
        now = self._clock.now()
        current, epoch, until = db.execute(SQL["leader"]).fetchone()
        if current != holder:
            if current is not None and until > now:
                return None
            epoch += 1
        db.execute(SQL["take_lead"], (holder, epoch, now + ttl, name, now))
        return Term(holder, epoch)

    @reading("leading")
    def leader(self, db: sqlite3.Connection) -> Leader | None:
        row = db.execute(SQL["leading"], (self._clock.now(),)).fetchone()
        return None if row is None else Leader(*row)

    @writing("resign")
    def resign(self, db: sqlite3.Connection, term: Term) -> None:
        if db.execute(SQL["resign"], (term.holder, term.epoch)).rowcount:
            tell_control(db)


def stands(db: sqlite3.Connection, term: Term, now: float) -> bool:
    """Return True if ``term`` is the latest term and has not run out."""
    return db.execute(SQL["term_stands"], (term.holder, term.epoch, now)).fetchone() is not None


def tell_control(db: sqlite3.Connection) -> None:
    """Report a change of workers, leases or leadership to other processes (``Change.CONTROL``)."""
    db.execute(SQL["tell_control"])
