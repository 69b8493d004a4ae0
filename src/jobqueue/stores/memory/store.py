"""The memory store: heaps and dictionaries on the event loop. Not durable."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from jobqueue.core.accept import Accepted, accept, full, repeated
from jobqueue.core.clock import Clock, SystemClock
from jobqueue.core.decide import decide, overdue
from jobqueue.core.errors import no_such_queue
from jobqueue.core.identity import Identity, new_store_id
from jobqueue.core.ids import new_lease
from jobqueue.core.job import (
    MAX_HISTORY,
    Assignment,
    ComponentHealth,
    Event,
    Held,
    Job,
    NewJob,
    Outcome,
    Pulse,
    Refusal,
    SubmitResult,
    TimeQuery,
    Transition,
    Worker,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.lifecycle import HELD, TERMINAL, Move, Reason, State
from jobqueue.core.observer import Deaf, Observer
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.queue import Queue, QueueStats, WaitingType
from jobqueue.core.rebuild import Rebuilt
from jobqueue.core.restore import Restored, Told, led, not_empty, standing, unused
from jobqueue.core.store import (
    ALL_QUEUES,
    ANY_QUEUE,
    ANY_VERSION,
    Application,
    Change,
    Claim,
    DeadLetters,
    DoneJobs,
    JobFilter,
    Lag,
    Leader,
    Overdue,
    Rules,
    Submission,
    Term,
    TermEnded,
)
from jobqueue.core.stream import (
    CancelRequested,
    Changes,
    JobDeleted,
    QueueChange,
    bytes_of,
    unpublished,
)
from jobqueue.core.waiting import turn
from jobqueue.stores.memory.by_time import TimePage
from jobqueue.stores.memory.keys import Keys
from jobqueue.stores.memory.outbox import Outbox, job_event
from jobqueue.stores.memory.records import (
    Entry,
    Home,
    Log,
    Record,
    event_of,
    held_of,
    job_of,
    matches,
)
from jobqueue.stores.memory.restoring import entries, home_of, record_of
from jobqueue.stores.memory.roster import Roster
from jobqueue.stores.memory.timers import Timers

_SPARSE = 4  # so many numbers for each job are too many to try
_LOOKED_AT = 2_000  # records, as long as one turn of the loop takes

T = TypeVar("T")
_ASSIGNED = ((State.ASSIGNED, Reason.ASSIGNED),)


class MemoryStore:
    """Everything in this process; gone with it."""

    name = "memory"
    location = "memory of this process"
    durable = False
    parallel = False

    def __init__(
        self,
        rules: Rules | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._rules = rules or Rules()
        self._clock = clock or SystemClock()
        self._observer = observer or Deaf()
        self._seq = itertools.count(1)
        self._latest = 0.0  # time of creation: never earlier than the one before
        self._jobs: dict[str, Record] = {}
        self._by_seq: dict[int, Record] = {}
        self._queues: dict[str, Home] = {}
        self._gone: dict[str, Home] = {}  # deleted queues, whose records stay
        self._keys = Keys()
        self._timers = Timers(self._by_seq.get)
        self._held: dict[int, Record] = {}  # by lease
        self._progress: dict[int | None, Progress] = {}  # by lease
        self._roster = Roster(self._rules)
        self._log = Log()
        self._outbox = Outbox(self._log)
        self._identity = Identity(new_store_id())
        self._leader: Term | None = None
        self._leader_name = ""
        self._leads_since = 0.0
        self._leads_until = 0.0
        self._epoch = 0

    async def open(self) -> None:
        """Nothing to make ready."""

    async def close(self) -> None:
        """Nothing to release."""

    def on_change(self, heard: Callable[[Change], None]) -> None:
        """No other process can change this store."""

    async def ping(self, patience: float | None = None) -> None:
        """Memory always answers."""

    def components(self) -> list[ComponentHealth]:
        """It leans on nothing."""
        return []

    # -- leadership: of one process, but by the rules of every store --------------------------

    async def lead(self, holder: int, ttl: float, name: str = "") -> Term | None:
        """See ``Store.lead``."""
        now = self._clock.now()
        if self._leader is None or self._leader.holder != holder:
            if self._leader is not None and self._leads_until > now:
                return None
            self._epoch += 1
            self._leader = Term(holder, self._epoch)
            self._leads_since = now
        self._leader_name = name
        self._leads_until = now + ttl
        return self._leader

    async def leader(self) -> Leader | None:
        """See ``Store.leader``."""
        if self._leader is None or self._leads_until <= self._clock.now():
            return None
        return Leader(self._leader_name, self._leader.epoch, self._leads_since)

    async def resign(self, term: Term) -> None:
        """See ``Store.resign``."""
        if self._leader == term:
            self._leader = None

    def _check(self, term: Term) -> None:
        if self._leader != term or self._leads_until <= self._clock.now():
            raise TermEnded

    # -- the write path --------------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob], claims: Sequence[Claim] = ()) -> Submission:
        """See ``Store.submit``."""
        now = self._clock.now()
        self._keys.expire(now)
        results = [self._accept(job, now) for job in jobs]
        return Submission(results, self._claim(claims, now))

    def _accept(self, job: NewJob, now: float) -> SubmitResult:
        spec = job.spec
        queue = self._queues.get(spec.queue)
        if queue is None:
            return SubmitResult.refused(no_such_queue(spec.queue))
        for key in (spec.stored_key, spec.shared_key):
            known = self._keys.find(spec.queue, key)
            if known is not None:
                return repeated(spec, *known)
        capacity = queue.queue.capacity
        if 0 < capacity <= queue.depth[State.PENDING]:
            return full(spec.queue, capacity)
        self._insert(job.id, accept(spec, queue.queue, now), queue, now)
        if spec.stored_key is not None:
            expires = now + self._rules.key_ttl
            self._keys.put(spec.queue, spec.stored_key, job.id, spec.fingerprint(), expires)
        return SubmitResult.accepted(job.id)

    def _insert(self, job_id: str, job: Accepted, queue: Home, now: float) -> None:
        spec = job.spec
        record = Record(
            next(self._seq),
            State.PENDING,
            0,
            0,
            0,
            spec.max_retries or 0,
            None,
            None,
            False,
            0,
            spec.timeout,
            spec.run_at,
            job.expires_at,
            None,
            job.due,
        )
        record.id = job_id
        record.spec = spec
        record.home = queue
        record.ready = job.ready
        record.created_at = self._latest = max(self._latest, now)
        record.events = []
        self._jobs[job_id] = self._by_seq[record.seq] = record
        queue.depth[State.PENDING] += 1
        self._write(record, None, ((State.PENDING, Reason.SUBMITTED),), now)
        if record.ready:
            queue.ready.push(spec.priority, record.seq, spec.type)
        if record.due is not None:
            self._timers.arm(record)

    async def claim(self, claims: Sequence[Claim]) -> list[Assignment]:
        """See ``Store.claim``."""
        return self._claim(claims, self._clock.now())

    def _claim(self, claims: Sequence[Claim], now: float) -> list[Assignment]:
        assigned: list[Assignment] = []
        for claim in claims:
            names: Iterable[str] = self._queues if ALL_QUEUES in claim.queues else claim.queues
            queues = [
                queue
                for name in dict.fromkeys(names)
                if name not in claim.without
                and (queue := self._queues.get(name)) is not None
                and not queue.queue.paused
            ]
            for worker_id in claim.slots:
                record = self._next(queues, claim.types, now)
                if record is None:
                    break
                assigned.append(self._assign(record, worker_id, now))
        return assigned

    def _claimable(self, seq: int) -> str | None:
        """The type of a job that can be claimed; None: it cannot, or not any more."""
        record = self._by_seq.get(seq)
        return record.spec.type if record is not None and record.ready else None

    def _next(self, queues: list[Home], types: frozenset[str] | None, now: float) -> Record | None:
        while True:
            best: Home | None = None
            soonest: tuple[int, int] | None = None
            for queue in queues:
                head = queue.ready.head(types)
                if head is not None and (soonest is None or head < soonest):
                    best, soonest = queue, head
            if best is None or soonest is None:
                return None
            seq = best.ready.pop(soonest[0], best.queue.priority_weights, types)
            record = self._by_seq[seq]
            record.ready = False
            if record.expires_at is None or record.expires_at > now:
                return record
            # else: expired; it stays PENDING until the sweeper finds it by its timer

    def _assign(self, record: Record, worker_id: str, now: float) -> Assignment:
        record.state = State.ASSIGNED
        record.attempt += 1
        record.lease = lease = new_lease()
        record.worker_id = worker_id
        record.reason = Reason.ASSIGNED
        record.due = now + self._rules.assignment_timeout
        self._held[lease] = record
        depth = record.home.depth
        depth[State.PENDING] -= 1
        depth[State.ASSIGNED] += 1
        self._write(record, State.PENDING, _ASSIGNED, now, "", worker_id)
        return Assignment(
            record.seq,
            record.id,
            record.spec,
            record.attempt,
            lease,
            worker_id,
            record.retry_count,
            record.created_at,
            None if record.expires_at is None else record.expires_at - now,
            record.deaths,
        )

    async def apply(
        self, transitions: Sequence[Transition], claims: Sequence[Claim] = ()
    ) -> Application:
        """See ``Store.apply``."""
        now = self._clock.now()
        outcomes = [self._move(asked, now) for asked in transitions]
        return Application(outcomes, self._claim(claims, now))

    def _move(self, asked: Transition, now: float) -> Outcome:
        record = self._by_seq.get(asked.seq)
        if record is None:
            return Outcome(Refusal.NO_SUCH_JOB)
        before = record.state
        queue = record.home
        if asked.move is Move.RETRY_BY_HAND and queue.queue.name in self._gone:
            return Outcome(Refusal.NO_QUEUE, before, record.reason, record.id, record.spec.queue)
        policy = queue.queue.retry_policy
        decision = decide(record, asked, now=now, rules=self._rules, policy=policy)
        if isinstance(decision, Refusal):
            return Outcome(decision, before, record.reason, record.id, record.spec.queue)
        if before in HELD and decision.lease is not None and record.state is not State.RUNNING:
            self._held.pop(decision.lease, None)
        if before is State.PENDING and record.ready:
            record.ready = False
            queue.ready.bury(record.spec.type)
        if record.state is State.PENDING:
            record.ready = True
            queue.ready.push(record.spec.priority, record.seq, record.spec.type)
        if record.due is not None and record.state not in HELD:
            self._timers.arm(record)
        queue.depth[before] -= 1
        queue.depth[record.state] += 1
        queue.count(decision.steps, decision.ran_for)
        record.version -= len(decision.steps)  # _write counts them up again, event by event
        worker_id = decision.worker_id if decision.lease is not None else None
        self._write(record, before, decision.steps, now, asked.error, worker_id)
        return decision.outcome(record, record.id, record.spec.queue)

    def _write(
        self,
        record: Record,
        before: State | None,
        steps: Iterable[tuple[State, Reason]],
        now: float,
        detail: str = "",
        worker_id: str | None = None,
    ) -> None:
        for state, reason in steps:
            record.version += 1
            event: Entry = (
                record.id,
                record.version,
                before,
                state,
                reason,
                now,
                record.attempt,
                worker_id,
                "" if reason is Reason.STARTED else detail,
                record.spec.queue,
                record.started_at if state is State.FAILED else None,
                record.due if state is record.state is State.FAILED else None,
                self._log.next_position(),
            )
            record.events.append(event)
            self._log.append(event)
            before = state

    async def request_cancel(self, seq: int) -> Held | None:
        """See ``Store.request_cancel``."""
        record = self._by_seq.get(seq)
        if record is None or record.state is not State.RUNNING or record.lease is None:
            return None
        if not record.cancel_requested:
            record.cancel_requested = True
            now = self._clock.now()
            self._outbox.put(
                CancelRequested(record.id, record.spec.queue, record.version, now), now
            )
        return held_of(record)

    async def due(self, limit: int) -> Overdue:
        """See ``Store.due``."""
        now = self._clock.now()
        self._keys.expire(now)
        found: list[Transition] = []
        promoted = 0
        next_at: float | None = None
        for record in self._held.values():
            if record.due is None:
                continue
            if record.due <= now:
                found.append(overdue(record.state, record.seq, record.version, record.lease))
            elif next_at is None or record.due < next_at:
                next_at = record.due
        rearm: list[Record] = []
        while len(found) + promoted < limit and (current := self._timers.pop_due(now)) is not None:
            rearm.append(current)
            expired = current.expires_at is not None and current.expires_at <= now
            if current.state is State.PENDING and not expired:
                promoted += 1
                current.ready = True
                current.home.ready.push(current.spec.priority, current.seq, current.spec.type)
                current.due = current.expires_at
            else:
                found.append(overdue(current.state, current.seq, current.version, None))
        waiting = self._timers.next_at()
        if waiting is not None and (next_at is None or waiting < next_at):
            next_at = waiting
        for record in rearm:  # until the move is applied it must be found again
            self._timers.arm(record)
        full = len(found) + promoted >= limit
        return Overdue(found[:limit], promoted, now if full else next_at)

    # -- reads and removal -----------------------------------------------------------------

    async def get(self, job_id: str) -> Job | None:
        """See ``Store.get``."""
        record = self._jobs.get(job_id)
        return None if record is None else job_of(record, self._progress)

    async def seq_of(self, job_id: str) -> int | None:
        """See ``Store.seq_of``."""
        record = self._jobs.get(job_id)
        return None if record is None else record.seq

    async def moved_on(self, seen: Mapping[int, int]) -> list[int]:
        """See ``Store.moved_on``."""
        moved: list[int] = []
        for seq, version in seen.items():
            record = self._by_seq.get(seq)
            if (
                record is None
                or record.state in TERMINAL
                or version not in (ANY_VERSION, record.version)
            ):
                moved.append(seq)
        return moved

    def jobs(self) -> list[Job]:
        """Every job in the order of their submits, for inline mode: it needs no loop."""
        return [job_of(record, self._progress) for record in self._by_seq.values()]

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """See ``Store.list_jobs``."""

        def shown(record: Record) -> Job | None:
            if wanted.queue is not None and record.spec.queue != wanted.queue:
                return None
            if wanted.states and record.state not in wanted.states:
                return None
            return job_of(record, self._progress) if matches(record, wanted) else None

        return await self._newest(wanted, shown)

    async def dead_letters(self, wanted: JobFilter) -> DeadLetters:
        """See ``Store.dead_letters``."""

        def dead(record: Record) -> tuple[int, int, bool] | None:
            if record.state is not State.DEAD_LETTERED:
                return None
            if wanted.queue is not None and record.spec.queue != wanted.queue:
                return None
            return record.seq, record.version, matches(record, wanted)

        page = await self._newest(wanted, dead)
        found = [(seq, version) for seq, version, wanted_too in page if wanted_too]
        return DeadLetters(found, len(page), page[-1][0] if len(page) == wanted.limit else None)

    async def _newest(self, wanted: JobFilter, show: Callable[[Record], T | None]) -> list[T]:
        """What ``show`` makes of the newest records, as far as it is not None."""
        found: list[T] = []

        def see(record: Record) -> bool:
            shown = show(record)
            if shown is not None:
                found.append(shown)
            return len(found) == wanted.limit

        await self._look(self._numbers(wanted.before_seq), see)
        return found

    async def _look(self, numbers: Iterable[int], see: Callable[[Record], bool]) -> None:
        """Show records to ``see`` until it has seen enough.

        Others have their turns meanwhile, so jobs may come, change and go.
        """
        for looked_at, seq in enumerate(numbers, 1):
            if not looked_at % _LOOKED_AT:
                await turn()
            record = self._by_seq.get(seq)
            if record is not None and see(record):
                return

    def _numbers(self, before_seq: int | None) -> Sequence[int]:
        """Numbers of jobs from a place on, newest first, which nothing changes meanwhile."""
        if not self._by_seq:
            return ()
        first, last = next(iter(self._by_seq)), next(reversed(self._by_seq))
        before = last + 1 if before_seq is None else min(before_seq, last + 1)
        if last - first > _SPARSE * len(self._by_seq):  # most numbers are gone
            return [seq for seq in reversed(self._by_seq) if seq < before]
        return range(before - 1, first - 1, -1)

    async def list_by_time(self, wanted: TimeQuery) -> list[Job]:
        """See ``Store.list_by_time``."""
        await turn()
        page = TimePage(wanted)
        numbers = self._numbers(None)  # a later number, a later time
        await self._look(reversed(numbers) if wanted.ascending else numbers, page.add)
        return page.jobs(self._progress)

    async def history(self, job_id: str, before: int | None = None) -> list[Event]:
        """See ``Store.history``."""
        record = self._jobs.get(job_id)
        if record is None:
            return []
        events = record.events if before is None else record.events[: max(0, before - 1)]
        return [event_of(event) for event in events[-MAX_HISTORY:]]

    async def events_after(self, position: int, limit: int) -> list[tuple[int, Event]]:
        """See ``Store.events_after``."""
        return self._log.after(position, limit)

    async def delete_job(self, job_id: str, *, version: int | None = None) -> State | None:
        """See ``Store.delete_job``."""
        record = self._jobs.get(job_id)
        if record is None:
            return None
        if record.state in TERMINAL and version in (None, record.version):
            if not self._outbox.passed(record):
                raise unpublished(job_id)
            self._remove(record, key_freed=True)
            self._keys.free(record.spec.queue, record.spec.stored_key, job_id)
        return record.state

    async def prune_done(
        self, completed_before: float, limit: int, term: Term, where: DoneJobs = ANY_QUEUE
    ) -> int:
        """See ``Store.prune_done``."""
        self._check(term)
        old = [
            record
            for record in self._by_seq.values()
            if record.state is State.DONE
            and where.completed_after <= (record.completed_at or 0.0) < completed_before
            and (record.spec.queue in where.queues) != where.others
            and self._outbox.passed(record)
        ][:limit]
        for record in old:
            self._remove(record, key_freed=False)
        return len(old)

    def _remove(self, record: Record, *, key_freed: bool) -> None:
        now = self._clock.now()
        gone = JobDeleted(record.id, record.spec.queue, record.version, now, key_freed)
        self._outbox.put(gone, now)
        del self._jobs[record.id], self._by_seq[record.seq]
        record.home.depth[record.state] -= 1
        self._log.remove(record.events)

    # -- the event stream ------------------------------------------------------------------

    async def begin_stream(self, term: Term) -> int:
        """See ``Store.begin_stream``."""
        self._check(term)
        now = self._clock.now()
        queues = [home.queue for home in self._queues.values()]
        flagged = [
            CancelRequested(record.id, record.spec.queue, record.version, now)
            for record in self._held.values()
            if record.cancel_requested
        ]
        return self._outbox.begin(queues, flagged, now)

    async def end_stream(self, term: Term) -> None:
        """See ``Store.end_stream``."""
        self._check(term)
        self._outbox.end()

    async def changes_after(self, position: int, limit: int, size: int) -> Changes:
        """See ``Store.changes_after``."""
        self._keys.expire(self._clock.now())
        found = Changes([], position)
        for place, one, _ in self._outbox.after(position):
            if len(found.items) == limit or size <= 0:
                break
            item = job_event(one, self._jobs[one[0]], self._keys) if isinstance(one, tuple) else one
            found.items.append(item)
            found.position = place
            size -= bytes_of(item)
        return found

    async def move_mark(self, position: int, term: Term, refused: int = 0) -> None:
        """See ``Store.move_mark``."""
        self._check(term)
        self._outbox.move(position, refused)

    async def stream_lag(self) -> Lag | None:
        """See ``Store.stream_lag``."""
        mark = self._outbox.mark
        if mark is None:
            return None
        times = [at for _, _, at in self._outbox.after(mark)]
        age = max(0.0, self._clock.now() - min(times)) if times else 0.0
        return Lag(len(times), age, self._outbox.refused)

    async def identity(self) -> Identity:
        """See ``Store.identity``."""
        return self._identity

    async def restore(self, state: Restored, told: Told) -> None:
        """See ``Store.restore``. Nothing can come between: it does not wait for anything."""
        now = self._clock.now()
        if self._leader is not None and self._leads_until > now:
            raise led()
        if self._jobs or self._keys.any():
            raise not_empty("jobs" if self._jobs else "idempotency keys")
        if self._gone or not unused(await self.stats()):
            raise not_empty("queues")
        self._queues.clear()
        homes = {one.queue.name: home_of(one, self._claimable) for one in state.queues}
        for one in state.queues:
            where = self._gone if one.deleted else self._queues
            where[one.queue.name] = homes[one.queue.name]
        for rebuilt in state.jobs:
            self._restore(rebuilt, homes[rebuilt.job.queue], now)
        for key in state.keys:
            self._keys.put(key.queue, key.key, key.job.id, key.fingerprint, key.expires_at)
        self._seq = itertools.count(state.last_seq + 1)
        self._outbox.resume(state.last_number, published=state.published)
        self._identity = state.identity
        told(len(state.jobs))

    def _restore(self, rebuilt: Rebuilt, home: Home, now: float) -> None:
        job = rebuilt.job
        record = record_of(rebuilt, standing(job, now, self._rules), home)
        self._jobs[job.id] = self._by_seq[job.seq] = record
        record.events = entries(rebuilt, self._log.next_position())
        for entry in record.events:
            self._log.append(entry)
        home.depth[job.state] += 1
        self._latest = max(self._latest, job.created_at)
        if record.ready:
            home.ready.push(job.priority, job.seq, job.type)
        if record.lease is not None:
            self._held[record.lease] = record
        elif record.due is not None:
            self._timers.arm(record)

    # -- queues ----------------------------------------------------------------------------

    async def create_queue(self, queue: Queue) -> bool:
        """See ``Store.create_queue``."""
        if queue.name in self._queues:
            return False
        queue.created_at = self._clock.now()
        revived = self._gone.pop(queue.name, None)
        if revived is None:
            self._queues[queue.name] = Home(queue, self._claimable)
        else:
            revived.queue = queue
            self._queues[queue.name] = revived
        self._outbox.queue(QueueChange.CREATED, queue, queue.created_at)
        return True

    async def update_queue(self, name: str, values: Mapping[str, Any]) -> Queue | None:
        """See ``Store.update_queue``."""
        home = self._queues.get(name)
        if home is None:
            return None
        changed = replace(home.queue, **values)
        if changed != home.queue:
            home.queue = changed
            self._outbox.queue(QueueChange.CHANGED, changed, self._clock.now())
        return replace(changed)

    async def pause_queue(self, name: str, paused: bool) -> bool:
        """See ``Store.pause_queue``."""
        queue = self._queues.get(name)
        if queue is None:
            return False
        if queue.queue.paused != paused:
            queue.queue.paused = paused
            self._outbox.queue(QueueChange.CHANGED, queue.queue, self._clock.now())
        return True

    async def delete_queue(self, name: str) -> int | None:
        """See ``Store.delete_queue``."""
        queue = self._queues.get(name)
        if queue is None:
            return None
        unfinished = sum(n for state, n in queue.depth.items() if state not in TERMINAL)
        if not unfinished:
            self._gone[name] = self._queues.pop(name)
            self._outbox.queue(QueueChange.DELETED, queue.queue, self._clock.now())
        return unfinished

    async def unfinished(self, queue: str, limit: int) -> list[int]:
        """See ``Store.unfinished``."""
        wanted = (
            record.seq
            for record in self._by_seq.values()
            if record.spec.queue == queue and record.state not in TERMINAL
        )
        return list(itertools.islice(wanted, limit))

    async def stats(self, queue: str | None = None) -> list[QueueStats]:
        """See ``Store.stats``."""
        names = sorted(self._queues) if queue is None else [queue]
        return [self._queues[name].stats() for name in names if name in self._queues]

    async def waiting_types(self, count_to: int, queue: str | None = None) -> list[WaitingType]:
        """See ``Store.waiting_types``."""
        return [
            WaitingType(name, type, jobs)
            for name, home in sorted(self._queues.items())
            if queue in (None, name)
            for type, jobs in sorted(home.ready.counts(count_to).items())
        ]

    # -- workers ---------------------------------------------------------------------------

    async def register_worker(self, info: WorkerInfo) -> list[Held]:
        """See ``Store.register_worker``."""
        holding = {one.worker_id for one in await self.held()}
        replaced = self._roster.register(info, self._clock.now(), holding)
        return await self.held(info.id) if replaced else []

    def pulse(
        self,
        worker_id: str,
        incarnation: int,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
        *,
        owner: str = "",
    ) -> Pulse:
        """See ``Store.pulse``."""
        now = self._clock.now()
        status = self._roster.seen(worker_id, incarnation, now, owner, overrun)
        if status is None:
            return Pulse(False)
        # list() of a dict's values is one step: safe beside the loop's thread.
        standing = {
            record.lease: record
            for record in list(self._held.values())
            if record.worker_id == worker_id
        }
        for lease in begun:
            executing = standing.get(lease)
            if executing is not None and executing.state is State.ASSIGNED:
                executing.due = now + self._rules.assignment_timeout
        if progress:
            self._keep_progress(progress, standing, now)
        held = map(held_of, standing.values())
        return Pulse.answer(status, leases, {one.lease: one for one in held})

    def _keep_progress(
        self, told: Mapping[int, Progress], standing: Mapping[int | None, Record], now: float
    ) -> None:
        """Keep what is new of leases in force, and forget what ended: an end looks for nothing."""
        for lease, progress in told.items():
            if lease in standing:
                self._progress[lease] = replace(progress, at=now)
        for kept in list(self._progress):
            if kept not in self._held:
                self._progress.pop(kept, None)

    async def held(self, worker_id: str | None = None) -> list[Held]:
        """See ``Store.held``."""
        return [
            held_of(record)
            for record in self._held.values()
            if worker_id is None or record.worker_id == worker_id
        ]

    async def set_worker_status(self, worker_id: str, status: WorkerStatus) -> bool:
        """See ``Store.set_worker_status``."""
        return self._roster.set_status(worker_id, status)

    async def workers(self) -> list[Worker]:
        """See ``Store.workers``."""
        running: dict[str, int] = {}
        for one in await self.held():
            running[one.worker_id] = running.get(one.worker_id, 0) + 1
        return self._roster.all(running)

    async def retire_silent(self, silent_for: float, term: Term) -> list[str]:
        """See ``Store.retire_silent``."""
        self._check(term)
        return self._roster.retire_silent(self._clock.now() - silent_for)

    async def retire_worker(self, worker_id: str, incarnation: int, *, owner: str = "") -> bool:
        """See ``Store.retire_worker``."""
        self._roster.check_owner(worker_id, owner)
        if await self.held(worker_id):
            return False
        return self._roster.remove(worker_id, incarnation)

    async def forget_worker(self, worker_id: str) -> bool:
        """See ``Store.forget_worker``."""
        return self._roster.forget(worker_id)
