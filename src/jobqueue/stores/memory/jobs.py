"""Submit, claim, change and remove jobs in the memory store, and find jobs that are due."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jobqueue.core.decide import (
    ASSIGNED,
    SUBMITTED,
    QueuePolicy,
    accept,
    assign,
    assignment,
    begin,
    events_of,
    full,
    move,
    overdue,
    repeated,
    to_supersede,
    unique_conflict,
)
from jobqueue.core.errors import no_such_queue
from jobqueue.core.job import (
    Assignment,
    Held,
    JobSpec,
    NewJob,
    Outcome,
    Refusal,
    SubmitResult,
    Transition,
)
from jobqueue.core.lifecycle import HELD, TERMINAL, State
from jobqueue.core.store import (
    ALL_QUEUES,
    ANY_QUEUE,
    Application,
    Claim,
    DoneJobs,
    Overdue,
    Submission,
    Term,
)
from jobqueue.core.stream import CancelRequested, JobDeleted, unpublished
from jobqueue.core.unique import Holder
from jobqueue.stores.memory.contents import MemoryJob, MemoryPart, MemoryQueue
from jobqueue.stores.memory.keyed import KeyLine
from jobqueue.stores.memory.limiting import LimitedClaim, finished
from jobqueue.stores.memory.ready import First


class MemoryJobs(MemoryPart):
    """Implements ``core.store.JobStore``."""

    async def submit(self, jobs: Sequence[NewJob], claims: Sequence[Claim] = ()) -> Submission:
        now = self._clock.now()
        self._keys.expire(now)
        superseded: list[Outcome] = []
        results = [self._accept(job, now, superseded) for job in jobs]
        return Submission(results, self._claim(claims, now), superseded)

    def _accept(self, job: NewJob, now: float, superseded: list[Outcome]) -> SubmitResult:
        spec, contents = job.spec, self._contents
        queue = self._queues.get(spec.queue)
        if queue is None:
            return SubmitResult.refused(no_such_queue(spec.queue))
        for key in (spec.stored_key, spec.shared_key):
            known = self._keys.find(spec.queue, key)
            if known is not None:
                return repeated(spec, known[0], known[1])
        holder = self._holder(spec)
        if spec.unique is not None and (conflict := unique_conflict(spec.unique, holder, now)):
            return conflict
        old = holder if spec.unique and to_supersede(spec.unique, holder, now) else None
        capacity = queue.settings.capacity
        gives_place = old is not None and old.state is State.PENDING
        if 0 < capacity <= queue.depth[State.PENDING] and not gives_place:
            return full(spec.queue, capacity)
        if old is not None:
            superseded.append(self._move(Transition.superseded(old.seq, job.id), now, set()))
        made = accept(spec, queue.settings, now)
        record = begin(made.spec, made.expires_at, made.due, next(contents.seq), MemoryJob)
        record.keep(job.id, made.spec, queue, made.ready, max(contents.latest, now))
        contents.add(record)
        self._log.write(events_of(record, job.id, spec.queue, None, SUBMITTED, now), record.events)
        if spec.stored_key is not None:
            expires = now + self._rules.key_ttl
            self._keys.put(spec.queue, spec.stored_key, job.id, spec.fingerprint(), expires)
        return SubmitResult.accepted(job.id)

    def _holder(self, spec: JobSpec) -> Holder | None:
        """Return the holder of the spec's unique key, or None if nobody has the key."""
        if spec.unique is None:
            return None
        found = self._contents.unique.get((spec.queue, spec.unique.stored))
        if found is None:
            return None
        return Holder(found.id, found.seq, found.created_at, found.state)

    async def claim(self, claims: Sequence[Claim]) -> list[Assignment]:
        return self._claim(claims, self._clock.now())

    def _claim(self, claims: Sequence[Claim], now: float) -> list[Assignment]:
        assigned: list[Assignment] = []
        limited: dict[MemoryQueue, LimitedClaim] = {}
        for claim in claims:
            names: Iterable[str] = self._queues if ALL_QUEUES in claim.queues else claim.queues
            queues = [
                queue
                for name in dict.fromkeys(names)
                if name not in claim.without
                and (queue := self._queues.get(name)) is not None
                and queue.settings.closed_until <= now
                and (queue.limits is None or _let_through(queue, limited, claim.types, now))
            ]
            for worker_id in claim.slots:
                record = self._next(queues, claim.types, now, limited)
                if record is None:
                    break
                assigned.append(self._assign(record, worker_id, now))
                if limited and record.queue in limited and not limited[record.queue].left:
                    queues.remove(record.queue)
        return finished(assigned, limited, now) if limited else assigned

    def _next(
        self,
        queues: list[MemoryQueue],
        types: frozenset[str] | None,
        now: float,
        limited: Mapping[MemoryQueue, LimitedClaim],
    ) -> MemoryJob | None:
        while True:
            best: MemoryQueue | None = None
            soonest: First | None = None
            for queue in queues:
                if queue.keyed is None:
                    first = queue.ready.first(types)
                elif queue in limited:
                    first = limited[queue].first(types)
                else:
                    first = queue.first(types)
                if first is not None and (soonest is None or first < soonest):
                    best, soonest = queue, first
            if best is None or soonest is None:
                return None
            if best.keyed is None and not limited:  # without a further call, for most jobs
                weights = best.settings.priority_weights
                rank, seq, type = best.ready.draw(weights, types) if weights else soonest
                best.ready.take(rank, type)
                record = self._by_seq[seq]
                record.ready = False
                if record.expires_at is None or record.expires_at > now:
                    return record
                continue
            claim = limited.get(best)
            line = None if claim is None else claim.next()
            record = self._take(best, soonest, types) if line is None else self._take_of(line)
            expired = record.expires_at is not None and record.expires_at <= now
            if claim is not None:
                claim.took(line, started=not expired)
            if not expired:
                return record

    def _take(self, queue: MemoryQueue, soonest: First, types: frozenset[str] | None) -> MemoryJob:
        """Take the next job of a queue in which keys do not matter."""
        if weights := queue.settings.priority_weights:
            soonest = queue.draw(weights, types)
        record = self._by_seq[soonest[1]]
        record.ready = False
        queue.take(soonest, record.spec.concurrency_key)
        return record

    def _take_of(self, line: KeyLine) -> MemoryJob:
        """Take the first job of a line."""
        assert line.seq is not None
        record = self._by_seq[line.seq]
        record.ready = False
        record.queue.take_of(line.key, line.rank, line.type)
        return record

    def _assign(self, record: MemoryJob, worker_id: str, now: float) -> Assignment:
        assign(record, worker_id, now, self._rules)
        made = assignment(record, record.id, record.spec, record.created_at, now)
        self._contents.held[made.lease] = record
        if record.spec.concurrency_key is not None:
            record.queue.hold(record)
        depth = record.queue.depth
        depth[State.PENDING] -= 1
        depth[State.ASSIGNED] += 1
        name = record.spec.queue
        events = events_of(record, record.id, name, State.PENDING, ASSIGNED, now, "", worker_id)
        self._log.write(events, record.events)
        return made

    async def apply(
        self, transitions: Sequence[Transition], claims: Sequence[Claim] = ()
    ) -> Application:
        now = self._clock.now()
        freed: set[str] = set()
        outcomes = [self._move(asked, now, freed) for asked in transitions]
        return Application(outcomes, self._claim(claims, now), freed)

    def _move(self, asked: Transition, now: float, freed: set[str]) -> Outcome:
        record = self._by_seq.get(asked.seq)
        if record is None:
            return Outcome(Refusal.NO_SUCH_JOB)
        before, queue = record.state, record.queue
        settings = queue.settings
        policy = QueuePolicy(
            settings.name, settings.name in self._contents.gone, settings.retry_policy
        )
        outcome, decision, events = move(record, record.id, policy, asked, now, self._rules)
        if decision is None:
            return outcome
        if before in HELD and decision.lease is not None and record.state is not State.RUNNING:
            self._contents.held.pop(decision.lease, None)
            if record.spec.concurrency_key is not None:
                queue.release(record)
            if queue.limits is not None and queue.limits.counts_held:
                freed.add(settings.name)
        if before is State.PENDING and record.ready:
            record.ready = False
            queue.bury(record)
        if record.state is State.PENDING:
            record.ready = True
            queue.push(record)
        if record.state not in HELD:
            self._contents.timers.arm(record)
        queue.depth[before] -= 1
        queue.depth[record.state] += 1
        if decision.ran_for is not None:
            queue.run_seconds += decision.ran_for
            if record.state is State.DONE:
                queue.succeeded += 1
            else:
                queue.failed += 1
        self._log.write(events, record.events)
        return outcome

    async def request_cancel(self, seq: int) -> Held | None:
        record = self._by_seq.get(seq)
        if record is None or record.state is not State.RUNNING or record.lease is None:
            return None
        if not record.cancel_requested:
            record.cancel_requested = True
            now = self._clock.now()
            flagged = CancelRequested(record.id, record.spec.queue, record.version, now)
            self._log.put(flagged, now)
        return record.held()


def _let_through(
    queue: MemoryQueue,
    limited: dict[MemoryQueue, LimitedClaim],
    types: frozenset[str] | None,
    now: float,
) -> bool:
    """Return True if the limits of a queue allow a claim a start in this write."""
    claim = limited.get(queue)
    if claim is None:
        claim = limited[queue] = LimitedClaim(queue, now)
    return claim.begin(types)


class MemoryUpkeep(MemoryPart):
    """Implements ``core.store.Upkeep``."""

    async def due(self, limit: int) -> Overdue:
        timers, now = self._contents.timers, self._clock.now()
        self._keys.expire(now)
        found: list[Transition] = []
        promoted = 0
        times: list[float] = []
        for record in self._contents.held.values():
            if record.due is not None and record.due <= now:
                found.append(overdue(record.state, record.seq, record.version, record.lease))
            elif record.due is not None:
                times.append(record.due)
        rearm: list[MemoryJob] = []
        while len(found) + promoted < limit and (waiting := timers.pop_due(now)):
            rearm.append(waiting)
            expired = waiting.expires_at is not None and waiting.expires_at <= now
            if waiting.state is State.PENDING and not expired:
                promoted += 1
                waiting.ready = True
                waiting.queue.push(waiting)
                waiting.due = waiting.expires_at
            else:
                found.append(overdue(waiting.state, waiting.seq, waiting.version, None))
        if (next_timer := timers.next_at()) is not None:
            times.append(next_timer)
        for record in rearm:  # a job must be found again until its transition is applied
            timers.arm(record)
        next_at = now if len(found) + promoted >= limit else min(times, default=None)
        return Overdue(found[:limit], promoted, next_at)

    async def delete_job(self, job_id: str, *, version: int | None = None) -> State | None:
        record = self._contents.jobs.get(job_id)
        if record is None:
            return None
        if record.state in TERMINAL and version in (None, record.version):
            if not self._log.passed(record):
                raise unpublished(job_id)
            self._remove(record, key_freed=True)
            self._keys.free(record.spec.queue, record.spec.stored_key, job_id)
        return record.state

    async def prune_done(
        self, completed_before: float, limit: int, term: Term, where: DoneJobs = ANY_QUEUE
    ) -> int:
        self._check_term(term)
        old = [
            record
            for record in self._by_seq.values()
            if record.state is State.DONE
            and where.completed_after <= (record.completed_at or 0.0) < completed_before
            and (record.spec.queue in where.queues) != where.others
            and self._log.passed(record)
        ][:limit]
        for record in old:
            self._remove(record, key_freed=False)
        return len(old)

    def _remove(self, record: MemoryJob, *, key_freed: bool) -> None:
        now = self._clock.now()
        gone = JobDeleted(record.id, record.spec.queue, record.version, now, key_freed)
        self._log.put(gone, now)
        del self._contents.jobs[record.id], self._by_seq[record.seq]
        unique = record.spec.unique
        if unique is not None:
            place = record.spec.queue, unique.stored
            if self._contents.unique.get(place) is record:
                del self._contents.unique[place]
        record.queue.depth[record.state] -= 1
        self._log.remove(record.events)
