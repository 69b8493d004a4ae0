"""Elect a leader among the servers, and keep the leader's term in PostgreSQL."""

from __future__ import annotations

from typing import Any

from jobqueue.core.store import Change, Leader, Term, TermEnded
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.notices import Speaker
from jobqueue.stores.postgres.statements import SQL


class PostgresLeadership:
    """Implements ``core.store.LeaderStore`` in the table ``leader``."""

    def __init__(self, database: Database, speaker: Speaker) -> None:
        self._database = database
        self._speaker = speaker

    async def lead(self, holder: int, ttl: float, name: str = "") -> Term | None:
        now = self._database.now()

        async def work(db: Db) -> int | None:
            epoch: int | None = await db.fetchval(SQL["lead"], holder, ttl, now, name)
            return epoch

        epoch = await self._database.writing.write("lead", work, again=work)
        return None if epoch is None else Term(holder, epoch)

    async def leader(self) -> Leader | None:
        now = self._database.now()

        async def work(db: Db) -> Any:
            return await db.fetchrow(SQL["leader"], now)

        row = await self._database.reading.read("leader", work)
        return None if row is None else Leader(*row)

    async def resign(self, term: Term) -> None:
        async def work(db: Db) -> None:
            await db.execute(SQL["resign"], term.holder, term.epoch)

        await self._database.writing.write("resign", work, again=work)
        self._speaker.say(Change.CONTROL)

    async def check(self, db: Db, term: Term) -> None:
        """Raise TermEnded if a term is over. Otherwise the term stays in force until the commit."""
        if not await db.fetchval(SQL["check_term"], term.holder, term.epoch, self._database.now()):
            raise TermEnded
