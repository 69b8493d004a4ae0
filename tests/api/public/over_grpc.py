"""The scenarios' words over gRPC: through the remote backend, which is what the SDK uses, and
through bare stubs where that client would not say what a scenario wants said."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc.aio

from jobqueue.api.grpc.errors import from_rpc_error
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Event, Job, JobQuery, JobSpec, SubmitResult, SubmitStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueSpec, QueueStats, QueueUpdate
from jobqueue.core.schedule import Overlap, Schedule, ScheduleSpec
from jobqueue.core.unique import UniqueKey
from jobqueue.pb.jq.v1 import client_pb2, client_pb2_grpc
from tests import patience
from tests.api.public.face import (
    CancelSeen,
    EventSeen,
    JobSeen,
    PageSeen,
    QueueSeen,
    Refused,
    ScheduleSeen,
    Spec,
    Submitted,
    WorkerSeen,
)

_NO_SUCH_STATE = 99


def _refused(error: JobQueueError) -> Refused:
    return Refused(
        error.code.value,
        error.message,
        field=getattr(error, "field", None),
        retry_after=getattr(error, "retry_after", None),
        job_id=getattr(error, "job_id", ""),
    )


@contextmanager
def _saying_codes() -> Iterator[None]:
    try:
        yield
    except JobQueueError as error:
        raise _refused(error) from error
    except grpc.aio.AioRpcError as error:
        raise _refused(from_rpc_error(error)) from error


def _seen(job: Job) -> JobSeen:
    return JobSeen(
        job_id=job.id,
        queue=job.queue,
        type=job.type,
        state=job.state.name,
        payload=job.payload,
        result=job.result,
        priority=job.priority,
        max_retries=job.max_retries,
        retry_count=job.retry_count,
        attempt=job.attempt,
        version=job.version,
        reason=job.reason.value,
        error=job.error,
        key=job.key,
        unique=None if job.spec.unique is None else job.spec.unique.document(),
        concurrency_key=job.spec.concurrency_key,
        labels=dict(job.labels),
        ttl=job.ttl,
        timeout=job.timeout,
        worker_id=job.worker_id,
        cancel_requested=job.cancel_requested,
        created_at=job.created_at,
        started_at=job.started_at,
        completed_at=job.completed_at,
        run_at=job.run_at,
        next_retry_at=job.next_retry_at,
        hint=job.hint,
        progress=None if job.progress is None else (job.progress.value, job.progress.text),
    )


def _event(event: Event) -> EventSeen:
    origin = event.from_state
    return EventSeen(
        event.version,
        None if origin is None else origin.name,
        event.to_state.name,
        event.reason.value,
        event.at,
        event.detail,
    )


def _queue(stats: QueueStats) -> QueueSeen:
    queue = stats.queue
    return QueueSeen(
        name=queue.name,
        paused=queue.paused,
        max_retries=queue.max_retries,
        ttl=queue.ttl,
        timeout=queue.timeout,
        capacity=queue.capacity,
        retry_profile=queue.retry_profile,
        retry_base=queue.retry_base,
        retry_max=queue.retry_max,
        retry_jitter=queue.retry_jitter,
        retention=queue.retention,
        dead_letter_retention=queue.dead_letter_retention,
        max_running=queue.max_running,
        rate=queue.rate,
        rate_period=queue.rate_period,
        rate_burst=queue.rate_burst,
        key_max_running=queue.key_max_running,
        key_rate=queue.key_rate,
        key_rate_period=queue.key_rate_period,
        key_rate_burst=queue.key_rate_burst,
        key_weights=dict(queue.key_weights) if queue.key_weights else None,
        priority_weights=dict(queue.priority_weights) if queue.priority_weights else None,
        depth={state.name: count for state, count in stats.depth.items()},
        processed=stats.processed,
        average_seconds=stats.average_seconds,
        error_rate=stats.error_rate,
        unserved=[(one.type, one.jobs) for one in stats.unserved],
        held_back=[(one.limit, one.jobs, one.opens_in, one.key) for one in stats.held_back],
    )


def _schedule(found: Schedule) -> ScheduleSeen:
    spec, state, job = found.spec, found.state, found.spec.job
    return ScheduleSeen(
        name=spec.name,
        cron=spec.cron,
        every=spec.every,
        timezone=spec.timezone,
        overlap=spec.overlap.value,
        catch_up=spec.catch_up,
        source=found.source.value,
        paused=state.paused,
        next_at=state.next_at,
        last_at=state.last_at,
        last_job_id=state.last_job_id,
        skipped=state.skipped,
        problem=state.problem,
        queue=job.queue,
        type=job.type,
        payload=job.payload,
        priority=job.priority,
        labels=dict(job.labels),
        concurrency_key=job.concurrency_key,
    )


def _spec(spec: Spec) -> JobSpec:
    return JobSpec(
        payload=spec.payload,
        queue=spec.queue,
        type=spec.type,
        priority=spec.priority,
        max_retries=spec.max_retries,
        ttl=spec.ttl,
        delay=spec.delay,
        run_at=spec.run_at,
        timeout=spec.timeout,
        key=spec.key,
        unique=None if spec.unique is None else UniqueKey(**spec.unique),
        concurrency_key=spec.concurrency_key,
        labels=spec.labels,
    )


def _submitted(result: SubmitResult) -> Submitted:
    job_id, status = result.unwrap(), result.status
    return Submitted(job_id, status is SubmitStatus.DUPLICATE, status is SubmitStatus.EXISTING)


class GrpcDriver:
    """A client of the gRPC faces of one or more servers; each call goes to the next one."""

    name = "grpc"

    def __init__(self, ports: Sequence[int]) -> None:
        targets = [f"127.0.0.1:{port}" for port in ports]
        self._remotes = [GrpcBackend(target, timeout=patience.longest(30)) for target in targets]
        self._channels = [grpc.aio.insecure_channel(target) for target in targets]
        self._remote_turns = itertools.cycle(self._remotes)
        self._stub_turns = itertools.cycle(
            [client_pb2_grpc.ClientServiceStub(channel) for channel in self._channels]
        )

    @property
    def _remote(self) -> GrpcBackend:
        return next(self._remote_turns)

    @property
    def _stub(self) -> client_pb2_grpc.ClientServiceStub:
        return next(self._stub_turns)

    async def close(self) -> None:
        for remote in self._remotes:
            await remote.stop()
        for channel in self._channels:
            await channel.close(None)

    async def submit(self, spec: Spec) -> Submitted:
        with _saying_codes():
            [result] = await self._remote.submit([_spec(spec)])
            return _submitted(result)

    async def submit_batch(self, specs: Sequence[Spec]) -> list[Submitted | Refused]:
        with _saying_codes():
            results = await self._remote.submit([_spec(spec) for spec in specs])
        return [
            _submitted(result) if result.error is None else _refused(result.error)
            for result in results
        ]

    async def get(self, job_id: str) -> JobSeen:
        with _saying_codes():
            return _seen(await self._remote.get(job_id))

    async def wait(self, job_id: str, timeout: float) -> JobSeen:
        with _saying_codes():
            return _seen(await self._remote.wait(job_id, timeout))

    async def cancel(self, job_id: str) -> CancelSeen:
        with _saying_codes():
            answer = await self._remote.cancel(job_id)
        return CancelSeen(answer.state.name, answer.requested, answer.already_terminal)

    async def list(
        self,
        *,
        queue: str | None = None,
        states: Sequence[str] = (),
        type: str | None = None,
        limit: int | None = None,
        page_token: str = "",
    ) -> PageSeen:
        if unknown := [name for name in states if name not in State.__members__]:
            request = client_pb2.ListJobsRequest()
            request.states.extend([_NO_SUCH_STATE] * len(unknown))  # type: ignore[list-item]
            with _saying_codes():
                await self._stub.ListJobs(request, timeout=patience.longest(30))
        query = JobQuery(queue=queue, type=type, page_token=page_token)
        query.states = tuple(State[name] for name in states)
        if limit is not None:
            query.limit = limit
        with _saying_codes():
            page = await self._remote.list_jobs(query)
        return PageSeen([_seen(job) for job in page.jobs], page.next_page_token)

    async def history(self, job_id: str) -> Sequence[EventSeen]:
        with _saying_codes():
            return [_event(event) for event in await self._remote.history(job_id)]

    async def watch(self, job_id: str) -> AsyncIterator[EventSeen]:
        with _saying_codes():
            async for event in self._remote.watch(job_id):
                yield _event(event)

    async def retry(self, job_id: str) -> JobSeen:
        with _saying_codes():
            return _seen(await self._remote.retry(job_id))

    async def delete(self, job_id: str) -> None:
        with _saying_codes():
            await self._remote.delete_job(job_id)

    async def create_queue(self, name: str, **settings: Any) -> QueueSeen:
        with _saying_codes():
            queue = await self._remote.create_queue(QueueSpec(name=name, **settings))
        return _queue(QueueStats(queue=queue, depth={}))

    async def update_queue(self, name: str, **settings: Any) -> QueueSeen:
        with _saying_codes():
            queue = await self._remote.update_queue(name, QueueUpdate(**settings))
        return _queue(QueueStats(queue=queue, depth={}))

    async def delete_queue(self, name: str, *, force: bool = False) -> int:
        with _saying_codes():
            return await self._remote.delete_queue(name, force=force)

    async def pause_queue(self, name: str) -> None:
        with _saying_codes():
            await self._remote.pause_queue(name)

    async def resume_queue(self, name: str) -> None:
        with _saying_codes():
            await self._remote.resume_queue(name)

    async def queue(self, name: str) -> QueueSeen:
        with _saying_codes():
            return _queue(await self._remote.queue_stats(name))

    async def queues(self) -> Sequence[QueueSeen]:
        with _saying_codes():
            return [_queue(stats) for stats in await self._remote.list_queues()]

    async def workers(self) -> Sequence[WorkerSeen]:
        with _saying_codes():
            workers = await self._remote.list_workers()
        return [
            WorkerSeen(
                worker_id=worker.info.id,
                status=worker.status.value,
                concurrency=worker.info.concurrency,
                queues=list(worker.info.queues),
                types=None if worker.info.types is None else sorted(worker.info.types),
                running=worker.running,
            )
            for worker in workers
        ]

    async def drain_worker(self, worker_id: str) -> None:
        with _saying_codes():
            await self._remote.drain_worker(worker_id)

    async def undrain_worker(self, worker_id: str) -> None:
        with _saying_codes():
            await self._remote.undrain_worker(worker_id)

    async def shutdown_worker(self, worker_id: str) -> None:
        with _saying_codes():
            await self._remote.shutdown_worker(worker_id)

    async def create_schedule(self, name: str, job: Spec, **settings: Any) -> ScheduleSeen:
        if "overlap" in settings:
            settings["overlap"] = Overlap(settings["overlap"])
        spec = ScheduleSpec(name=name, job=_spec(job), **settings)
        with _saying_codes():
            return _schedule(await self._remote.create_schedule(spec))

    async def schedule(self, name: str) -> ScheduleSeen:
        with _saying_codes():
            return _schedule(await self._remote.get_schedule(name))

    async def schedules(
        self, limit: int | None = None, page_token: str = ""
    ) -> tuple[Sequence[ScheduleSeen], str]:
        with _saying_codes():
            page = await self._remote.list_schedules(limit or 100, page_token)
        return [_schedule(one) for one in page.schedules], page.next_page_token

    async def pause_schedule(self, name: str) -> ScheduleSeen:
        with _saying_codes():
            return _schedule(await self._remote.pause_schedule(name))

    async def resume_schedule(self, name: str) -> ScheduleSeen:
        with _saying_codes():
            return _schedule(await self._remote.resume_schedule(name))

    async def run_schedule(self, name: str) -> str:
        with _saying_codes():
            return await self._remote.run_schedule(name)

    async def remove_schedule(self, name: str) -> None:
        with _saying_codes():
            await self._remote.remove_schedule(name)

    async def healthy(self) -> bool:
        with _saying_codes():
            return (await self._remote.health()).ok
