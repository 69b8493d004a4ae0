"""What has become due: delayed jobs are let go, the rest is told to the sweeper."""

from __future__ import annotations

import time
from typing import Any

from jobqueue.core.decide import overdue
from jobqueue.core.store import Change, Overdue
from jobqueue.stores.postgres.chores import Chores
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.heads import Heads
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.notices import Speaker, returned
from jobqueue.stores.postgres.statements import SQL
from jobqueue.stores.rows import STATES


class Sweeping:
    """Looks first, and writes only where there is something to promote."""

    def __init__(
        self,
        database: Database,
        heads: Heads,
        holding: Holding,
        chores: Chores,
        speaker: Speaker,
    ) -> None:
        self._database = database
        self._heads = heads
        self._holding = holding
        self._chores = chores
        self._speaker = speaker

    async def due(self, limit: int) -> Overdue:
        """See ``Store.due``."""
        now = self._database.now()

        async def look(db: Any) -> tuple[Any, Any, Any]:
            waiting = await db.fetch(SQL["due_waiting"], now, limit)
            if not self._holding.slow:
                began = time.perf_counter()
                held = await db.fetch(SQL["due_held"], now, limit)
                self._holding.measured(time.perf_counter() - began)
                return waiting, held, await db.fetchrow(SQL["next_due"], now)
            if self._holding.wants_look():
                await self._look_at_holding(db)
            return waiting, *await self._read_holding(db, now, limit)

        waiting, held, (at, *times) = await self._database.writing.read("due", look)
        rows = [*waiting, *held]
        found = [
            overdue(STATES[state], seq, version, lease)
            for seq, state, version, lease, promotable in rows
            if not promotable
        ]
        promoted = 0
        if len(found) < len(rows):
            promoted = await self._promote(limit)
        await self._chores.do()
        next_at = (
            at if len(rows) >= limit else min((t for t in times if t is not None), default=None)
        )
        if next_at is not None and (here := self._database.here()) is not None:
            next_at += here - at  # the caller sleeps by the clock of this machine
        return Overdue(found[:limit], promoted, next_at)

    async def _look_at_holding(self, db: Any) -> None:
        self._holding.begin()
        began = time.perf_counter()
        rows = await db.fetch(SQL["held_floors"])
        self._holding.looked(((row[0], row[1]) for row in rows), time.perf_counter() - began)

    async def _read_holding(self, db: Any, now: float | None, limit: int) -> tuple[Any, Any]:
        """What is held and due, and when to look again, without wading through what was."""
        if pause := self._holding.pause():
            at, wake = await db.fetchrow(SQL["next_wake"], now)
            return [], (at, wake, at + pause)
        self._holding.begin()
        began = time.perf_counter()
        rows = await db.fetch(SQL["holding_from"], *self._holding.columns())
        self._holding.read(((row[0], row[1]) for row in rows), time.perf_counter() - began)
        at, wake = await db.fetchrow(SQL["next_wake"], now)
        due = [(*row[1:5], False) for row in rows if row[5] is not None and row[5] <= at]
        later = min((row[5] for row in rows if row[5] is not None and row[5] > at), default=None)
        return due[:limit], (at, wake, later)

    async def _promote(self, limit: int) -> int:
        now = self._database.now()

        async def work(db: Any) -> Any:
            return await db.fetch(SQL["promote"], now, limit)

        async def again(db: Any) -> Any:
            self._heads.forget()  # where the ones were whose answer was lost
            return await work(db)

        rows = await self._database.writing.write("promote", work, again=again)
        heads = {(queue, rank, kind) for queue, rank, kind in rows}
        for head in heads:
            self._heads.lower(head)
        if heads:
            self._speaker.say(Change.WORK, returned(heads))
        return len(rows)
