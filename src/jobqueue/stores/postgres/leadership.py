"""Who of the servers does the chores that only one may do."""

from __future__ import annotations

from typing import Any

from jobqueue.core.store import Change, Leader, Term, TermEnded
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.notices import Speaker
from jobqueue.stores.postgres.statements import SQL


class Leadership:
    """A row that one of them holds, for a time."""

    def __init__(self, database: Database, speaker: Speaker) -> None:
        self._database = database
        self._speaker = speaker

    async def lead(self, holder: int, ttl: float, name: str) -> Term | None:
        """See ``Store.lead``."""
        now = self._database.now()

        async def work(db: Any) -> int | None:
            epoch: int | None = await db.fetchval(SQL["lead"], holder, ttl, now, name)
            return epoch

        epoch = await self._database.writing.write("lead", work, again=work)
        return None if epoch is None else Term(holder, epoch)

    async def leader(self) -> Leader | None:
        """See ``Store.leader``."""
        now = self._database.now()

        async def work(db: Any) -> Any:
            return await db.fetchrow(SQL["leader"], now)

        row = await self._database.reading.read("leader", work)
        return None if row is None else Leader(*row)

    async def resign(self, term: Term) -> None:
        """See ``Store.resign``."""

        async def work(db: Any) -> None:
            await db.execute(SQL["resign"], term.holder, term.epoch)

        await self._database.writing.write("resign", work, again=work)
        self._speaker.say(Change.CONTROL)

    async def check(self, db: Any, term: Term) -> None:
        """Refuse to write under a term that is over; one that stands, stands until the commit."""
        if not await db.fetchval(SQL["check_term"], term.holder, term.epoch, self._database.now()):
            raise TermEnded
