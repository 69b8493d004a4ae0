"""The numbers that stand for workers in rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.statements import SQL


class WorkerNames:
    """What was asked once is kept: a name's number never changes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}

    @property
    def known(self) -> Mapping[str, int]:
        """The numbers known so far, by name."""
        return self._numbers

    async def number(self, names: Sequence[str]) -> list[int]:
        """Their numbers; who has none gets one."""
        missing = {name for name in names if name not in self._numbers}
        if missing:

            async def work(db: Any) -> Any:
                return await db.fetch(SQL["name_workers"], list(missing))

            while missing:  # one that was named a moment ago shows in the next snapshot
                rows = await self._database.writing.write("name_workers", work, again=work)
                for number, name in rows:
                    self._numbers[name] = number
                    self._names[number] = name
                    missing.discard(name)
        return [self._numbers[name] for name in names]

    async def of(self, db: Any, numbers: Sequence[int | None]) -> Mapping[int, str]:
        """Names by number, at least these. Asks on the connection of a write that is under way,
        which must not wait for one more."""
        missing = {n for n in numbers if n is not None and n not in self._names}
        if missing:
            for number, name in await db.fetch(SQL["worker_names"], list(missing)):
                self._names[number] = name
        return self._names
