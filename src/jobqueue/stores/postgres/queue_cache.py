"""Cache the queues and the numbers of workers that this process has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from jobqueue.core.limits import Limits
from jobqueue.core.retry import RetryPolicy, policy_of
from jobqueue.core.store import ALL_QUEUES, Claim
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.statements import BATCH, SQL
from jobqueue.stores.queue_rows import read_limits, read_weights

ANY_NUMBER = 1 << 31  # stands for any number of jobs
_MOST_NAMES = 20_000  # of workers


@dataclass(frozen=True, slots=True)
class Home:
    """Holds the fields of a queue that claims and transitions need."""

    id: int
    name: str
    closed: bool  # at the time of the read
    deleted: bool
    weights: dict[int, int] | None
    policy: RetryPolicy
    limits: Limits | None


class QueueCache:
    """Caches the queues as they were last read.

    The cache may be outdated, so each write's statement checks the conditions that it depends on.
    """

    def __init__(self, few: int = 1) -> None:
        self.few = few  # jobs: fewer of a kind are written as rows of their own
        self._by_id: dict[int, Home] = {}
        self.stale = True
        self.changes = 0
        self._layout = 1
        self.limited = False  # True if a queue has limits
        self.counted: Set[str] = frozenset()  # names of the queues with a limit of held jobs

    def spoil(self) -> None:
        """Mark the cache as outdated: all queues are read again before their next use."""
        self.changes += 1
        self.stale = True

    def read(self, rows: Sequence[Any], change: int) -> None:
        """Replace the cached queues by rows of the table.

        ``change`` is the value of ``changes`` before the read. If it has changed since, the rows
        may lack a change, and the cache stays outdated.
        """
        self._by_id = {}
        counted: set[str] = set()
        self.limited = False
        for number, name, closed, deleted, self._layout, weights, more, *retry in rows:
            limits = read_limits(more)
            self._by_id[number] = Home(
                number,
                name,
                closed,
                deleted,
                read_weights(weights),
                policy_of(*retry),
                limits,
            )
            if limits is not None:
                self.limited = True
                if limits.counts_held:
                    counted.add(name)
        self.counted = counted
        self.stale = change != self.changes

    async def _read(self, db: Db, now: float | None) -> None:
        change = self.changes
        self.read(await db.fetch(SQL["read_queues"], now), change)

    async def texts(self, db: Db, jobs: int, now: float | None) -> Mapping[str, str]:
        """Return the statements for a write of ``jobs`` jobs.

        If there are enough jobs and the layout allows it, the statements write rows that each stand
        for many jobs.
        """
        return BATCH if jobs >= self.few and await self.layout(db, now) > 1 else SQL

    async def layout(self, db: Db, now: float | None) -> int:
        """Return the number of the layout, which says what rows may be written (layout.py)."""
        if self.stale:
            await self._read(db, now)
        return self._layout

    async def resolve(self, db: Db, queue: int, now: float | None) -> Home:
        """Return the queue with the number ``queue``, even if it is deleted."""
        home = self._by_id.get(queue)
        if home is None or self.stale:
            await self._read(db, now)
            home = self._by_id[queue]
        return home

    def claimable(self, wanted: Claim) -> dict[int, Home]:
        """Return, by number, the queues from which a claim may take jobs."""
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
    """Caches the numbers that rows store for worker names. The number of a name never changes.

    Callers may register one name after the other, so the cache is emptied when it is full. Names of
    workers that get jobs return with their next claim.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}

    @property
    def known(self) -> Mapping[str, int]:
        """Return the cached numbers by name."""
        return self._numbers

    async def number(self, names: Sequence[str]) -> list[int]:
        """Return the numbers of worker names. A name without a number gets a new number."""
        known = self._numbers
        found: dict[str, int] = {}
        missing = {name for name in names if name not in known}
        if missing:

            async def work(db: Db) -> Any:
                return await db.fetch(SQL["name_workers"], list(missing))

            while missing:  # a name that another server has just added is in the next snapshot
                rows = await self._database.writing.write("name_workers", work, again=work)
                for number, name in rows:
                    found[name] = number
                    missing.discard(name)
            self._keep(found)
        return [found[name] if name in found else known[name] for name in names]

    def _keep(self, found: Mapping[str, int]) -> None:
        if len(self._names) + len(found) > _MOST_NAMES:
            # Not cleared: a caller of ``of`` or ``known`` may still use the old ones.
            self._numbers, self._names = {}, {}
        for name, number in found.items():
            self._numbers[name] = number
            self._names[number] = name

    async def of(self, db: Db, numbers: Sequence[int | None]) -> Mapping[int, str]:
        """Return worker names by number, at least for the given numbers.

        Missing names are read on ``db``, the connection of the caller's write, because a write must
        not wait for a second connection.
        """
        known = self._names
        wanted = {n for n in numbers if n is not None}
        missing = wanted.difference(known)
        if not missing:
            return known
        rows = await db.fetch(SQL["worker_names"], list(missing))
        found = {name: number for number, name in rows}
        self._keep(found)
        return {number: name for name, number in found.items()} | {
            number: known[number] for number in wanted - missing
        }
