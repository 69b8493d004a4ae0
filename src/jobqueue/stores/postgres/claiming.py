"""Moves jobs from PENDING to ASSIGNED.

A claim reads candidates without row locks. Then it takes locks in Redis, so that other servers
rarely choose the same jobs. Then it writes, and the write takes only jobs that are still claimable.
A candidate is a live row or a job of a range. From a range, the write takes exactly the planned
part, or nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from types import MappingProxyType
from typing import Any

import asyncpg
from asyncpg import BitString

from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import NO_LABELS, Assignment, JobSpec
from jobqueue.core.queue import MAX_PRIORITY, by_weight, merge_queues
from jobqueue.core.store import Claim, Claimed, Locks, Rules
from jobqueue.core.turns import KeyAllowances, Turns
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
from jobqueue.stores.postgres.leases import bits, new_base, new_row_lease
from jobqueue.stores.postgres.limiting import BUSY, Counted, Key, Limiting, Place, limited
from jobqueue.stores.postgres.queue_cache import Home, QueueCache, WorkerNameCache
from jobqueue.stores.postgres.statements import (
    CLAIM_MIXED,
    LEAVE_UNLOCKED,
    RANGES,
    SQL,
    WITHIN,
    array,
)
from jobqueue.stores.rows import read_more

_log = logging.getLogger("jobqueue.stores.postgres")
_ROUNDS = 4  # of one claim that others got in the way of, or that found nothing
_A_FEW = 4  # candidates of each type, beyond its share
_MOST_SHARES = 10_000
_MOST_KINDS = 10_000


Candidate = tuple[int, int, int, int, int]
"""A job's rank, seq, queue and attempt, and the last number of its range (0: it has a live row)."""

NO_KEYS: Mapping[int, int] = MappingProxyType({})

Slot = tuple[str, int]
"""The worker of a free slot: name and number."""


@dataclass(slots=True)
class _Plan:
    """Holds the jobs that a claim is about to take, and the places of their slots."""

    rows: list[Candidate] = field(default_factory=list)  # more than slots, if others are in the way
    row_places: list[int] = field(default_factory=list)
    ranges: dict[int, list[int]] = field(default_factory=dict)  # places, by the last number
    seqs: dict[int, int] = field(default_factory=dict)  # of jobs of ranges, by place
    homes: dict[int, Home] = field(default_factory=dict)
    order: Sequence[Candidate] = ()  # all candidates, in claim order
    keys: Mapping[int, int] = field(default_factory=dict)  # of jobs by number, where keys count

    @classmethod
    def of(
        cls,
        order: Sequence[Candidate],
        slots: int,
        homes: dict[int, Home],
        keys: Mapping[int, int] = NO_KEYS,
    ) -> _Plan:
        """Return the plan that takes as many of the first jobs as there are slots."""
        plan = cls(homes=homes, order=order, keys=keys)
        for place, one in enumerate(order):
            if not one[4]:
                plan.rows.append(one)
                if place < slots:
                    plan.row_places.append(place)
            elif place < slots:
                plan.ranges.setdefault(one[4], []).append(place)
                plan.seqs[place] = one[1]
        return plan

    @property
    def limited(self) -> list[Home]:
        """Return the queues with limits from which the plan may take jobs."""
        return limited(self.homes[queue] for queue in {one[2] for one in self.order})

    def within(self, counted: Counted, slots: int) -> _Plan:
        """Return the part of the plan that the limits allow.

        Spare candidates, which replace jobs that another claim has taken, are left out as well.
        """
        order = []
        for one in self.order[:slots]:
            queue, key = one[2], self.keys.get(one[1])
            if counted.allows(queue, key):
                counted.start(queue, key)
                order.append(one)
        return _Plan.of(order, slots, self.homes, self.keys)


@dataclass(slots=True)
class _Got:
    assigned: dict[int, Assignment] = field(default_factory=dict)  # by the place of the slot
    missed: list[int] = field(default_factory=list)  # rows that others took
    passed: dict[Head, int] = field(default_factory=dict)  # beginnings of ranges that others held
    more: bool = False  # of some keys, only some jobs were read


class Claiming:
    """Fills claims, one at a time in this process, because two would read the same candidates."""

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
        self._limiting = Limiting(database)
        self._one = asyncio.Lock()
        self._contended = False
        self._keyed_kinds: set[int] = set()  # kinds of jobs with concurrency keys, as far as known
        self._shares: dict[Head, float] = {}  # of what was taken of their level last
        self.instance = ""

    async def fill(self, claims: Sequence[Claim]) -> list[Assignment]:
        """Assign jobs to the slots of the claims, as ``JobStore.claim`` says."""
        assigned: list[Assignment] = []
        held: dict[str, float] = {}
        async with self._one:
            for wanted in claims:
                if wanted.slots:
                    assigned += await self._fill(wanted, held)
        return Claimed(assigned, held) if held else assigned

    async def _fill(self, wanted: Claim, held: dict[str, float]) -> list[Assignment]:
        if self._queue_cache.stale:
            await self._look()
        numbers = await self._names.number(wanted.slots)
        free: list[Slot] = list(zip(wanted.slots, numbers, strict=True))
        kinds = None if wanted.types is None else kinds_of(wanted.types)
        assigned: list[Assignment] = []
        lost: list[int] = []
        passed: dict[Head, int] = {}
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
            counted: Counted | None = None
            if self._queue_cache.limited and chosen.floors:
                counted = await self._look_at_limits(homes, chosen, kinds, held)
            if not chosen.floors and (counted is None or not counted.lines):
                break
            others = [*lost, *passed.values()]
            got = await self._round(homes, chosen, free, others, counted, held)
            # Another claim holds the front of such a range for a moment. The rest of the range can
            # be claimed: it is read again in the round after the next.
            for head, first in (passed | got.passed).items():
                self._heads.lower(head, first)
            assigned += [got.assigned[place] for place in sorted(got.assigned)]
            free = [slot for place, slot in enumerate(free) if place not in got.assigned]
            lost += got.missed
            missed = bool(got.missed or got.passed)
            self._contended = missed
            if not free or (chosen.whole and not (missed or passed or got.more)):
                break
            if missed or not got.assigned:
                rounds -= 1
            passed = got.passed
        return assigned

    async def _look_at_limits(
        self,
        homes: Mapping[int, Home],
        chosen: Chosen,
        kinds: frozenset[int] | None,
        held: dict[str, float],
    ) -> Counted | None:
        """Return what the limits of the chosen queues allow; None if none of them has limits.

        Leave out queues that may start nothing, and add them to ``held``. Where keys count, leave
        out the heads of jobs with keys, because these jobs are read by their keys.
        """
        some = limited(homes[queue] for queue in {head[0] for head in chosen.floors})
        if not some:
            return None
        counted = await self._limiting.look(some)
        counted.note_held_back(homes, held)
        closed = {queue for queue, allowed in counted.queues.items() if not allowed.left}
        self._keyed_kinds.update(line[4] for line in counted.lines)
        if len(self._keyed_kinds) > _MOST_KINDS:
            self._keyed_kinds = {line[4] for line in counted.lines}
        for head in list(chosen.floors):
            if head[0] in closed or (head[0] in counted.keys and head[2] in self._keyed_kinds):
                del chosen.floors[head]
        counted.lines = [
            line
            for line in counted.lines
            if line[0] not in closed
            and (kinds is None or line[4] in kinds)
            and counted.keys[line[0]].of(line[1]).left
        ]
        return counted

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
        """Read the first jobs of heads that the last look may have passed over."""
        # In one query: otherwise each empty head would use up a round of the claim.
        self._heads.begin()
        arguments = [list(column) for column in zip(*unknown, strict=True)]

        async def ask(db: Db) -> list[Found]:
            return [tuple(row) for row in await db.fetch(SQL["heads_of"], *arguments)]

        self._heads.asked(unknown, await self._runner.read("ask", ask))

    async def _round(
        self,
        homes: dict[int, Home],
        chosen: Chosen,
        free: Sequence[Slot],
        lost: list[int],
        counted: Counted | None,
        held: dict[str, float],
    ) -> _Got:
        """Read candidates, take their locks in Redis, and assign them to slots."""
        limit = 2 * len(free) if self._contended else len(free)
        self._heads.begin()
        found = await self._candidates(chosen.floors, limit, lost)
        keyed = NO_LINES
        if counted is not None and counted.lines:
            keyed = await self._keyed_candidates(counted, len(free), lost)
        order = self._in_order(homes, found.rows, limit, chosen.ends, counted, keyed)
        if not order:
            for head in chosen.floors:
                self._heads.advance(head, None)
            return _Got()
        plan = _Plan.of(order, len(free), homes, keyed.keys)
        advised = plan if self._locks is None else await self._advised(plan, order, len(free))
        written, assigned = await self._assign(advised, free, held)
        if written is not advised:
            plan = written  # limits excluded the other jobs, so they are still claimable
        got = _Got(assigned, more=keyed.cut)
        taken = {one.seq for one in got.assigned.values()}
        rows = [one[1] for one in plan.rows]
        last = max((n for n, seq in enumerate(rows) if seq in taken), default=-1)
        if sum(seq in taken for seq in rows) < len(plan.row_places):
            last = len(rows) - 1
        got.missed = [seq for seq in rows[: last + 1] if seq not in taken]
        for hi, places in plan.ranges.items():
            if (first := plan.seqs[places[0]]) not in taken:
                head = found.ranges[hi]
                got.passed[head] = min(first, got.passed.get(head, first))
        self._advance(found, taken.union(got.missed))
        if len(self._shares) > _MOST_SHARES:
            self._shares.clear()
        self._shares |= found.shares(taken)
        return got

    async def _advised(self, plan: _Plan, order: Sequence[Candidate], slots: int) -> _Plan:
        """Return the part of a plan whose locks were won, or all of it if Redis does not answer.

        Each live row and each range has a lock. A range's lock is named by its first number, too,
        so a range that was shortened has a new lock.
        """
        assert self._locks is not None
        units: dict[int, str] = {}
        for place, (_, seq, _, attempt, hi) in enumerate(order):
            if not hi:
                units[place] = f"{self.instance}:{seq}:{attempt + 1}"
            elif hi in plan.ranges and place == plan.ranges[hi][0]:
                units[place] = f"{self.instance}:{hi}-{seq}"
        wanted = len(plan.row_places) + len(plan.ranges)
        won = await self._locks.take(list(units.values()), wanted)
        if won is None:
            return plan
        places = list(units)
        mine = [order[places[n]] for n in won]
        ranges = {one[4] for one in mine if one[4]}
        if self._queue_cache.limited:
            rows = set(mine)
            order = [one for one in order if one[4] in ranges or one in rows]
        return _Plan(
            [one for one in mine if not one[4]],
            plan.row_places,
            {hi: found for hi, found in plan.ranges.items() if hi in ranges},
            plan.seqs,
            plan.homes,
            order,
            plan.keys,
        )

    async def _candidates(self, floors: dict[Head, int], limit: int, lost: list[int]) -> Candidates:
        """Read the first ``limit`` jobs of each level.

        A first query reads a part of them from each type. A second query reads more of each type
        that may have further jobs among the first ``limit`` of its level.
        """
        found = Candidates(floors, limit, self._shares)
        if floors:
            await self._read(found, floors, lost)
        if short := found.short():
            for head in short:
                found.most[head] = limit
            await self._read(found, {head: floors[head] for head in short}, lost)
        return found

    async def _keyed_candidates(
        self, counted: Counted, limit: int, lost: list[int]
    ) -> KeyedCandidates:
        """Read the first jobs of each line: its share of the slots, and a few more."""
        lines = counted.lines
        share = int(1.25 * limit / len(lines)) + _A_FEW
        most = [
            int(min(limit, share, counted.keys[queue].of(key).left)) for queue, key, *_ in lines
        ]
        now = self._database.now()
        columns = [list(column) for column in zip(*lines, strict=True)]

        async def read(db: Db) -> Any:
            return await db.fetch(SQL["key_candidates"], *columns, most, now, lost)

        rows: list[list[Candidate]] = [[] for _ in lines]
        for n, seq, attempt in await self._runner.read("key_candidates", read):
            queue, _, rank, *_ = lines[n - 1]
            rows[n - 1].append((rank, seq, queue, attempt, 0))
        return KeyedCandidates(lines, rows, [min(limit, share)] * len(lines))

    async def _read(self, found: Candidates, floors: dict[Head, int], lost: list[int]) -> None:
        arguments = (
            [queue for queue, _, _ in floors],
            [rank for _, rank, _ in floors],
            [kind for _, _, kind in floors],
            list(floors.values()),
            [found.most[head] for head in floors],
        )
        now = self._database.now()

        async def read(db: Db) -> Any:
            rows = await db.fetch(SQL["candidates"], *arguments, now, lost)
            ranges = [row[5] for row in rows if row[5]]
            if ranges and await self._queue_cache.layout(db, now) < RANGES:
                # ``jq-ctl layout`` has not converted these ranges yet, or was interrupted.
                await db.execute(LEAVE_UNLOCKED, ranges)
                rows = await db.fetch(SQL["candidates"], *arguments, now, lost)
            return rows

        for head in floors:
            found.rows[head] = []
        mixed: set[Head] = set()
        for queue, rank, kind, seq, attempt, hi in await self._runner.read("candidates", read):
            head = queue, rank, kind
            rows = found.rows[head]
            if not hi:
                rows.append((rank, seq, queue, attempt, 0))
                continue
            found.ranges[hi] = head
            end = min(hi, seq + found.most[head] - 1)
            if rows:
                mixed.add(head)
            rows += [(rank, n, queue, 0, hi) for n in range(seq, end + 1)]
        for head in mixed:
            found.rows[head] = sorted(found.rows[head])
        for head in floors:
            del found.rows[head][found.most[head] :]

    def _in_order(
        self,
        homes: dict[int, Home],
        found: dict[Head, list[Candidate]],
        limit: int,
        ends: Mapping[Level, int],
        counted: Counted | None,
        keyed: KeyedCandidates,
    ) -> list[Candidate]:
        by_queue: dict[int, dict[int, list[list[Candidate]]]] = {}
        for (queue, rank, _), rows in found.items():
            if rows:
                by_queue.setdefault(queue, {}).setdefault(rank, []).append(rows)
        laid: list[tuple[bool, list[Candidate]]] = []
        for queue, keys in (counted.keys if counted is not None else NO_ALLOWANCES).items():
            # Where keys count, each line of jobs has its turn.
            lines = [*keyed.of(queue), *plain_lines(by_queue.pop(queue, {}))]
            home, most = homes[queue], counted.queues[queue].left if counted is not None else 0
            shares = self._limiting.shares(home)
            turns = Turns(lines, keys, shares, home.weights)
            picked: list[Candidate] = []
            while len(picked) < min(most, limit) and (line := turns.next()) is not None:
                picked.append(line.pop())
                turns.took(line)
            if picked:
                laid.append((shares is not None or home.weights is not None, picked))
        for queue, types in by_queue.items():
            levels = {
                rank: _merge(rows, limit, ends.get((queue, rank))) for rank, rows in types.items()
            }
            weights = homes[queue].weights
            allowed = None if counted is None else counted.queues.get(queue)
            most = limit if allowed is None else int(min(limit, allowed.left))
            if weights is None:
                ordered = chain.from_iterable(levels[rank] for rank in sorted(levels))
                laid.append((False, list(islice(ordered, most))))
            else:
                by_priority = {MAX_PRIORITY - rank: rows for rank, rows in levels.items()}
                laid.append((True, by_weight(weights, by_priority, most)))
        return merge_queues(laid, limit) if laid else []

    async def _assign(
        self, plan: _Plan, free: Sequence[Slot], held: dict[str, float]
    ) -> tuple[_Plan, dict[int, Assignment]]:
        """Write a plan, or the part of it that limits allow.

        Return the plan that was written, and the assignments by the place of their slots.
        """
        guarded = plan.limited if self._queue_cache.limited else []
        if guarded:
            return await self._assign_within(plan, free, guarded, held)
        write = _Write(plan, free, self._queue_cache, self._rules, self._database.now())

        async def look(db: Db) -> None:
            await write.look(db)
            await write.take(db)

        if not write.complete:
            try:
                await self._runner.write("assign", write.take, again=look)
            except JobQueueError:
                if not write.rows:
                    raise
                # The live rows are written, so the workers get these jobs.
        return plan, write.assigned()

    async def _assign_within(
        self,
        plan: _Plan,
        free: Sequence[Slot],
        guarded: Sequence[Home],
        held: dict[str, float],
    ) -> tuple[_Plan, dict[int, Assignment]]:
        writes: list[_Write] = []  # the latest one; none, if a lock was not free in time
        counts: list[Counted] = []

        async def count_and_take(db: Db) -> None:
            counted = await self._limiting.lock(db, guarded, set(plan.keys.values()))
            counts[:] = [counted]
            within = plan.within(counted, len(free))
            # The starts have the time at which they were counted. A later time would be closer to
            # the next start than the rate allows.
            write = _Write(within, free, self._queue_cache, self._rules, counted.now, counted)
            writes[:] = [write]
            await write.take(db)
            write.uncount()
            await self._limiting.write(db, counted)

        async def take(db: Db) -> None:
            try:
                async with db.transaction():
                    await count_and_take(db)
            except asyncpg.LockNotAvailableError:
                writes.clear()

        async def look(db: Db) -> None:
            for write in writes:
                write.forget()
                await write.look(db)
                if write.rows or write.jobs:
                    return  # the transaction was committed
            await take(db)

        await self._runner.write("assign", take, again=look)
        if not writes:
            held |= dict.fromkeys((home.name for home in guarded), BUSY)
            return _Plan(homes=plan.homes), {}
        counts[0].note_held_back(plan.homes, held)
        return writes[0].plan, writes[0].assigned()

    def _advance(self, found: Candidates, seen: set[int]) -> None:
        for head, rows in found.rows.items():
            left = [one[1] for one in rows if one[1] not in seen]
            if left:
                self._heads.advance(head, min(left))
            elif len(rows) >= found.most[head]:
                self._heads.advance(head, rows[-1][1] + 1)
            else:
                self._heads.advance(head, None)


def _spec(
    home: Home, type: str, payload: bytes, rank: int, max_retries: int, timeout: float | None,
    labels: str | None, more: str | None,
) -> JobSpec:  # fmt: skip
    return JobSpec(
        payload=payload,
        queue=home.name,
        type=type,
        priority=MAX_PRIORITY - rank,
        max_retries=max_retries,
        timeout=timeout,
        labels=json.loads(labels) if labels else NO_LABELS,
        **read_more(more),
    )


class _Write:
    """Writes a plan with one statement for live rows and one for ranges.

    ``rows`` and ``jobs`` are the answers of the statements, or None while they are not known.
    ``counted`` are the limits that the caller has counted, with all jobs of the plan. Jobs of other
    queues with limits are not taken.
    """

    def __init__(
        self,
        plan: _Plan,
        free: Sequence[Slot],
        queue_cache: QueueCache,
        rules: Rules,
        now: float | None,
        counted: Counted | None = None,
    ) -> None:
        self.plan = plan
        self._free = free
        self._queue_cache = queue_cache
        self._timeout = rules.assignment_timeout
        self._now = now
        self._counted = counted
        self._leases = [new_row_lease() for _ in plan.row_places]
        self._cut = _Cut(plan, free, queue_cache.few)
        self.rows: Any = None
        self.jobs: Any = None
        self.forget()

    def forget(self) -> None:
        """Forget the answers."""
        self.rows = None if self.plan.rows and self.plan.row_places else []
        self.jobs = None if self.plan.ranges else []

    @property
    def complete(self) -> bool:
        """Return True if all answers are known."""
        return self.rows is not None and self.jobs is not None

    def uncount(self) -> None:
        """Take back the count of jobs that were not assigned, because others were faster."""
        taken = {row[1] for row in self.rows or ()}.union(job[0] for job in self.jobs or ())
        for _, seq, queue, _, _ in self.plan.order:
            if seq not in taken and self._counted is not None:
                self._counted.take_back(queue, self.plan.keys.get(seq))

    async def take(self, db: Db) -> None:
        """Run the statements whose answers are not known."""
        plan, cut, leases, now = self.plan, self._cut, self._leases, self._now
        within: list[Any] = []
        of_keys: list[Any] = []
        if self._counted is not None:
            within = [list(self._counted.queues)]
            keys = array("NULL" if (k := plan.keys.get(one[1])) is None else k for one in plan.rows)
            of_keys = [list(self._counted.keys), keys]
        if self.rows is None:
            texts = await self._queue_cache.texts(db, len(leases), now)
            statement = texts["assign"]
            self.rows = await db.fetch(
                WITHIN[statement] if within else statement,
                array(one[1] for one in plan.rows),
                array(one[3] for one in plan.rows),
                len(leases),
                array(leases),
                array(self._free[place][1] for place in plan.row_places),
                self._timeout,
                now,
                *within,
                *of_keys,
            )
        if self.jobs is None and await self._queue_cache.layout(db, now) < RANGES:
            self.jobs = []  # the layout was lowered meanwhile
        if self.jobs is None:
            alone = cut.alone if cut.alone[0] else ()
            statement = CLAIM_MIXED if alone else SQL["claim"]
            self.jobs = await db.fetch(
                WITHIN[statement] if within else statement,
                *cut.columns(),
                self._timeout,
                now,
                *alone,
                *within,
            )

    async def look(self, db: Db) -> None:
        """After a lost answer, read which statements took effect, each as a whole."""
        if self.rows is None:
            seqs = [one[1] for one in self.plan.rows]
            self.rows = await db.fetch(SQL["claimed"], seqs, self._leases, self._now) or None
        if self.jobs is None:
            bases = [base for base in self._cut.bases if base is not None]
            alone = self._cut.alone
            self.jobs = (
                await db.fetch(SQL["claimed_ranges"], bases, alone[1], alone[2], self._now) or None
            )

    def assigned(self) -> dict[int, Assignment]:
        """Return the assignments by the place of their slots."""
        got: dict[int, Assignment] = {}
        plan, free = self.plan, self._free
        place_of = dict(zip(self._leases, plan.row_places, strict=True))
        for (
            _, seq, job_id, queue, type, payload, attempt, lease, rank, retry_count,
            max_retries, created_at, timeout, expires_in, labels, more, deaths,
        ) in self.rows or ():  # fmt: skip
            home, place = plan.homes[queue], place_of[lease]
            spec = _spec(home, type, payload, rank, max_retries, timeout, labels, more)
            got[place] = Assignment(
                seq, str(job_id), spec, attempt, lease, free[place][0], retry_count, created_at,
                expires_in, deaths,
            )  # fmt: skip
        for (
            seq, job_id, queue, type, payload, rank, max_retries, created_at, timeout, expires_in,
            labels, more,
        ) in self.jobs or ():  # fmt: skip
            home, (place, lease) = plan.homes[queue], self._cut.given[seq]
            spec = _spec(home, type, payload, rank, max_retries, timeout, labels, more)
            got[place] = Assignment(
                seq, str(job_id), spec, 1, lease, free[place][0], 0, created_at, expires_in
            )
        return got


class _Cut:
    """Divides planned ranges into the parts of the statement ``claim``: one per range and worker.

    A part of fewer than ``few`` jobs becomes live rows, which cost less than a held row.
    """

    def __init__(self, plan: _Plan, free: Sequence[Slot], few: int) -> None:
        self.given: dict[int, tuple[int, int]] = {}  # place and lease, by seq
        self.bases: list[int | None] = []
        self.alone: tuple[list[int], list[int], list[int], list[int]] = [], [], [], []
        self._ranges: list[tuple[int, int, int]] = []
        self._parts: list[tuple[int, int, int, int, BitString, int]] = []
        for n, (hi, places) in enumerate(plan.ranges.items(), 1):
            self._ranges.append((hi, plan.seqs[places[0]], plan.seqs[places[-1]]))
            of_workers: dict[int, list[int]] = {}
            for place in places:
                of_workers.setdefault(free[place][1], []).append(place)
            for worker, mine in of_workers.items():
                seqs = [plan.seqs[place] for place in mine]
                self._parts.append((n, worker, seqs[0], seqs[-1], bits(seqs), len(seqs)))
                if len(seqs) >= few:
                    base = new_base()
                    self.bases.append(base)
                    self.given.update(
                        (seq, (place, base + seq)) for seq, place in zip(seqs, mine, strict=True)
                    )
                    continue
                self.bases.append(None)
                for seq, place in zip(seqs, mine, strict=True):
                    lease = new_row_lease()
                    self.given[seq] = place, lease
                    for column, value in zip(self.alone, (n, seq, lease, worker), strict=True):
                        column.append(value)

    def columns(self) -> list[list[Any]]:
        """Return the first arguments of the statement ``claim``: the ranges and the parts."""
        ranges = [list(column) for column in zip(*self._ranges, strict=True)]
        place, *parts = [list(column) for column in zip(*self._parts, strict=True)]
        return [*ranges, place, self.bases, *parts]


def _merge(types: list[list[Candidate]], limit: int, end: int | None) -> list[Candidate]:
    """Return the next jobs of one level below ``end``, where types begin that were not read."""
    rows = types[0] if len(types) == 1 else sorted(chain(*types))[:limit]
    if end is None:
        return rows
    # Nothing before it: others took what the floors promise. Better these than none.
    return [row for row in rows if row[1] < end] or rows


class _Line:
    """Implements ``core.turns.Line`` with jobs that were read."""

    __slots__ = ("_rows", "key", "rank")

    def __init__(self, key: Key, rank: int, rows: Sequence[Candidate]) -> None:
        self._rows = list(reversed(rows))
        self.key = key
        self.rank = rank

    @property
    def seq(self) -> int | None:
        return self._rows[-1][1] if self._rows else None

    def pop(self) -> Candidate:
        return self._rows.pop()


class KeyedCandidates:
    """Holds the jobs that were read of each line of jobs with a key.

    ``wanted`` is the number of jobs that were asked for of each line.
    """

    def __init__(
        self,
        lines: Sequence[Place] = (),
        rows: Sequence[Sequence[Candidate]] = (),
        wanted: Sequence[int] = (),
    ) -> None:
        self._lines = lines
        self._rows = rows
        self.cut = any(len(one) >= most for one, most in zip(rows, wanted, strict=True))
        self.keys = {
            row[1]: line[1] for line, found in zip(lines, rows, strict=True) for row in found
        }

    def of(self, queue: int) -> list[_Line]:
        """Return the lines of a queue."""
        return [
            _Line(line[1], line[2], rows)
            for line, rows in zip(self._lines, self._rows, strict=True)
            if line[0] == queue and rows
        ]


NO_LINES = KeyedCandidates()
NO_ALLOWANCES: Mapping[int, KeyAllowances[Key]] = MappingProxyType({})


def plain_lines(levels: Mapping[int, list[list[Candidate]]]) -> list[_Line]:
    """Return the jobs without keys of a queue, by rank, as lines."""
    return [_Line(None, rank, rows) for rank, types in levels.items() for rows in types]


class Candidates:
    """Holds the candidates that were read of each head, and the most that may be read of it.

    If several types wait in one level, a claim does not read all the jobs that it wants from each
    type. It reads the type's share of the last claimed jobs, and a few more.
    """

    def __init__(self, floors: Iterable[Head], limit: int, shares: Mapping[Head, float]) -> None:
        self.rows: dict[Head, list[Candidate]] = {}
        self.ranges: dict[int, Head] = {}  # by their last numbers
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
        """Return the heads with unread jobs that may be among the first of their level."""
        found: list[Head] = []
        for level in self._levels.values():
            cut = [head for head in level if self._cut(head)]
            if cut:
                seqs = sorted(row[1] for head in level for row in self.rows[head])
                last = seqs[self._limit - 1] if len(seqs) >= self._limit else float("inf")
                found += [head for head in cut if self.rows[head][-1][1] < last]
        return found

    def shares(self, taken: Container[int]) -> dict[Head, float]:
        """Return each head's share of the taken jobs of its level, for levels of several heads."""
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
