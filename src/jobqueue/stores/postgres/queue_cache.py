"""The queues as this process knows them, and the numbers of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobqueue.core.retry import RetryPolicy, policy_of
from jobqueue.core.store import ALL_QUEUES, Claim
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.statements import BATCH, SQL
from jobqueue.stores.queue_rows import read_weights

ANY_NUMBER = 1 << 31  # of jobs


@dataclass(frozen=True, slots=True)
class Home:
    """A queue as claims and transitions see it."""

    id: int
    name: str
    closed: bool  # now: by the time of the read
    deleted: bool
    weights: dict[int, int] | None
    policy: RetryPolicy


class QueueCache:
    """The queues, as they were read last. What a write depends on, its statement checks itself."""

    def __init__(self, few: int = 1) -> None:
        self.few = few  # jobs: fewer of a kind are written as rows of their own
        self._by_id: dict[int, Home] = {}
        self.stale = True
        self.changes = 0
        self._layout = 1

    def spoil(self) -> None:
        """Read everything before it is used again: something was changed."""
        self.changes += 1
        self.stale = True

    def read(self, rows: Sequence[Any], change: int) -> None:
        """Take in what the table said after this many changes; one since may not be in it."""
        self._by_id = {}
        for number, name, closed, deleted, self._layout, weights, *retry in rows:
            self._by_id[number] = Home(
                number, name, closed, deleted, read_weights(weights), policy_of(*retry)
            )
        self.stale = change != self.changes

    async def _read(self, db: Db, now: float | None) -> None:
        change = self.changes
        self.read(await db.fetch(SQL["read_queues"], now), change)

    async def texts(self, db: Db, jobs: int, now: float | None) -> Mapping[str, str]:
        """The statements that write so many jobs: as rows for many, if the layout has them."""
        return BATCH if jobs >= self.few and await self.layout(db, now) > 1 else SQL

    async def layout(self, db: Db, now: float | None) -> int:
        """Return the number of the rows that may be written (layout.py)."""
        if self.stale:
            await self._read(db, now)
        return self._layout

    async def resolve(self, db: Db, queue: int, now: float | None) -> Home:
        """Return a queue by its number; its row is never removed."""
        home = self._by_id.get(queue)
        if home is None or self.stale:
            await self._read(db, now)
            home = self._by_id[queue]
        return home

    def claimable(self, wanted: Claim) -> dict[int, Home]:
        """Return the queues that a claim may take from."""
        everything = ALL_QUEUES in wanted.queues
        return {
            home.id: home
            for home in self._by_id.values()
            if not home.closed
            and not home.deleted
            and (everything or home.name in wanted.queues)
            and home.name not in wanted.without
        }


class WorkerNameCache:
    """Keeps the numbers that it has read: a name's number never changes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}

    @property
    def known(self) -> Mapping[str, int]:
        """The numbers that are known so far, by name."""
        return self._numbers

    async def number(self, names: Sequence[str]) -> list[int]:
        """Return their numbers; a worker without one gets one."""
        missing = {name for name in names if name not in self._numbers}
        if missing:

            async def work(db: Db) -> Any:
                return await db.fetch(SQL["name_workers"], list(missing))

            while missing:  # one that was named a moment ago shows in the next snapshot
                rows = await self._database.writing.write("name_workers", work, again=work)
                for number, name in rows:
                    self._numbers[name] = number
                    self._names[number] = name
                    missing.discard(name)
        return [self._numbers[name] for name in names]

    async def of(self, db: Db, numbers: Sequence[int | None]) -> Mapping[int, str]:
        """Names by number, at least these. Asks on the connection of a write that is under way,
        which must not wait for one more."""
        missing = {n for n in numbers if n is not None and n not in self._names}
        if missing:
            for number, name in await db.fetch(SQL["worker_names"], list(missing)):
                self._names[number] = name
        return self._names
