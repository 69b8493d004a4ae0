"""Writes new jobs as PENDING.

One statement writes all plain jobs of a batch: here, those without a key in queues without a
capacity.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType
from typing import Any

import asyncpg

from jobqueue.core.decide import full, key_held, repeated, to_supersede, unique_conflict
from jobqueue.core.errors import InvalidArgument, JobQueueError, no_such_queue
from jobqueue.core.job import (
    Assignment,
    JobSpec,
    NewJob,
    Outcome,
    SubmitResult,
    Transition,
)
from jobqueue.core.lifecycle import State
from jobqueue.core.store import ALL_QUEUES, Claim, Rules
from jobqueue.core.unique import Holder
from jobqueue.stores.postgres import unique_keys
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.deciding import Deciding
from jobqueue.stores.postgres.heads import Head, Heads, kind_of, kinds_of
from jobqueue.stores.postgres.queue_cache import QueueCache
from jobqueue.stores.postgres.statements import (
    RANGES,
    SQL,
    SUBMIT_KEYED,
    SUBMIT_RANGES,
    array,
    said,
)
from jobqueue.stores.rows import write_labels, write_more

FEW_QUEUES = 10  # of one write; for more, looking them up is cheaper than joining them
MOST_HANDED_OFF = 100  # jobs of one write; more than that is a bulk load
# Milliseconds that a batch waits for a transaction that has one of its keys. Servers commit sooner,
# but a user's transaction may stay open, and the other jobs of the batch must not wait for it. Less
# than PostgreSQL's deadlock_timeout, so that no user's transaction is ended in place of this one.
_FOR_KEYS = "250"
_FOR_A_KEY = "10"
_REMEMBERED = 2.0  # seconds

Key = tuple[int, str]
"""A queue's number and the stored form of an idempotency key."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A worker's free slot that waits for a job, and the lease that the job would have."""

    worker: str
    number: int
    lease: int
    types: frozenset[str] | None  # of its claim


def fit(jobs: Sequence[NewJob], claims: Sequence[Claim]) -> list[tuple[int, str, Claim]]:
    """Pair jobs with slots, the most urgent jobs first. Return job places, workers and claims."""
    if len(jobs) > MOST_HANDED_OFF:
        return []
    left = [(claim, list(reversed(claim.slots))) for claim in claims]
    fitting: list[tuple[int, str, Claim]] = []
    for n in sorted(range(len(jobs)), key=lambda n: (-jobs[n].spec.priority, n)):
        spec = jobs[n].spec
        if spec.key is not None or spec.unique is not None or spec.concurrency_key is not None:
            return []  # the long way
        if spec.delay is not None or spec.run_at is not None:
            continue
        for claim, slots in left:
            meant = ALL_QUEUES in claim.queues or spec.queue in claim.queues
            known = claim.types is None or spec.type in claim.types
            if slots and meant and known and spec.queue not in claim.without:
                fitting.append((n, slots.pop(), claim))
                break
    return fitting


def _queues(specs: Sequence[JobSpec], names: list[str], *, wide: bool) -> list[str] | str | None:
    """Return each job's queue: its name or, if ``wide``, its place in ``names``.

    Return None if ``names`` has a single queue.
    """
    if len(names) == 1:
        return None
    if not wide:
        return [spec.queue for spec in specs]
    place = {name: n for n, name in enumerate(names, 1)}
    return array(place[spec.queue] for spec in specs)


def _kind(specs: Sequence[JobSpec]) -> int | None:
    first = specs[0].type
    return kind_of(first) if all(spec.type == first for spec in specs) else None


def _runs(specs: Sequence[JobSpec], few: int) -> list[int]:
    """Return a number for each job that may share a range with its neighbours, and 0 for the
    others.

    Jobs of one range have the same number. They have one queue, priority, type and TTL, and no
    delay.
    """
    runs: list[int] = []
    for key, group in groupby(specs, _range_of):
        count = len(list(group))
        number = len(runs) + 1 if key is not None and count >= few else 0
        runs += [number] * count
    return runs


def _range_of(spec: JobSpec) -> tuple[object, ...] | None:
    if spec.delay is not None or spec.run_at is not None:
        return None
    return spec.queue, spec.priority, spec.type, spec.ttl


def _meant(slots: Sequence[Slot | None]) -> list[int] | None:
    """Return the numbers of the types that some slot accepts; None if a slot accepts all types."""
    meant: set[int] = set()
    for types in {slot.types for slot in slots if slot is not None}:
        if types is None:
            return None
        meant |= kinds_of(types)
    return list(meant)


def columns_of(jobs: Sequence[NewJob]) -> list[Any]:
    """Return an array for each of a submit statement's columns, with a value for each job."""
    specs = [job.spec for job in jobs]
    return [
        array(job.id for job in jobs),
        said([spec.type for spec in specs], specs[0].type),
        [spec.payload for spec in specs],
        said([write_labels(spec) for spec in specs]),
        said([spec.priority for spec in specs], 0),
        said([spec.max_retries for spec in specs]),
        said([spec.ttl for spec in specs]),
        said([spec.timeout for spec in specs]),
        said([spec.run_at for spec in specs]),
        said([spec.delay for spec in specs]),
    ]


def field_with_nul(spec: JobSpec) -> str | None:
    """Return the name of the field with a NUL character, which PostgreSQL's text cannot have."""
    unique = None if spec.unique is None else spec.unique.key
    texts = (
        ("type", spec.type),
        ("idempotency_key", spec.key),
        ("unique.key", unique),
        ("concurrency_key", spec.concurrency_key),
    )
    for field, text in texts:
        if text and "\0" in text:
            return field
    return None


class HeldKeys:
    """Remembers for a moment which keys open transactions had, so that no batch waits for them."""

    def __init__(self) -> None:
        self._until: dict[Key, float] = {}

    def add(self, keys: Iterable[Key]) -> None:
        now = time.monotonic()
        self._until = {key: until for key, until in self._until.items() if until > now}
        self._until |= dict.fromkeys(keys, now + _REMEMBERED)

    def of(self, keys: Iterable[Key]) -> list[Key]:
        """Return those of the keys that an open transaction had a moment ago."""
        if not self._until:
            return []
        now = time.monotonic()
        return [key for key in keys if self._until.get(key, 0.0) > now]


class Submitting:
    """Writes one batch of new jobs.

    The plain jobs are committed before the others. Both writes may be repeated: a repeat skips jobs
    that are known to be written, and after a lost answer a read of the ids finds these jobs.
    """

    def __init__(
        self,
        jobs: Sequence[NewJob],
        now: float | None,
        rules: Rules,
        queue_cache: QueueCache,
        heads: Heads,
        held_keys: HeldKeys,
        slots: Mapping[int, Slot] = MappingProxyType({}),
        deciding: Deciding | None = None,
    ) -> None:
        self._jobs = jobs
        self._held_keys = held_keys
        self._deciding = deciding  # for waiting jobs whose place a new job takes
        self._now = now
        self._rules = rules
        self._queue_cache = queue_cache
        self._heads = heads
        self._slots = slots  # for jobs that may be handed off, by their place
        self.assigned: list[Assignment] = []
        self.results: list[SubmitResult | None] = [None] * len(jobs)
        self.superseded: list[Outcome] = []
        self._draft: dict[int, SubmitResult] = {}  # of a transaction that may yet fail
        self._draft_superseded: list[Outcome] = []
        self._refuse_nul()
        self.written: dict[Head, int] = {}  # the first number of each

    async def run(self, db: Db) -> None:
        """Write the jobs."""
        await self._submit(db, self._open())

    async def again(self, db: Db) -> None:
        """After a lost answer, look up which jobs were written, and write the rest."""
        left = self._open()
        rows = await db.fetch(SQL["which_exist"], [self._jobs[n].id for n in left])
        there = {str(row[0]) for row in rows}
        for n in left:
            if self._jobs[n].id in there:
                self.results[n] = SubmitResult.accepted(self._jobs[n].id)
        if there:
            self._heads.forget()
        if self._slots:
            numbers = [slot.number for slot in self._slots.values()]
            leases = [slot.lease for slot in self._slots.values()]
            rows = await db.fetch(SQL["handed_off"], numbers, leases)
            self._hand_over(list(range(len(self._jobs))), rows)
        await self._submit(db, self._open())

    def give_up(self, error: JobQueueError) -> bool:
        """If some jobs are known to be written, refuse the others with ``error`` and return True.

        Otherwise return False: then the caller raises the error.
        """
        left = self._open()
        if len(left) == len(self._jobs):
            return False
        for n in left:
            self.results[n] = SubmitResult.refused(error)
        return True

    def _open(self) -> list[int]:
        return [n for n, result in enumerate(self.results) if result is None]

    def _refuse_nul(self) -> None:
        """Refuse jobs with a NUL character, so that they do not fail the others of the batch."""
        for n, job in enumerate(self._jobs):
            field = field_with_nul(job.spec)
            if field is not None:
                error = InvalidArgument(field, "must not contain a NUL character")
                self.results[n] = SubmitResult.refused(error)

    async def _submit(self, db: Db, places: list[int]) -> None:
        plain: list[int] = []
        others: list[int] = []
        unique: list[int] = []
        keyed = self._keyed_queues(places)
        for n in places:
            spec = self._jobs[n].spec
            if spec.unique is not None:
                unique.append(n)
            else:
                (others if spec.key is not None or spec.queue in keyed else plain).append(n)
        left = await self._submit_plain(db, plain) if plain else []
        first, *later = self._by_turns(unique)
        for part in (sorted(left + others + first), *later):
            if not part:
                continue
            try:
                await self._transact(db, part, _FOR_KEYS)
            except asyncpg.LockNotAvailableError:
                await self._transact(db, part, _FOR_A_KEY)

    def _by_turns(self, places: list[int]) -> list[list[int]]:
        """Divide jobs with unique keys into parts in which no key comes twice, in their order."""
        parts: list[list[int]] = [[]]
        turns: Counter[tuple[str, str]] = Counter()
        for n in places:
            spec = self._jobs[n].spec
            assert spec.unique is not None
            key = spec.queue, spec.unique.stored
            if turns[key] == len(parts):
                parts.append([])
            parts[turns[key]].append(n)
            turns[key] += 1
        return parts

    async def _transact(self, db: Db, places: list[int], wait: str) -> None:
        self._draft, self._draft_superseded = {}, []
        async with db.transaction():
            await self._submit_long(db, places, wait)
        # Only now: a transaction that fails half-way has decided nothing.
        for n, result in self._draft.items():
            self.results[n] = result
        self.superseded += self._draft_superseded

    def _keyed_queues(self, places: list[int]) -> set[str]:
        """Return the queues of jobs with concurrency keys.

        All their jobs are written by one statement, so that they keep their order.
        """
        specs = (self._jobs[n].spec for n in places)
        return {spec.queue for spec in specs if spec.concurrency_key is not None}

    async def _submit_plain(self, db: Db, places: list[int]) -> list[int]:
        """Write plain jobs. Return the places of jobs whose queue is unknown or has a capacity."""
        if not self._slots:
            places = await self._by_level(db, places)
        specs = [self._jobs[n].spec for n in places]
        names = sorted({spec.queue for spec in specs})
        wide = len(names) > FEW_QUEUES and not self._slots
        arguments = (
            names,
            self._now,
            _queues(specs, names, wide=wide),
            *columns_of([self._jobs[n] for n in places]),
            specs[0].type,
            _kind(specs),
            said([write_more(spec) for spec in specs]),
        )
        if self._slots:
            return await self._hand_off(db, places, arguments)
        rows = await self._write(db, "submit_wide" if wide else "submit", specs, arguments)
        found = set()
        count = 0
        for queue, name, rank, kind, first, written in rows:
            found.add(name)
            count += written
            self._wrote((queue, rank, kind), first)
        if count == len(places):
            for n in places:
                self.results[n] = SubmitResult.accepted(self._jobs[n].id)
            return []
        left = []
        for n in places:
            if self._jobs[n].spec.queue in found:
                self.results[n] = SubmitResult.accepted(self._jobs[n].id)
            else:
                left.append(n)
        return left

    async def _may_range(self, db: Db, jobs: int) -> bool:
        cache = self._queue_cache
        return jobs >= cache.few and await cache.layout(db, self._now) >= RANGES

    async def _by_level(self, db: Db, places: list[int]) -> list[int]:
        """Order jobs that may become ranges so that jobs of one queue and priority are neighbours.

        Jobs of one queue and priority keep their order.
        """
        if not await self._may_range(db, len(places)):
            return places
        specs = [job.spec for job in self._jobs]
        return sorted(places, key=lambda n: (specs[n].queue, -specs[n].priority, n))

    async def _write(
        self, db: Db, name: str, specs: Sequence[JobSpec], arguments: tuple[Any, ...]
    ) -> Sequence[Any]:
        """Run a statement that writes new jobs. Enough similar jobs in sequence become a range."""
        if await self._may_range(db, len(specs)):
            runs = _runs(specs, self._queue_cache.few)
            if any(runs):
                return await db.fetch(
                    SUBMIT_RANGES[name], *arguments, [1] if runs[-1] == 1 else runs
                )
        texts = await self._queue_cache.texts(db, len(specs), self._now)
        return await db.fetch(texts[name], *arguments)

    async def _hand_off(self, db: Db, places: list[int], arguments: tuple[Any, ...]) -> list[int]:
        """Write plain jobs. Assign a job to its slot if no job of its queue waits for such a slot.

        Return the places of jobs that were not written.
        """
        slots = [self._slots.get(n) for n in places]
        rows = await db.fetch(
            SQL["hand_off"],
            *arguments,
            array(0 if slot is None else slot.lease for slot in slots),
            array(0 if slot is None else slot.number for slot in slots),
            self._rules.assignment_timeout,
            _meant(slots),
        )
        self._hand_over(places, rows)
        return [n for n in places if self.results[n] is None]

    def _hand_over(self, places: list[int], rows: Sequence[Any]) -> None:
        by_id = {self._jobs[n].id: n for n in places}
        for (
            job_id, seq, queue, _, rank, kind, given, lease, retries, timeout, ttl, created,
        ) in rows:  # fmt: skip
            n = by_id[str(job_id)]
            job = self._jobs[n]
            self.results[n] = SubmitResult.accepted(job.id)
            if not given:
                self._wrote((queue, rank, kind), seq)
                continue
            spec = replace(job.spec, max_retries=retries, timeout=timeout, ttl=ttl)
            self.assigned.append(
                Assignment(seq, job.id, spec, 1, lease, self._slots[n].worker, 0, created, ttl)
            )
        self.assigned.sort(key=lambda one: (-one.priority, one.seq))

    def _wrote(self, head: Head, first: int) -> None:
        self.written[head] = min(first, self.written.get(head, first))

    async def _submit_long(self, db: Db, places: list[int], wait: str) -> None:
        """Write the jobs that are not plain, while their queues are locked.

        ``wait`` is the time for keys of open transactions, ``_FOR_KEYS`` or ``_FOR_A_KEY``.
        """
        jobs = self._jobs
        names = sorted({jobs[n].spec.queue for n in places})
        homes = {row[1]: row for row in await db.fetch(SQL["homes"], names)}
        bounded = [row[0] for row in homes.values() if row[2] > 0]
        if bounded:
            for row in await db.fetch(SQL["bounded_homes"], bounded):
                homes[row[1]] = row
        known = []
        for n in places:
            queue = jobs[n].spec.queue
            if queue in homes:
                known.append(n)
            else:
                missing = no_such_queue(queue)
                self._draft[n] = SubmitResult.refused(missing)
        unique = {
            n: (homes[spec.queue][0], spec.unique.stored)
            for n in known
            if (spec := jobs[n].spec).unique is not None
        }
        if unique:
            await unique_keys.lock(db, unique.values())
        owners, held = await self._take_keys(db, known, homes, wait)
        fresh: list[int] = []
        repeats: list[int] = []
        for n in known:
            spec = jobs[n].spec
            key = homes[spec.queue][0], spec.stored_key or ""
            if key in held:
                self._draft[n] = key_held(spec)
                continue
            owner = owners.get(key)
            (fresh if owner is None or owner[0] == jobs[n].id else repeats).append(n)
        old = await self._old_holders(db, fresh, unique, homes) if unique else {}
        places_free = [n for n in fresh if n not in self._draft]
        admitted = await self._admit(db, places_free, homes, old)
        places_found = set(admitted)
        refused = {jobs[n].id: self._draft[n] for n in fresh if n not in places_found}
        for n in repeats:
            spec = jobs[n].spec
            original, fingerprint = owners[homes[spec.queue][0], spec.stored_key or ""]
            if original in refused:  # the first under this key, in this very batch
                self._draft[n] = refused[original]
            else:
                self._draft[n] = repeated(spec, original, fingerprint)
        if not admitted:
            return
        moves = [
            Transition.superseded(old[n].seq, jobs[n].id)
            for n in sorted((n for n in admitted if n in old), key=lambda n: old[n].seq)
        ]
        if moves:
            assert self._deciding is not None
            outcomes = await self._deciding.decide(db, moves, (), repeated=False)
            if any(one.is_locked for one in outcomes):
                # Another server moves the job at this moment, perhaps back to PENDING.
                raise asyncpg.SerializationError("the holder of a unique key is being moved")
            self._draft_superseded += [one for one in outcomes if one.applied]
        admitted = await self._by_level(db, admitted)
        of_keys = self._keyed_queues(admitted)
        lowest: list[int] = []
        for keyed in (False, True):
            some = [n for n in admitted if (jobs[n].spec.queue in of_keys) is keyed]
            if some:
                lowest.append(await self._insert(db, some, homes, keyed=keyed))
        if held_now := {unique[n]: jobs[n].id for n in admitted if n in unique}:
            await unique_keys.hold(db, held_now, min(lowest), self._now)
        for n in admitted:
            self._draft[n] = SubmitResult.accepted(jobs[n].id)

    async def _insert(
        self, db: Db, places: list[int], homes: Mapping[str, Any], *, keyed: bool
    ) -> int:
        """Write jobs into queues that are locked, and return the lowest number.

        If ``keyed``, they may have concurrency keys.
        """
        jobs = [self._jobs[n] for n in places]
        specs = [job.spec for job in jobs]
        arguments = (
            self._now,
            [homes[spec.queue][0] for spec in specs],
            *columns_of(jobs),
            [spec.stored_key for spec in specs],
            specs[0].type,
            None if keyed else _kind(specs),
            said([write_more(spec) for spec in specs]),
        )
        if keyed:
            texts = await self._queue_cache.texts(db, len(specs), self._now)
            rows: Sequence[Any] = await db.fetch(SUBMIT_KEYED[texts["submit_long"]], *arguments)
        else:
            rows = await self._write(db, "submit_long", specs, arguments)
        for queue, _, rank, kind, first, _ in rows:
            self._wrote((queue, rank, kind), first)
        return min(int(row[4]) for row in rows)

    async def _old_holders(
        self, db: Db, places: list[int], unique: Mapping[int, Key], homes: dict[str, Any]
    ) -> dict[int, Holder]:
        """Refuse the jobs that the holders of their unique keys prevent, and free their keys.

        Return the holders whose places the other jobs take.
        """
        found = await unique_keys.holders(db, unique.values(), self._now)
        old: dict[int, Holder] = {}
        freed: list[Key] = []
        for n in places:
            spec = self._jobs[n].spec
            if spec.unique is None:
                continue
            holder = found.by_key.get(unique[n])
            if conflict := unique_conflict(spec.unique, holder, found.now):
                self._draft[n] = conflict
                if spec.stored_key is not None:
                    freed.append((homes[spec.queue][0], spec.stored_key))
            elif holder is not None and to_supersede(spec.unique, holder, found.now):
                old[n] = holder
        await self._free(db, freed)
        return old

    async def _free(self, db: Db, keys: Sequence[Key]) -> None:
        if keys:
            await db.execute(
                SQL["free_keys"], [queue for queue, _ in keys], [key for _, key in keys]
            )

    async def _take_keys(
        self, db: Db, places: list[int], homes: dict[str, Any], wait: str
    ) -> tuple[dict[Key, tuple[str, bytes]], set[Key]]:
        """Give free keys to their jobs.

        Return job id and fingerprint of the owner of each key, and the keys that open transactions
        of other programs have. If ``wait`` is ``_FOR_KEYS``, a key that such a transaction has
        taken a moment ago raises LockNotAvailableError.
        """
        owners: dict[Key, tuple[str, bytes]] = {}
        wanted: dict[Key, NewJob] = {}
        for n in places:
            job = self._jobs[n]
            stored = job.spec.stored_key
            if stored is not None:  # equal keys of one batch belong to the first
                key = homes[job.spec.queue][0], stored
                owners.setdefault(key, (job.id, job.spec.fingerprint()))
                wanted.setdefault(key, job)
        held: set[Key] = set()
        apart = self._held_keys.of(wanted)
        while wanted:
            if wait == _FOR_KEYS and not apart:
                taken = await self._insert_keys(db, wanted, wait)
            else:
                rest = {key: job for key, job in wanted.items() if key not in apart}
                taken = await self._insert_free_keys(db, rest, held) if rest else []
                for one in apart:
                    taken += await self._insert_free_keys(db, {one: wanted[one]}, held)
                apart = []
                self._held_keys.add(held)
            for one in [*taken, *held]:
                wanted.pop(one, None)
            if not wanted:
                break
            # In a new snapshot: the holder of the key may have committed a moment ago. What is
            # neither taken nor there was freed in between, and is tried again.
            rows = await db.fetch(
                SQL["read_keys"],
                [queue for queue, _ in wanted],
                [key for _, key in wanted],
                [job.spec.shared_key for job in wanted.values()],
                self._now,
            )
            for queue, key, original, fingerprint in rows:
                owners[queue, key] = str(original), fingerprint
                del wanted[queue, key]
        return owners, held

    async def _insert_keys(self, db: Db, wanted: Mapping[Key, NewJob], wait: str) -> list[Key]:
        jobs = wanted.values()
        rows = await db.fetch(
            SQL["take_keys"],
            [queue for queue, _ in wanted],
            [key for _, key in wanted],
            [job.id for job in jobs],
            [job.spec.fingerprint() for job in jobs],
            self._rules.key_ttl,
            self._now,
            [job.spec.shared_key for job in jobs],
            [job.spec.sha256() for job in jobs],
            wait,
        )
        return [(queue, key) for queue, key in rows]

    async def _insert_free_keys(
        self, db: Db, wanted: Mapping[Key, NewJob], held: set[Key]
    ) -> list[Key]:
        """Insert keys, except those that open transactions have, which are added to ``held``."""
        try:
            async with db.transaction():  # a savepoint
                return await self._insert_keys(db, wanted, _FOR_A_KEY)
        except asyncpg.LockNotAvailableError:
            if len(wanted) == 1:
                held.update(wanted)
                return []
        # In their order, so that two batches cannot deadlock.
        keys = sorted(wanted)
        half = len(keys) // 2
        taken: list[Key] = []
        for part in (keys[:half], keys[half:]):
            taken += await self._insert_free_keys(db, {key: wanted[key] for key in part}, held)
        return taken

    async def _admit(
        self, db: Db, places: list[int], homes: dict[str, Any], old: Mapping[int, Holder]
    ) -> list[int]:
        """Refuse the jobs for which their queue is full, and free their keys. Return the others.

        A job that takes the place of a PENDING job (``old``) needs no further one.
        """
        places_left: dict[str, int] = {}
        for name, (queue, _, capacity) in homes.items():
            if capacity > 0:
                places_left[name] = capacity - await db.fetchval(SQL["pending"], queue)
        admitted, freed = [], []
        for n in places:
            spec = self._jobs[n].spec
            left = places_left.get(spec.queue)
            if n in old and old[n].state is State.PENDING:
                left = None
            if left is not None and left <= 0:
                queue, _, capacity = homes[spec.queue]
                self._draft[n] = full(spec.queue, capacity)
                stored = spec.stored_key
                if stored is not None:
                    freed.append((queue, stored))
                continue
            if left is not None:
                places_left[spec.queue] = left - 1
            admitted.append(n)
        await self._free(db, freed)
        return admitted
