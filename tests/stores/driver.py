"""Drives a store the way the engine does, in words that read well in a test."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from jobqueue.core.clock import ManualClock
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import (
    MAX_HISTORY,
    Assignment,
    Event,
    Job,
    JobSpec,
    NewJob,
    Outcome,
    SubmitResult,
    SubmitStatus,
    Transition,
    WorkerInfo,
)
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import Queue, QueueStats
from jobqueue.core.rebuild import World, gather
from jobqueue.core.store import BEGINNING, Claim, DoneJobs, JobFilter, Overdue, Rules, Store, Term
from jobqueue.core.stream import StreamItem
from jobqueue.stores.memory import MemoryStore
from tests.history.checker import Evidence, assert_kept

NO_BACKOFF = "scheduler"  # 1, 2, 4, 8 s without jitter: times that a test can name


def spec(payload: bytes = b"x", *, queue: str = "q", **fields: Any) -> JobSpec:
    """A spec for the queue that every test has."""
    return JobSpec(payload=payload, queue=queue, **fields)


def new(*specs: JobSpec) -> list[NewJob]:
    """Specs under fresh ids."""
    return [NewJob(job_id, one) for job_id, one in zip(new_job_ids(len(specs)), specs, strict=True)]


def worker(worker_id: str = "w", incarnation: int = 1, **fields: Any) -> WorkerInfo:
    """A worker as it registers."""
    standard: dict[str, Any] = {
        "hostname": "host",
        "pid": 1,
        "concurrency": 4,
        "queues": ("q",),
        "version": "1.0",
    }
    return WorkerInfo(id=worker_id, incarnation=incarnation, **(standard | fields))


async def accept(store: Store, count: int = 1) -> list[str]:
    """Submit jobs that must be accepted, to a store without a driver."""
    results = (await store.jobs.submit(new(*(spec() for _ in range(count))))).results
    return [result.unwrap() for result in results]


MOST_HISTORIES = 60


class Driver:
    """A store, its clock, and the shortest way to bring a job where a test needs it."""

    def __init__(self, store: Store, clock: ManualClock, rules: Rules) -> None:
        self.store = store
        self.clock = clock
        self.rules = rules
        self.accepted: set[str] = set()
        self.removed: set[str] = set()

    async def queue(self, name: str = "q", **fields: Any) -> None:
        fields.setdefault("retry_profile", NO_BACKOFF)
        assert await self.store.queues.create(Queue(name=name, **fields))

    async def submit(self, payload: bytes = b"x", *, queue: str = "q", **fields: Any) -> str:
        """Submit one job that must be accepted; returns its id."""
        result = (await self.results(spec(payload, queue=queue, **fields)))[0]
        assert result.status is SubmitStatus.ACCEPTED, result
        return result.job_id

    async def results(self, *specs: JobSpec) -> list[SubmitResult]:
        """Submit a batch as one call."""
        results = (await self.store.jobs.submit(new(*specs))).results
        self.accepted |= {r.job_id for r in results if r.status is SubmitStatus.ACCEPTED}
        return results

    async def claim(
        self,
        slots: int = 1,
        *,
        queues: Sequence[str] = ("q",),
        worker_id: str = "w",
        types: Collection[str] | None = None,
    ) -> list[Assignment]:
        meant = None if types is None else frozenset(types)
        return await self.store.jobs.claim([Claim(tuple(queues), [worker_id] * slots, types=meant)])

    async def claim_one(self, **where: Any) -> Assignment:
        (assignment,) = await self.claim(1, **where)
        return assignment

    async def apply(self, *transitions: Transition) -> list[Outcome]:
        return (await self.store.jobs.apply(list(transitions))).outcomes

    async def do(self, transition: Transition) -> Outcome:
        """Apply one transition that must be accepted."""
        (outcome,) = await self.apply(transition)
        assert outcome.applied, outcome
        return outcome

    async def start(self, assignment: Assignment) -> None:
        await self.do(Transition.started(assignment.seq, assignment.lease))

    async def fail(self, assignment: Assignment, error: str = "boom", **fields: Any) -> Outcome:
        return await self.do(Transition.failed(assignment.seq, assignment.lease, error, **fields))

    async def succeed(self, assignment: Assignment, result: bytes | None = b"r") -> Outcome:
        return await self.do(Transition.succeeded(assignment.seq, assignment.lease, result, 0.5))

    async def lose(self, assignment: Assignment) -> Outcome:
        return await self.do(Transition.worker_lost(assignment.seq, assignment.lease, "gone"))

    async def assigned(self, **fields: Any) -> Assignment:
        """A new job, claimed; nothing else may be claimable."""
        job_id = await self.submit(**fields)
        assignment = await self.claim_one(queues=(fields.get("queue", "q"),))
        assert assignment.id == job_id
        return assignment

    async def running(self, **fields: Any) -> Assignment:
        assignment = await self.assigned(**fields)
        await self.start(assignment)
        return assignment

    async def brought_to(self, state: State, **fields: Any) -> Job:
        """A new job in any state."""
        if state is State.PENDING:
            return await self.job(await self.submit(**fields))
        if state is State.DEAD_LETTERED:
            fields["max_retries"] = 0
        assignment = await self.assigned(**fields)
        if state is not State.ASSIGNED:
            await self.start(assignment)
        if state is State.DONE:
            await self.succeed(assignment)
        elif state in (State.FAILED, State.DEAD_LETTERED):
            await self.fail(assignment)
        job = await self.job(assignment.id)
        assert job.state is state
        return job

    async def job(self, job_id: str) -> Job:
        job = await self.store.reads.get(job_id)
        assert job is not None, f"there is no job {job_id}"
        return job

    async def state(self, job_id: str) -> State:
        return (await self.job(job_id)).state

    async def edges(self, job_id: str) -> list[tuple[State, Reason]]:
        """Where a job went and why."""
        return [(event.to_state, event.reason) for event in await self.store.reads.history(job_id)]

    async def sweep(self) -> Overdue:
        """Do what is due, as the sweeper does; every move it names must apply."""
        found = await self.store.upkeep.due(1_000)
        for outcome in await self.apply(*found.transitions):
            assert outcome.applied, outcome
        return found

    async def after(self, seconds: float) -> Overdue:
        """Let time pass, then sweep."""
        self.clock.advance(seconds)
        return await self.sweep()

    async def term(self) -> Term:
        """The lead, for an hour of the store's time."""
        term = await self.store.leadership.lead(1, 3_600.0)
        assert term is not None
        return term

    async def stats(self, name: str = "q") -> QueueStats:
        (stats,) = await self.store.queues.stats(name)
        return stats

    async def all_jobs(self) -> list[Job]:
        jobs: list[Job] = []
        before: int | None = None
        while page := await self.store.reads.list_jobs(JobFilter(before_seq=before, limit=500)):
            jobs += page
            before = page[-1].seq
        return jobs

    async def all_events(self, page: int = 500) -> list[Event]:
        events: list[Event] = []
        position = BEGINNING
        while found := await self.store.stream.events_after(position, page):
            events += [event for _, event in found]
            position = found[-1][0]
        return events

    async def delete(self, job_id: str) -> State | None:
        self.removed.add(job_id)
        return await self.store.upkeep.delete_job(job_id)

    async def prune(self, completed_before: float, limit: int = 1_000, **where: Any) -> int:
        before = {job.id for job in await self.all_jobs()}
        term, chosen = await self.term(), DoneJobs(**where)
        count = await self.store.upkeep.prune_done(completed_before, limit, term, chosen)
        gone = before - {job.id for job in await self.all_jobs()}
        assert len(gone) == count
        self.removed |= gone
        return count

    async def all_changes(self, page: int = 500, size: int = 1 << 20) -> list[StreamItem]:
        """The whole stream, as whoever publishes it reads it."""
        items: list[StreamItem] = []
        found = await self.store.stream.changes_after(BEGINNING, page, size)
        while found.items:
            items += found.items
            found = await self.store.stream.changes_after(found.position, page, size)
        return items

    async def check_stream(self) -> dict[str, Job]:
        """The stream alone must be enough to rebuild every job, its history and the queues.

        Returns the jobs.
        """
        if self.clock is not None:
            self.clock.advance(3_601.0)  # whoever led does not any more
        term = await self.term()
        await self.store.stream.end(term)
        await self.store.stream.begin(term)
        world = World()
        for item in await self.all_changes():
            world.add(item)
        # Progress is no event: it is not in the stream.
        found = {job.id: job for job in await self.all_jobs()}
        jobs = {job_id: replace(job, progress=None) for job_id, job in found.items()}
        assert {job_id: one.job for job_id, one in world.jobs.items()} == jobs
        # Every event is judged below, too: of many jobs, some histories are read one by one.
        some = dict(islice(world.jobs.items(), 0, None, 1 + len(world.jobs) // MOST_HISTORIES))
        for job_id, rebuilt in some.items():
            assert rebuilt.history[-MAX_HISTORY:] == await self.store.reads.history(job_id)
        queues = {stats.queue.name: stats.queue for stats in await self.store.queues.stats()}
        assert world.queues == queues
        schedules = await self.store.schedules.get(list(world.schedules))
        assert await self.store.schedules.count() == len(schedules)
        twin = Driver(MemoryStore(rules=self.rules, clock=self.clock), self.clock, self.rules)
        await twin.store.restore(gather(world, published=True), lambda count: None)
        assert {job.id: job for job in await twin.all_jobs()} == jobs
        for job_id, rebuilt in some.items():
            assert rebuilt.history[-MAX_HISTORY:] == await twin.store.reads.history(job_id)
        assert await twin.store.schedules.get(list(world.schedules)) == schedules
        return found

    async def check(self, **more: Any) -> None:
        """Let the history checker judge everything that happened in this store."""
        jobs = await self.check_stream()
        assert_kept(
            Evidence(
                events=await self.all_events(),
                jobs=jobs,
                accepted=self.accepted,
                removed=self.removed,
                **more,
            )
        )
