"""PENDING -> ASSIGNED: candidates are read without locks, advised upon by Redis, then taken.

PostgreSQL decides: whatever was read or advised, the write takes only what is still claimable.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from jobqueue.core.ids import new_lease
from jobqueue.core.job import NO_LABELS, Assignment, JobSpec
from jobqueue.core.queue import MAX_PRIORITY, by_weight, merge_queues
from jobqueue.core.store import Claim, Locks, Rules
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.heads import (
    MOST_SEEN,
    Chosen,
    Found,
    Head,
    Heads,
    Level,
    crowded,
    kinds_of,
)
from jobqueue.stores.postgres.queue_cache import Home, QueueCache, WorkerNameCache
from jobqueue.stores.postgres.statements import SQL, array
from jobqueue.stores.rows import read_more

_log = logging.getLogger("jobqueue.stores.postgres")
_ROUNDS = 4  # of one claim that others got in the way of, or that found nothing
_A_FEW = 4  # candidates of each type, beyond its share
_MOST_SHARES = 10_000


Candidate = tuple[int, int, int, int]
"""Rank, seq, queue, attempt."""


class Claiming:
    """Fills claims, one at a time in this process: two would reach for the same jobs."""

    def __init__(
        self,
        database: Database,
        names: WorkerNameCache,
        heads: Heads,
        queue_cache: QueueCache,
        rules: Rules,
        locks: Locks | None,
    ) -> None:
        self._database = database
        self._runner = database.dispatching
        self._names = names
        self._heads = heads
        self._queue_cache = queue_cache
        self._rules = rules
        self._locks = locks
        self._one = asyncio.Lock()
        self._contended = False
        self._shares: dict[Head, float] = {}  # of what was taken of their level last
        self.instance = ""

    async def fill(self, claims: Sequence[Claim]) -> list[Assignment]:
        """Fill them, as ``JobStore.claim`` says."""
        assigned: list[Assignment] = []
        async with self._one:
            for wanted in claims:
                if wanted.slots:
                    assigned += await self._fill(wanted)
        return assigned

    async def _fill(self, wanted: Claim) -> list[Assignment]:
        if self._queue_cache.stale:
            await self._look()
        workers = await self._names.number(wanted.slots)
        kinds = None if wanted.types is None else kinds_of(wanted.types)
        assigned: list[Assignment] = []
        lost: list[int] = []
        rounds = _ROUNDS
        while rounds:
            homes = self._queue_cache.claimable(wanted)
            chosen = self._heads.of(homes, kinds)
            if self._heads.wants_look(bool(chosen.floors)):
                await self._look()
                homes = self._queue_cache.claimable(wanted)
                chosen = self._heads.of(homes, kinds)
            if unknown := self._heads.unknown(homes, kinds):
                await self._ask(unknown)
                chosen = self._heads.of(homes, kinds)
            if not chosen.floors:
                break
            slots, numbers = wanted.slots[len(assigned) :], workers[len(assigned) :]
            got, missed = await self._round(homes, chosen, slots, numbers, lost)
            assigned += got
            lost += missed
            self._contended = bool(missed)
            if len(assigned) == len(wanted.slots) or (not missed and chosen.whole):
                break
            if missed or not got:
                rounds -= 1
        return assigned

    async def _look(self) -> None:
        self._heads.begin()
        change = self._queue_cache.changes
        began = time.perf_counter()

        async def look(db: Db) -> tuple[Any, list[Found]]:
            queue_cache = await db.fetch(SQL["read_queues"], self._database.now())
            found = [tuple(row) for row in await db.fetch(SQL["heads"], MOST_SEEN)]
            if more := crowded(found):
                # Others by lot, so that each type has its turn.
                start = random.randrange(-(1 << 63), 1 << 63)
                columns = map(list, zip(*more, strict=True))
                rows = await db.fetch(SQL["heads_after"], *columns, start, MOST_SEEN)
                found += [tuple(row) for row in rows]
            return queue_cache, found

        queue_cache, found = await self._runner.read("look", look)
        self._queue_cache.read(queue_cache, change)
        self._heads.looked(found, time.perf_counter() - began)

    async def _ask(self, unknown: Sequence[Head]) -> None:
        """All at once: those that have nothing must not use up the rounds."""
        self._heads.begin()
        arguments = [list(column) for column in zip(*unknown, strict=True)]

        async def ask(db: Db) -> list[Found]:
            return [tuple(row) for row in await db.fetch(SQL["heads_of"], *arguments)]

        self._heads.asked(unknown, await self._runner.read("ask", ask))

    async def _round(
        self,
        homes: dict[int, Home],
        chosen: Chosen,
        slots: Sequence[str],
        workers: Sequence[int],
        lost: list[int],
    ) -> tuple[list[Assignment], list[int]]:
        """Read, ask, take. Returns what was got, and what others had their hands on."""
        wanted = len(slots)
        limit = 2 * wanted if self._contended else wanted
        self._heads.begin()
        found = await self._candidates(chosen.floors, limit, lost)
        order = self._in_order(homes, found.rows, limit, chosen.ends)
        if not order:
            for head in chosen.floors:
                self._heads.advance(head, None)
            return [], []
        advised = order
        if self._locks is not None:
            names = [f"{self.instance}:{seq}:{attempt + 1}" for _, seq, _, attempt in order]
            won = await self._locks.take(names, wanted)
            if won is not None:
                advised = [order[place] for place in won]
        got = await self._assign(homes, advised, slots, workers) if advised else []
        taken = {one.seq for one in got}
        last = max((n for n, one in enumerate(order) if one[1] in taken), default=-1)
        reached = len(order) if len(got) < wanted else last + 1
        missed = [one[1] for one in order[:reached] if one[1] not in taken]
        self._advance(found, taken.union(missed))
        if len(self._shares) > _MOST_SHARES:
            self._shares.clear()
        self._shares |= found.shares(taken)
        return got, missed

    async def _candidates(self, floors: dict[Head, int], limit: int, lost: list[int]) -> Candidates:
        """Enough of each level, but not as many of each type: the first ``limit`` are needed."""
        found = Candidates(floors, limit, self._shares)
        await self._read(found, floors, lost)
        if short := found.short():
            for head in short:
                found.most[head] = limit
            await self._read(found, {head: floors[head] for head in short}, lost)
        return found

    async def _read(self, found: Candidates, floors: dict[Head, int], lost: list[int]) -> None:
        arguments = (
            [queue for queue, _, _ in floors],
            [rank for _, rank, _ in floors],
            [kind for _, _, kind in floors],
            list(floors.values()),
            [found.most[head] for head in floors],
            self._database.now(),
            lost,
        )

        async def read(db: Db) -> Any:
            return await db.fetch(SQL["candidates"], *arguments)

        for head in floors:
            found.rows[head] = []
        for queue, rank, kind, seq, attempt in await self._runner.read("candidates", read):
            found.rows[queue, rank, kind].append((rank, seq, queue, attempt))

    @staticmethod
    def _in_order(
        homes: dict[int, Home],
        found: dict[Head, list[Candidate]],
        limit: int,
        ends: Mapping[Level, int],
    ) -> list[Candidate]:
        by_queue: dict[int, dict[int, list[list[Candidate]]]] = {}
        for (queue, rank, _), rows in found.items():
            if rows:
                by_queue.setdefault(queue, {}).setdefault(rank, []).append(rows)
        laid: list[tuple[bool, list[Candidate]]] = []
        for queue, types in by_queue.items():
            levels = {
                rank: _merge(rows, limit, ends.get((queue, rank))) for rank, rows in types.items()
            }
            weights = homes[queue].weights
            if weights is None:
                laid.append((False, [row for rank in sorted(levels) for row in levels[rank]]))
            else:
                by_priority = {MAX_PRIORITY - rank: rows for rank, rows in levels.items()}
                laid.append((True, by_weight(weights, by_priority, limit)))
        return merge_queues(laid, limit) if laid else []

    async def _assign(
        self,
        homes: dict[int, Home],
        candidates: list[Candidate],
        slots: Sequence[str],
        workers: Sequence[int],
    ) -> list[Assignment]:
        seqs = [one[1] for one in candidates]
        leases = [new_lease() for _ in slots]
        now = self._database.now()
        by_lease = dict(zip(leases, slots, strict=True))

        async def take(db: Db) -> Any:
            texts = await self._queue_cache.texts(db, len(slots), now)
            return await db.fetch(
                texts["assign"],
                array(seqs),
                array([one[3] for one in candidates]),
                len(slots),
                array(leases),
                array(workers),
                self._rules.assignment_timeout,
                now,
            )

        async def look(db: Db) -> Any:
            # All of it was written, or nothing.
            return await db.fetch(SQL["claimed"], seqs, leases, now) or await take(db)

        rows = await self._runner.write("assign", take, again=look)
        rows.sort(key=lambda row: row[0])
        return [
            Assignment(
                seq,
                str(job_id),
                JobSpec(
                    payload=payload,
                    queue=homes[queue].name,
                    type=type,
                    priority=MAX_PRIORITY - rank,
                    max_retries=max_retries,
                    timeout=timeout,
                    labels=json.loads(labels) if labels else NO_LABELS,
                    **read_more(more),
                ),
                attempt,
                lease,
                by_lease[lease],
                retry_count,
                created_at,
                expires_in,
                deaths,
            )
            for (
                _, seq, job_id, queue, type, payload, attempt, lease, rank, retry_count,
                max_retries, created_at, timeout, expires_in, labels, more, deaths,
            ) in rows
        ]  # fmt: skip

    def _advance(self, found: Candidates, seen: set[int]) -> None:
        for head, rows in found.rows.items():
            left = [seq for _, seq, _, _ in rows if seq not in seen]
            if left:
                self._heads.advance(head, min(left))
            elif len(rows) >= found.most[head]:
                self._heads.advance(head, rows[-1][1] + 1)
            else:
                self._heads.advance(head, None)


def _merge(types: list[list[Candidate]], limit: int, end: int | None) -> list[Candidate]:
    """The next jobs of one level, up to where a type that was not read may have an older one."""
    rows = types[0] if len(types) == 1 else sorted(chain(*types))[:limit]
    if end is None:
        return rows
    # Nothing before it: others took what the floors promise. Better these than none.
    return [row for row in rows if row[1] < end] or rows


class Candidates:
    """The rows that were read of each head, and the most that may be read of it.

    Where several types wait in one level, fewer jobs are read of each than are wanted: as many as
    it had of the last ones, and some more.
    """

    def __init__(self, floors: Iterable[Head], limit: int, shares: Mapping[Head, float]) -> None:
        self.rows: dict[Head, list[Candidate]] = {}
        self._limit = limit
        self._levels: dict[tuple[int, int], list[Head]] = {}
        for head in floors:
            self._levels.setdefault(head[:2], []).append(head)
        self.most: dict[Head, int] = {}
        for level in self._levels.values():
            for head in level:
                share = 1.0 if len(level) == 1 else shares.get(head, 1 / len(level))
                self.most[head] = min(limit, int(1.25 * share * limit) + _A_FEW)

    def short(self) -> list[Head]:
        """The heads of which more may belong to the first jobs of their level."""
        found: list[Head] = []
        for level in self._levels.values():
            cut = [head for head in level if self._cut(head)]
            if cut:
                seqs = sorted(row[1] for head in level for row in self.rows[head])
                last = seqs[self._limit - 1] if len(seqs) >= self._limit else float("inf")
                found += [head for head in cut if self.rows[head][-1][1] < last]
        return found

    def shares(self, taken: Container[int]) -> dict[Head, float]:
        """Each head's part of what was taken of its level, where there are several."""
        shares: dict[Head, float] = {}
        for level in self._levels.values():
            if len(level) > 1:
                counts = {head: sum(row[1] in taken for row in self.rows[head]) for head in level}
                total = sum(counts.values())
                if total:
                    shares.update((head, count / total) for head, count in counts.items())
        return shares

    def _cut(self, head: Head) -> bool:
        return len(self.rows[head]) == self.most[head] < self._limit
