"""Who leads, and what other processes should look at: the rows ``leader`` and ``control``."""

from __future__ import annotations

import sqlite3

from jobqueue.core.store import Change, Leader, Term
from jobqueue.stores.sqlite.statements import SQL


def leads(db: sqlite3.Connection, holder: int, now: float) -> bool:
    """Whether that holder has the lead, or may take it."""
    current, _, until = db.execute(SQL["leader"]).fetchone()
    return bool(current == holder or current is None or until <= now)


def take(db: sqlite3.Connection, holder: int, now: float, ttl: float, name: str) -> Term | None:
    """Take or renew the lead."""
    if not leads(db, holder, now):
        return None
    current, epoch, _ = db.execute(SQL["leader"]).fetchone()
    if current != holder:
        epoch += 1
    db.execute(SQL["take_lead"], (holder, epoch, now + ttl, name, now))
    return Term(holder, epoch)


def leading(db: sqlite3.Connection, now: float) -> Leader | None:
    """Who leads now."""
    row = db.execute(SQL["leading"], (now,)).fetchone()
    return None if row is None else Leader(*row)


def resign(db: sqlite3.Connection, term: Term) -> None:
    """Give it up; whoever waits for it is told."""
    if db.execute(SQL["resign"], (term.holder, term.epoch)).rowcount:
        tell(db)


def stands(db: sqlite3.Connection, term: Term, now: float) -> bool:
    """Whether work may be done under that term, in this transaction."""
    return db.execute(SQL["term_stands"], (term.holder, term.epoch, now)).fetchone() is not None


def tell(db: sqlite3.Connection) -> None:
    """Have other processes look beyond the jobs."""
    db.execute(SQL["tell_control"])


class Listener:
    """Says what may have changed since the last look."""

    def __init__(self) -> None:
        self._seen = -1

    def __call__(self, db: sqlite3.Connection) -> Change:
        """Look, after another process's commit. An error means: everything."""
        try:
            seen = int(db.execute(SQL["control"]).fetchone()[0])
        except sqlite3.Error:
            seen = -1
        changed = Change.WORK | Change.ENDED
        if seen != self._seen or seen < 0:
            changed |= Change.CONTROL
        self._seen = seen
        return changed
