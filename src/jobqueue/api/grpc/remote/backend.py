"""Implement the backend API by calls to gRPC servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import grpc.aio

from jobqueue.access.tls import Credentials
from jobqueue.api.grpc.channel import Dialer
from jobqueue.api.grpc.client_servicer import MAX_WAIT
from jobqueue.api.grpc.codec import (
    deleted_from_pb,
    event_from_pb,
    explanation_from_pb,
    groups_from_pb,
    health_from_pb,
    job_from_pb,
    job_query_to_pb,
    queue_from_pb,
    queue_spec_to_pb,
    queue_update_to_pb,
    retried_from_pb,
    retry_query_to_pb,
    schedule_spec_to_pb,
    stats_from_pb,
    worker_from_pb,
)
from jobqueue.api.grpc.errors import error_from_pb, from_rpc_error
from jobqueue.api.grpc.remote.link import RemoteLink
from jobqueue.api.grpc.remote.servers import CountedAs, Effect, Servers
from jobqueue.api.grpc.remote.submitter import Submitter
from jobqueue.api.grpc.work_codec import heartbeat_to_pb
from jobqueue.core.api import Inbox, Link
from jobqueue.core.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    JobQueueError,
    Unavailable,
)
from jobqueue.core.explain import Explanation
from jobqueue.core.grouping import DeadLetterGroups
from jobqueue.core.job import (
    MAX_PAGE,
    Cancellation,
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
    check_before_version,
)
from jobqueue.core.lifecycle import TERMINAL
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.queue import Queue, QueueSpec, QueueStats, QueueUpdate
from jobqueue.core.schedule import Schedule, SchedulePage, ScheduleSpec
from jobqueue.pb.jq.v1 import client_pb2, operator_pb2, schedules_pb2, worker_pb2
from jobqueue.wire import record_fields, schedule_from_pb

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 1.0


class GrpcBackend:
    """Implements ``core.api.Backend`` by gRPC calls, each with a deadline.

    The first call connects.
    """

    def __init__(
        self, target: str, *, timeout: float = 10.0, credentials: Credentials | None = None
    ) -> None:
        """Prepare the calls; nothing connects yet.

        ``target`` is ``host:port``, or several of them with commas between. ``timeout`` is the most
        seconds for one call to one server.
        """
        self._dialers = [Dialer(one, credentials) for one in target.split(",")]
        self._timeout = timeout
        self._open: tuple[Servers, Submitter] | None = None
        self._links: dict[str, RemoteLink] = {}

    async def start(self) -> None:
        """Do nothing, because the first call connects."""

    async def stop(self) -> None:
        """End the links without deregistering workers, fail waiting submits, close the channels."""
        opened, self._open = self._open, None
        for link in list(self._links.values()):
            await link.abandon()
        if opened is not None:
            servers, submitter = opened
            await submitter.stop()
            await servers.close()

    def _opened(self) -> tuple[Servers, Submitter]:
        if self._open is None:
            servers = Servers(self._dialers, self._timeout)
            self._open = (servers, Submitter(servers))
            servers.compare(self._counted_as, self._moved)
        return self._open

    def _counted_as(self) -> CountedAs | None:
        if self._links:
            return "workers"
        return "clients" if self._open is not None and self._open[1].connected else None

    def _moved(self) -> None:
        if self._open is not None:
            self._open[1].move()
        for link in self._links.values():
            link.move()

    @property
    def _servers(self) -> Servers:
        return self._opened()[0]

    # -- clients -------------------------------------------------------------------------------

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        return await self._opened()[1].submit(specs)

    async def get(self, job_id: str) -> Job:
        request = client_pb2.GetJobRequest(job_id=job_id)
        answer = await self._servers.call(lambda at: at.client.GetJob, request)
        return job_from_pb(answer.job)

    async def wait(self, job_id: str, timeout: float | None) -> Job:
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        search = self._servers.search(_FIRST_DELAY, _LONGEST_DELAY)
        while True:
            left = MAX_WAIT if until is None else min(MAX_WAIT, max(0.0, until - loop.time()))
            request = client_pb2.WaitJobRequest(job_id=job_id, wait_seconds=left)
            server = search.pick()
            try:
                with server.lasting() as connection:
                    response = await server.call(
                        connection.client.WaitJob,
                        request,
                        timeout=left + self._timeout,
                        lasting=True,
                    )
            except (Unavailable, DeadlineExceeded):
                if search.failed(server) and self._open is not None:
                    continue
                if self._open is None or search.lasted() > self._timeout:
                    raise
                if until is not None and loop.time() + search.pause.most > until:
                    raise
                await search.pause.wait()
                continue
            search.answered()
            job = job_from_pb(response.job)
            if job.state in TERMINAL or (until is not None and loop.time() >= until):
                return job

    async def cancel(self, job_id: str) -> Cancellation:
        request = client_pb2.CancelJobRequest(job_id=job_id)
        answer = await self._servers.call(
            lambda at: at.client.CancelJob, request, Effect.REPEATABLE
        )
        return Cancellation(**record_fields(answer, Cancellation))

    async def list_jobs(self, query: JobQuery) -> Page:
        if not 1 <= query.limit <= MAX_PAGE:  # protobuf cannot encode every larger number
            raise InvalidArgument("limit", f"must be from 1 to {MAX_PAGE}")
        page = await self._servers.call(lambda at: at.client.ListJobs, job_query_to_pb(query))
        _check_page("jobs", len(page.jobs), query.limit)
        _check_progress(len(page.jobs), page.next_page_token)
        return Page([job_from_pb(job) for job in page.jobs], page.next_page_token)

    async def history(self, job_id: str, before_version: int | None = None) -> list[Event]:
        check_before_version(before_version)
        request = client_pb2.GetHistoryRequest(job_id=job_id, before_version=before_version)
        answer = await self._servers.call(lambda at: at.client.GetHistory, request)
        return [event_from_pb(event) for event in answer.events]

    async def explain(self, job_id: str) -> Explanation:
        request = client_pb2.ExplainJobRequest(job_id=job_id)
        answer = await self._servers.call(lambda at: at.client.ExplainJob, request)
        return explanation_from_pb(answer)

    async def watch(self, job_id: str) -> AsyncIterator[Event]:
        search = self._servers.search(_FIRST_DELAY, _LONGEST_DELAY)
        seen = 0
        while True:
            request = client_pb2.WatchJobRequest(job_id=job_id, after_version=seen)
            server = search.pick()
            with server.lasting() as connection:
                try:
                    call = connection.client.WatchJob(request, metadata=server.metadata)
                except grpc.aio.UsageError:
                    raise Unavailable("the connection to the server is closed") from None
                try:
                    async for message in call:
                        event = event_from_pb(message.event)
                        seen = event.version
                        search.answered()
                        yield event
                    return
                except asyncio.CancelledError:
                    if not server.cut_off():
                        raise
                    raise Unavailable("the connection was closed during the watch") from None
                except grpc.aio.AioRpcError as failure:
                    error = from_rpc_error(failure)
                    if not isinstance(error, Unavailable):
                        raise error from None
                    more = search.failed(server)
                    if search.lasted() > self._timeout:
                        raise error from None
                finally:
                    call.cancel()
            if not more:
                await search.pause.wait()

    # -- operators -----------------------------------------------------------------------------

    async def create_queue(self, spec: QueueSpec) -> Queue:
        request = operator_pb2.CreateQueueRequest(queue=queue_spec_to_pb(spec))
        answer = await self._servers.call(lambda at: at.operator.CreateQueue, request, Effect.ONCE)
        return queue_from_pb(answer.queue)

    async def update_queue(self, name: str, update: QueueUpdate) -> Queue:
        request = queue_update_to_pb(name, update)
        answer = await self._servers.call(
            lambda at: at.operator.UpdateQueue, request, Effect.REPEATABLE
        )
        return queue_from_pb(answer.queue)

    async def delete_queue(self, name: str, *, force: bool = False) -> int:
        request = operator_pb2.DeleteQueueRequest(name=name, force=force)
        answer = await self._servers.call(lambda at: at.operator.DeleteQueue, request, Effect.ONCE)
        return answer.dead_lettered

    async def pause_queue(self, name: str) -> None:
        request = operator_pb2.PauseQueueRequest(name=name)
        await self._servers.call(lambda at: at.operator.PauseQueue, request, Effect.REPEATABLE)

    async def resume_queue(self, name: str) -> None:
        request = operator_pb2.ResumeQueueRequest(name=name)
        await self._servers.call(lambda at: at.operator.ResumeQueue, request, Effect.REPEATABLE)

    async def queue_stats(self, name: str) -> QueueStats:
        request = operator_pb2.GetQueueStatsRequest(name=name)
        answer = await self._servers.call(lambda at: at.operator.GetQueueStats, request)
        return stats_from_pb(answer.stats)

    async def list_queues(self) -> list[QueueStats]:
        request = operator_pb2.ListQueuesRequest()
        answer = await self._servers.call(lambda at: at.operator.ListQueues, request)
        return [stats_from_pb(stats) for stats in answer.queues]

    async def list_workers(self) -> list[Worker]:
        request = operator_pb2.ListWorkersRequest()
        answer = await self._servers.call(lambda at: at.operator.ListWorkers, request)
        return [worker_from_pb(worker) for worker in answer.workers]

    async def drain_worker(self, worker_id: str) -> None:
        request = operator_pb2.DrainWorkerRequest(worker_id=worker_id)
        await self._servers.call(lambda at: at.operator.DrainWorker, request, Effect.REPEATABLE)

    async def undrain_worker(self, worker_id: str) -> None:
        request = operator_pb2.UndrainWorkerRequest(worker_id=worker_id)
        await self._servers.call(lambda at: at.operator.UndrainWorker, request, Effect.REPEATABLE)

    async def shutdown_worker(self, worker_id: str) -> None:
        request = operator_pb2.ShutdownWorkerRequest(worker_id=worker_id)
        await self._servers.call(lambda at: at.operator.ShutdownWorker, request, Effect.REPEATABLE)

    async def retry(self, job_id: str) -> Job:
        request = operator_pb2.RetryJobRequest(job_id=job_id)
        answer = await self._servers.call(lambda at: at.operator.RetryJob, request, Effect.ONCE)
        return job_from_pb(answer.job)

    async def retry_dead_letters(self, query: RetryQuery) -> Retried:
        request = retry_query_to_pb(query, operator_pb2.RetryDeadLettersRequest)
        effect = Effect.NONE if query.dry_run else Effect.ONCE
        answer = await self._servers.call(lambda at: at.operator.RetryDeadLetters, request, effect)
        _check_progress(answer.looked_at, answer.next_page_token)
        return retried_from_pb(answer)

    async def group_dead_letters(self, query: RetryQuery) -> DeadLetterGroups:
        request = retry_query_to_pb(query, operator_pb2.GroupDeadLettersRequest)
        answer = await self._servers.call(lambda at: at.operator.GroupDeadLetters, request)
        return groups_from_pb(answer)

    async def delete_job(self, job_id: str) -> None:
        request = operator_pb2.DeleteJobRequest(job_id=job_id)
        await self._servers.call(lambda at: at.operator.DeleteJob, request, Effect.ONCE)

    async def delete_dead_letters(self, query: RetryQuery) -> Deleted:
        request = retry_query_to_pb(query, operator_pb2.DeleteDeadLettersRequest)
        effect = Effect.NONE if query.dry_run else Effect.ONCE
        answer = await self._servers.call(lambda at: at.operator.DeleteDeadLetters, request, effect)
        _check_progress(answer.looked_at, answer.next_page_token)
        return deleted_from_pb(answer)

    async def health(self) -> Health:
        request = operator_pb2.GetHealthRequest()
        return health_from_pb(await self._servers.call(lambda at: at.operator.GetHealth, request))

    # -- schedules -----------------------------------------------------------------------------

    async def create_schedule(self, spec: ScheduleSpec) -> Schedule:
        request = schedules_pb2.CreateScheduleRequest(schedule=schedule_spec_to_pb(spec))
        answer = await self._servers.call(
            lambda at: at.schedules.CreateSchedule, request, Effect.ONCE
        )
        return schedule_from_pb(answer.schedule)

    async def get_schedule(self, name: str) -> Schedule:
        request = schedules_pb2.GetScheduleRequest(name=name)
        answer = await self._servers.call(lambda at: at.schedules.GetSchedule, request)
        return schedule_from_pb(answer.schedule)

    async def list_schedules(self, limit: int = 100, page_token: str = "") -> SchedulePage:
        if not 1 <= limit <= MAX_PAGE:  # protobuf cannot encode every larger number
            raise InvalidArgument("limit", f"must be from 1 to {MAX_PAGE}")
        request = schedules_pb2.ListSchedulesRequest(page_size=limit, page_token=page_token)
        page = await self._servers.call(lambda at: at.schedules.ListSchedules, request)
        _check_page("schedules", len(page.schedules), limit)
        _check_progress(len(page.schedules), page.next_page_token)
        return SchedulePage([schedule_from_pb(one) for one in page.schedules], page.next_page_token)

    async def pause_schedule(self, name: str) -> Schedule:
        request = schedules_pb2.PauseScheduleRequest(name=name)
        answer = await self._servers.call(
            lambda at: at.schedules.PauseSchedule, request, Effect.REPEATABLE
        )
        return schedule_from_pb(answer.schedule)

    async def resume_schedule(self, name: str) -> Schedule:
        request = schedules_pb2.ResumeScheduleRequest(name=name)
        answer = await self._servers.call(
            lambda at: at.schedules.ResumeSchedule, request, Effect.REPEATABLE
        )
        return schedule_from_pb(answer.schedule)

    async def run_schedule(self, name: str) -> str:
        request = schedules_pb2.RunScheduleRequest(name=name)
        answer = await self._servers.call(lambda at: at.schedules.RunSchedule, request, Effect.ONCE)
        return answer.job_id

    async def remove_schedule(self, name: str) -> None:
        request = schedules_pb2.RemoveScheduleRequest(name=name)
        await self._servers.call(lambda at: at.schedules.RemoveSchedule, request, Effect.ONCE)

    async def declare_schedules(self, specs: Sequence[ScheduleSpec]) -> list[JobQueueError | None]:
        request = schedules_pb2.DeclareSchedulesRequest(
            schedules=[schedule_spec_to_pb(spec) for spec in specs]
        )
        answer = await self._servers.call(
            lambda at: at.schedules.DeclareSchedules, request, Effect.REPEATABLE
        )
        return [
            error_from_pb(result.error) if result.HasField("error") else None
            for result in answer.results
        ]

    # -- workers -------------------------------------------------------------------------------

    async def connect(self, info: WorkerInfo, inbox: Inbox) -> Link:
        replaced = self._links.get(info.id)
        if replaced is not None:
            await replaced.abandon()
        link = RemoteLink(self._servers, info, inbox, self._forget)
        self._links[info.id] = link
        await link.open()
        return link

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
        request = heartbeat_to_pb(
            worker_id, incarnation, leases, begun, complete, progress, overrun
        )
        return self._servers.heartbeat(request, self._servers.pick())

    async def leave(self, worker_id: str, incarnation: int, *, owner: str = "") -> None:
        request = worker_pb2.DeregisterRequest(worker_id=worker_id, incarnation=incarnation)
        await self._servers.call(lambda at: at.worker.Deregister, request)

    async def missing_queues(self, names: Sequence[str]) -> list[str]:
        request = worker_pb2.MissingQueuesRequest(names=names)
        answer = await self._servers.call(lambda at: at.worker.MissingQueues, request)
        return list(answer.missing)

    def _forget(self, link: RemoteLink) -> None:
        if self._links.get(link.info.id) is link:
            del self._links[link.info.id]


def _check_page(what: str, listed: int, limit: int) -> None:
    if listed > limit:
        raise Internal(f"the server listed {listed} {what}, not {limit} at most; it is faulty")


def _check_progress(items: int, next_page_token: str) -> None:
    """Raise Internal for an empty page that names a next page.

    Callers read until there is no next page. Such a server would keep them busy for ever.
    """
    if next_page_token and items < 1:
        raise Internal("the server sent an empty page that names a next page; it is faulty")
