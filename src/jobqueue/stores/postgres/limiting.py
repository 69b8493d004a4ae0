"""Count what the limits of queues and keys still allow, for claims.

A claim first reads the counts without a lock, to plan how many jobs of each queue and key it takes.
Then it takes an advisory lock of each of these queues, counts again, leaves out the jobs that are
too many, and writes. The number of held jobs of a queue is in ``queue_tally``, because every write
of a job's state also writes its difference there. That of a key is counted in an index. So a limit
costs nothing at the end of a job.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jobqueue.core.limits import MOST_KEYS, Allowance, Limits, Shares
from jobqueue.core.turns import KeyAllowances
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.heads import kind_of
from jobqueue.stores.postgres.queue_cache import Home
from jobqueue.stores.postgres.statements import SQL

# How long a claim waits for another claim's lock. A server that was suspended may keep it longer.
_PATIENCE = "500ms"
BUSY = 0.05  # seconds until the next try, if the wait was too short
_WHOLE_QUEUE = 0  # the key of the bucket of a queue
_MOST_LINES = 2 * MOST_KEYS  # a key may have several types and priorities
_LOWEST = -(1 << 63)

Key = int | None
"""The number of a concurrency key, or None for jobs without a key."""

Place = tuple[int, int, int, int, int, int]
"""Queue, key, rank, ready, type and the first job's number of a line of claimable jobs."""


@dataclass(slots=True)
class Counted:
    """What the limits of some queues still allow, by the queues' numbers."""

    queues: dict[int, Allowance] = field(default_factory=dict)
    keys: dict[int, KeyAllowances[Key]] = field(default_factory=dict)  # where keys count
    lines: list[Place] = field(default_factory=list)  # claimable jobs with keys, of these queues
    now: float | None = None  # when it was counted, by the database's clock

    def start(self, queue: int, key: Key) -> None:
        """Count a job that is to be assigned."""
        if queue in self.queues:
            self.queues[queue].started += 1
        if queue in self.keys:
            self.keys[queue].of(key).started += 1

    def take_back(self, queue: int, key: Key) -> None:
        """Take back the count of a job that was not assigned."""
        if queue in self.queues:
            self.queues[queue].started -= 1
        if queue in self.keys:
            self.keys[queue].of(key).started -= 1

    def allows(self, queue: int, key: Key) -> bool:
        """Return True if the limits allow another start."""
        allowed = self.queues.get(queue)
        if allowed is not None and not allowed.left:
            return False
        return queue not in self.keys or self.keys[queue].of(key).left > 0

    def note_held_back(self, homes: Mapping[int, Home], held_back: dict[str, float]) -> None:
        """Add the queues whose limits, or those of their keys, allow no start: see ``Claimed``."""
        for queue, allowed in self.queues.items():
            opens_in = None if allowed.left else allowed.opens_in
            if opens_in is None and queue in self.keys:
                opens_in = self.keys[queue].opens_in
            if opens_in is not None:
                name = homes[queue].name
                held_back[name] = min(opens_in, held_back.get(name, opens_in))


class Limiting:
    """Reads the state of limits, takes their locks, and writes the state of their buckets."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._crowded: set[int] = set()  # queues in which more keys wait than a claim looks at
        self._shares: dict[int, tuple[Limits, Shares[Key] | None]] = {}

    def shares(self, home: Home) -> Shares[Key] | None:
        """Return the shares of keys in a queue, by the numbers that rows have for keys."""
        limits = home.limits
        if limits is None or not limits.key_weights:
            return None
        known = self._shares.get(home.id)
        if known is None or known[0] is not limits:
            said = limits.shares
            named: dict[Key, int] = {}
            if said is not None:
                named = {kind_of(key): n for key, n in said.named.items() if key is not None}
            known = limits, None if said is None else Shares(named, said.others)
            self._shares[home.id] = known
        return known[1]

    async def look(self, homes: Collection[Home]) -> Counted:
        """Count without locks. In queues where keys count, also look for jobs with keys."""

        async def look(db: Db) -> Counted:
            lines = await self._lines(db, [home.id for home in homes if _keyed(home)])
            counted = await self._count(db, homes, {line[1] for line in lines})
            counted.lines = lines
            for queue, key, *_ in lines:
                counted.keys[queue].of(key)
            await self._write(db, SQL["shorten_buckets"], counted)  # after a change of a limit
            return counted

        return await self._database.dispatching.read("limits", look)

    async def lock(self, db: Db, homes: Collection[Home], keys: Collection[int]) -> Counted:
        """Lock the limits of queues until the transaction ends, then count.

        Raise asyncpg.LockNotAvailableError if other claims hold a lock for too long.
        """
        await db.execute(SQL["lock_limits"], _PATIENCE, sorted(home.id for home in homes))
        return await self._count(db, homes, keys)  # in a new snapshot

    async def _lines(self, db: Db, queues: Sequence[int]) -> list[Place]:
        found: list[Place] = []
        for queue in queues:
            # Where more keys wait than a claim looks at, each claim looks at some by lot.
            start = random.randrange(_LOWEST, -_LOWEST) if queue in self._crowded else _LOWEST
            rows = await db.fetch(SQL["key_lines"], [queue], start, _MOST_LINES)
            if len(rows) < _MOST_LINES and start > _LOWEST:
                seen = {tuple(row) for row in rows}
                more = await db.fetch(SQL["key_lines"], [queue], _LOWEST, _MOST_LINES)
                rows = [*rows, *(row for row in more if tuple(row) not in seen)]
                self._crowded.discard(queue)
            if len(rows) >= _MOST_LINES:
                self._crowded.add(queue)
            found += [tuple(row) for row in rows]
        return found

    async def _count(self, db: Db, homes: Collection[Home], keys: Collection[int]) -> Counted:
        by_id = {home.id: home for home in homes}
        keyed = [home.id for home in homes if _keyed(home)]
        held: dict[int, dict[Key, int]] = {queue: {} for queue in keyed}
        buckets: dict[int, dict[Key, float]] = {queue: {} for queue in keyed}
        if keyed:
            for queue, key, jobs, full_at in await db.fetch(SQL["key_state"], keyed, list(keys)):
                if jobs is None:
                    buckets[queue][key] = full_at
                else:
                    held[queue][key] = jobs
        # The time is read last: a job that has ended by then may be counted, but none is left out
        # that ends later. So jobs that start at this time share no time with more than allowed.
        counted = Counted()
        rows = await db.fetch(SQL["limit_state"], list(by_id), self._database.now())
        for queue, count, full_at, now in rows:
            limits = by_id[queue].limits
            assert limits is not None
            counted.now = now
            counted.queues[queue] = limits.allowance(count, full_at, now)
            if queue in held:
                held[queue][None] = max(0, count - sum(held[queue].values()))
                counted.keys[queue] = KeyAllowances(limits, held[queue], buckets[queue], now)
        return counted

    async def write(self, db: Db, counted: Counted) -> None:
        """Write the state of the buckets from which starts were taken."""
        await self._write(db, SQL["put_buckets"], counted)

    async def _write(self, db: Db, statement: str, counted: Counted) -> None:
        buckets = [
            (queue, _WHOLE_QUEUE, full_at)
            for queue, allowed in counted.queues.items()
            if (full_at := allowed.full_at) is not None
        ]
        for queue, keys in counted.keys.items():
            buckets += [
                (queue, key, full_at) for key, full_at in keys.spent.items() if key is not None
            ]
        if buckets:
            buckets.sort()
            columns = [list(column) for column in zip(*buckets, strict=True)]
            await db.execute(statement, *columns)


def limited(homes: Iterable[Home]) -> list[Home]:
    """Return the queues that have limits."""
    return [home for home in homes if home.limits is not None]


def _keyed(home: Home) -> bool:
    return home.limits is not None and home.limits.keyed
