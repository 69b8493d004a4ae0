"""A backend that remembers what it was asked and answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jobqueue.core.errors import AlreadyExists, JobQueueError, NotFound
from jobqueue.core.explain import Explained, Explanation
from jobqueue.core.grouping import DeadLetterGroups
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import (
    Cancellation,
    ComponentHealth,
    Deleted,
    Event,
    Health,
    Job,
    JobQuery,
    JobSpec,
    Page,
    Pulse,
    Retried,
    RetryQuery,
    SubmitResult,
    Worker,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.lifecycle import TERMINAL, Reason, State
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.queue import Queue, QueueSpec, QueueStats, QueueUpdate
from jobqueue.core.schedule import (
    Schedule,
    SchedulePage,
    ScheduleSpec,
    Source,
    create,
    no_such_schedule,
)
from tests.records import made

CREATED = 1_800_000_000.0


def make_job(job_id: str | None = None, **changes: Any) -> Job:
    """A pending job."""
    fields: dict[str, Any] = {
        "id": job_id or new_job_ids(1)[0],
        "seq": 1,
        "queue": "default",
        "type": "",
        "payload": b'{"n": 1}',
        "priority": 0,
        "max_retries": 3,
        "state": State.PENDING,
        "version": 1,
        "attempt": 0,
        "retry_count": 0,
        "created_at": CREATED,
        "updated_at": CREATED,
    }
    return made(Job, **{**fields, **changes})


class FakeBackend:
    """Holds jobs in a dict. ``failure`` is raised by the next calls, ``gate`` delays them."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.keys: dict[str, str] = {}
        self.healthy = False  # whatever its components say
        self.specs: list[JobSpec] = []
        self.queries: list[JobQuery] = []
        self.retry_queries: list[RetryQuery] = []
        self.retried = Retried(0, 0, 0)
        self.deleted = Deleted(0, 0, 0)
        self.groups = DeadLetterGroups()
        self.causes: list[Explained] = []
        self.failure: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.entered = asyncio.Event()
        self.left = asyncio.Event()
        self.feeds: dict[str, asyncio.Queue[Event]] = {}
        self.watchers = 0
        self.components = [ComponentHealth("store", True)]
        self.depth = {State.PENDING: 2}
        self.queues = {"default": Queue(name="default", created_at=CREATED)}
        self.schedules: dict[str, Schedule] = {}
        self.page = Page([])
        self.cancellation = Cancellation(State.DEAD_LETTERED, requested=False)

    def add(self, **changes: Any) -> Job:
        """Put a job there."""
        job = make_job(**changes)
        self.jobs[job.id] = job
        return job

    async def _call(self) -> None:
        self.entered.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.left.set()
        if self.failure is not None:
            raise self.failure

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        await self._call()
        results = []
        for spec in specs:
            known = self.keys.get(spec.key or "")
            if known is not None:
                same = known not in self.jobs or self.jobs[known].payload == spec.payload
                make = SubmitResult.duplicate if same else None
                results.append(
                    make(known) if make else SubmitResult.conflict(known, spec.key or "")
                )
                continue
            if spec.queue not in self.queues:
                results.append(SubmitResult.refused(NotFound(f"queue: no queue {spec.queue!r}")))
                continue
            self.specs.append(spec)
            job = self.add(
                payload=spec.payload, type=spec.type, queue=spec.queue, priority=spec.priority
            )
            if spec.key:
                self.keys[spec.key] = job.id
            results.append(SubmitResult.accepted(job.id))
        return results

    async def get(self, job_id: str) -> Job:
        await self._call()
        try:
            return self.jobs[job_id]
        except KeyError:
            raise NotFound(f"no job {job_id}") from None

    async def wait(self, job_id: str, timeout: float | None) -> Job:
        await self._call()
        return await self.get(job_id)

    async def cancel(self, job_id: str) -> Cancellation:
        await self.get(job_id)
        return self.cancellation

    async def list_jobs(self, query: JobQuery) -> Page:
        await self._call()
        self.queries.append(query)
        return self.page

    async def history(self, job_id: str, before_version: int | None = None) -> list[Event]:
        await self.get(job_id)
        return [Event(job_id, 1, None, State.PENDING, Reason.SUBMITTED, CREATED, 0)]

    async def explain(self, job_id: str) -> Explanation:
        job = await self.get(job_id)
        return Explanation(job_id, job.state, CREATED, self.causes)

    async def watch(self, job_id: str) -> AsyncIterator[Event]:
        feed = self.feeds.get(job_id)
        if feed is None:
            raise NotFound(f"no job {job_id}")
        self.watchers += 1
        try:
            while True:
                event = await feed.get()
                yield event
                if event.to_state in TERMINAL:
                    return
        finally:
            self.watchers -= 1

    async def connect(self, info: WorkerInfo, inbox: Any) -> Any:
        raise NotImplementedError

    def pulse(
        self,
        worker_id: str,
        incarnation: int,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        complete: bool = True,
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
        *,
        owner: str = "",
    ) -> Pulse:
        raise NotImplementedError

    async def leave(self, worker_id: str, incarnation: int, *, owner: str = "") -> None:
        raise NotImplementedError

    async def create_queue(self, spec: QueueSpec) -> Queue:
        await self._call()
        queue = spec.resolve(Queue(name="defaults"))
        if queue.name in self.queues:
            raise AlreadyExists(f"queue {queue.name!r} exists")
        self.queues[queue.name] = queue
        return queue

    async def update_queue(self, name: str, update: QueueUpdate) -> Queue:
        queue = (await self.queue_stats(name)).queue
        values = update.resolve(queue, Queue(name="defaults"))
        self.queues[name] = replace(queue, **values)
        return self.queues[name]

    async def delete_queue(self, name: str, *, force: bool = False) -> int:
        await self._call()
        return 2 if force else 0

    async def pause_queue(self, name: str) -> None:
        await self.queue_stats(name)

    async def resume_queue(self, name: str) -> None:
        await self.queue_stats(name)

    async def queue_stats(self, name: str) -> QueueStats:
        await self._call()
        if name not in self.queues:
            raise NotFound(f"no queue {name!r}")
        return QueueStats(queue=self.queues[name], depth=self.depth)

    async def list_queues(self) -> list[QueueStats]:
        return [await self.queue_stats(name) for name in sorted(self.queues)]

    async def list_workers(self) -> list[Worker]:
        await self._call()
        info = WorkerInfo(
            id="w1", incarnation=1, hostname="h", pid=2, concurrency=4, queues=("default",)
        )
        online = WorkerStatus.ONLINE
        return [Worker(info=info, status=online, registered_at=CREATED, last_seen=CREATED)]

    async def drain_worker(self, worker_id: str) -> None:
        await self._call()

    async def undrain_worker(self, worker_id: str) -> None:
        await self._call()

    async def missing_queues(self, names: Sequence[str]) -> list[str]:
        await self._call()
        return [name for name in names if name not in self.queues]

    async def declare_schedules(self, specs: Sequence[ScheduleSpec]) -> list[JobQueueError | None]:
        await self._call()
        return [None for _ in specs]

    async def create_schedule(self, spec: ScheduleSpec) -> Schedule:
        await self._call()
        self.schedules[spec.name] = create(spec, Source.OPERATOR, CREATED, 0.0)
        return self.schedules[spec.name]

    async def get_schedule(self, name: str) -> Schedule:
        await self._call()
        if name not in self.schedules:
            raise no_such_schedule(name)
        return self.schedules[name]

    async def list_schedules(self, limit: int = 100, page_token: str = "") -> SchedulePage:
        await self._call()
        return SchedulePage(list(self.schedules.values())[:limit])

    async def pause_schedule(self, name: str) -> Schedule:
        return await self.get_schedule(name)

    async def resume_schedule(self, name: str) -> Schedule:
        return await self.get_schedule(name)

    async def run_schedule(self, name: str) -> str:
        await self.get_schedule(name)
        return new_job_ids(1)[0]

    async def remove_schedule(self, name: str) -> None:
        await self.get_schedule(name)
        del self.schedules[name]

    async def shutdown_worker(self, worker_id: str) -> None:
        await self._call()

    async def retry(self, job_id: str) -> Job:
        job = await self.get(job_id)
        job.state = State.PENDING
        return job

    async def retry_dead_letters(self, query: RetryQuery) -> Retried:
        await self._call()
        self.retry_queries.append(query)
        return self.retried

    async def group_dead_letters(self, query: RetryQuery) -> DeadLetterGroups:
        await self._call()
        self.retry_queries.append(query)
        return self.groups

    async def delete_dead_letters(self, query: RetryQuery) -> Deleted:
        await self._call()
        self.retry_queries.append(query)
        return self.deleted

    async def delete_job(self, job_id: str) -> None:
        await self.get(job_id)
        del self.jobs[job_id]

    async def health(self) -> Health:
        await self._call()
        ok = self.healthy or all(c.ok for c in self.components)
        return Health(ok, "1.2.3", self.components)
