"""A backend on the other side of a gRPC connection."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TypeVar

import grpc.aio

from jobqueue.access.tls import Credentials
from jobqueue.api.grpc.channel import Dialer
from jobqueue.api.grpc.client_servicer import MAX_WAIT
from jobqueue.api.grpc.codec.jobs import event_from_pb, job_from_pb
from jobqueue.api.grpc.codec.operations import (
    health_from_pb,
    queue_from_pb,
    queue_spec_to_pb,
    queue_update_to_pb,
    retried_from_pb,
    retry_query_to_pb,
    stats_from_pb,
    worker_from_pb,
)
from jobqueue.api.grpc.codec.values import REASON_TO_PB, STATE_TO_PB, state_from
from jobqueue.api.grpc.codec.work import pulse_from_pb
from jobqueue.api.grpc.errors import from_rpc_error
from jobqueue.api.grpc.remote.link import RemoteLink, beat_request
from jobqueue.api.grpc.remote.servers import CountedAs, Servers
from jobqueue.api.grpc.remote.submitter import Submitter
from jobqueue.api.grpc.remote.wiring import Wiring
from jobqueue.core.api import Inbox, Link
from jobqueue.core.errors import DeadlineExceeded, InvalidArgument, Unavailable
from jobqueue.core.job import (
    MAX_PAGE,
    Cancellation,
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
from jobqueue.pb.jq.v1 import client_pb2, operator_pb2, worker_pb2
from jobqueue.wire import stamp

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 1.0
Request = TypeVar("Request")
Response = TypeVar("Response")


class GrpcBackend:
    """Implements ``core.api.Backend``. Connects at the first call; every call has a deadline."""

    def __init__(
        self, target: str, *, timeout: float = 10.0, credentials: Credentials | None = None
    ) -> None:
        """``target`` is ``host:port``, or several with commas between; ``timeout`` is what one
        call may take at one server."""
        self._dialers = [Dialer(one, credentials) for one in target.split(",")]
        self._timeout = timeout
        self._open: tuple[Servers, Submitter] | None = None
        self._links: dict[str, RemoteLink] = {}

    async def start(self) -> None:
        """Nothing to do yet: the first call connects."""

    async def stop(self) -> None:
        """End links without deregistering, fail what waits, close the channels."""
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

    async def _call(
        self,
        method: Callable[[Wiring], grpc.aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        *,
        changes: bool = False,
        again: bool = False,
        timeout: float | None = None,
    ) -> Response:
        """See ``Servers.call``."""
        return await self._servers.call(
            method, request, changes=changes, again=again, timeout=timeout
        )

    # -- clients -------------------------------------------------------------------------------

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        """Submit jobs, on a stream shared with other callers."""
        return await self._opened()[1].submit(specs)

    async def get(self, job_id: str) -> Job:
        """Read a job."""
        request = client_pb2.GetJobRequest(job_id=job_id)
        return job_from_pb((await self._call(lambda at: at.client.GetJob, request)).job)

    async def wait(self, job_id: str, timeout: float | None) -> Job:
        """Wait in bounded calls, over restarts of the server."""
        servers = self._servers
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        tried: list[Wiring] = []
        lost_since: float | None = None
        delay = _FIRST_DELAY
        while True:
            left = MAX_WAIT if until is None else min(MAX_WAIT, max(0.0, until - loop.time()))
            request = client_pb2.WaitJobRequest(job_id=job_id, wait_seconds=left)
            wiring = servers.pick(tried)
            try:
                response = await wiring.call(
                    wiring.client.WaitJob, request, timeout=left + self._timeout
                )
            except (Unavailable, DeadlineExceeded):
                now = loop.time()
                lost_since = now if lost_since is None else lost_since
                servers.leave(wiring)
                tried.append(wiring)
                if len(tried) < len(servers) and self._open is not None:
                    continue  # another server may answer at once
                tried.clear()
                if self._open is None or now - lost_since > self._timeout:
                    raise
                if until is not None and now + delay > until:
                    raise
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(delay * 2, _LONGEST_DELAY)
                continue
            lost_since, delay = None, _FIRST_DELAY
            tried.clear()
            job = job_from_pb(response.job)
            if job.state in TERMINAL or (until is not None and loop.time() >= until):
                return job

    async def cancel(self, job_id: str) -> Cancellation:
        """Cancel a job; may be repeated."""
        request = client_pb2.CancelJobRequest(job_id=job_id)
        answer = await self._call(lambda at: at.client.CancelJob, request, changes=True, again=True)
        return Cancellation(state_from(answer.state), answer.requested, answer.already_terminal)

    async def list_jobs(self, query: JobQuery) -> Page:
        """One page; large jobs make it shorter than asked for."""
        if not 1 <= query.limit <= MAX_PAGE:  # also more than the wire can carry
            raise InvalidArgument("limit", f"must be 1 to {MAX_PAGE}")
        request = client_pb2.ListJobsRequest(
            queue=query.queue,
            states=[STATE_TO_PB[state] for state in query.states],
            type=query.type,
            page_size=query.limit,
            page_token=query.page_token,
            reasons=[REASON_TO_PB[reason] for reason in query.reasons],
            error=query.error,
            since=stamp(query.since, "since"),
            until=stamp(query.until, "until"),
        )
        page = await self._call(lambda at: at.client.ListJobs, request)
        return Page([job_from_pb(job) for job in page.jobs], page.next_page_token)

    async def history(self, job_id: str, before_version: int | None = None) -> list[Event]:
        """A job's newest transitions."""
        check_before_version(before_version)
        request = client_pb2.GetHistoryRequest(job_id=job_id, before_version=before_version)
        answer = await self._call(lambda at: at.client.GetHistory, request)
        return [event_from_pb(event) for event in answer.events]

    async def watch(self, job_id: str) -> AsyncIterator[Event]:
        """A job's transitions as they happen, over restarts of the server."""
        servers = self._servers
        loop = asyncio.get_running_loop()
        seen = 0
        tried: list[Wiring] = []
        lost_since: float | None = None
        delay = _FIRST_DELAY
        while True:
            request = client_pb2.WatchJobRequest(job_id=job_id, after_version=seen)
            wiring = servers.pick(tried)
            try:
                call = wiring.client.WatchJob(request, metadata=wiring.metadata)
            except grpc.aio.UsageError:
                raise Unavailable("the connection is closed") from None
            try:
                async for message in call:
                    event = event_from_pb(message.event)
                    seen, lost_since, delay = event.version, None, _FIRST_DELAY
                    tried.clear()
                    yield event
                return
            except grpc.aio.AioRpcError as failure:
                error = from_rpc_error(failure)
                now = loop.time()
                lost_since = now if lost_since is None else lost_since
                if not isinstance(error, Unavailable) or now - lost_since > self._timeout:
                    raise error from None
                servers.leave(wiring)
                tried.append(wiring)
            finally:
                call.cancel()
            if len(tried) < len(servers):
                continue
            tried.clear()
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, _LONGEST_DELAY)

    # -- operators -----------------------------------------------------------------------------

    async def create_queue(self, spec: QueueSpec) -> Queue:
        """Create a queue."""
        request = operator_pb2.CreateQueueRequest(queue=queue_spec_to_pb(spec))
        answer = await self._call(lambda at: at.operator.CreateQueue, request, changes=True)
        return queue_from_pb(answer.queue)

    async def update_queue(self, name: str, update: QueueUpdate) -> Queue:
        """Change settings of a queue."""
        request = queue_update_to_pb(name, update)
        answer = await self._call(
            lambda at: at.operator.UpdateQueue, request, changes=True, again=True
        )
        return queue_from_pb(answer.queue)

    async def delete_queue(self, name: str, *, force: bool = False) -> int:
        """Delete a queue; returns how many jobs were dead-lettered."""
        request = operator_pb2.DeleteQueueRequest(name=name, force=force)
        answer = await self._call(lambda at: at.operator.DeleteQueue, request, changes=True)
        return answer.dead_lettered

    async def pause_queue(self, name: str) -> None:
        """Hand out no more of its jobs."""
        request = operator_pb2.PauseQueueRequest(name=name)
        await self._call(lambda at: at.operator.PauseQueue, request, changes=True, again=True)

    async def resume_queue(self, name: str) -> None:
        """Hand out its jobs again."""
        request = operator_pb2.ResumeQueueRequest(name=name)
        await self._call(lambda at: at.operator.ResumeQueue, request, changes=True, again=True)

    async def queue_stats(self, name: str) -> QueueStats:
        """Figures of one queue."""
        request = operator_pb2.GetQueueStatsRequest(name=name)
        return stats_from_pb(
            (await self._call(lambda at: at.operator.GetQueueStats, request)).stats
        )

    async def list_queues(self) -> list[QueueStats]:
        """Figures of all queues."""
        request = operator_pb2.ListQueuesRequest()
        answer = await self._call(lambda at: at.operator.ListQueues, request)
        return [stats_from_pb(stats) for stats in answer.queues]

    async def list_workers(self) -> list[Worker]:
        """Every worker known."""
        request = operator_pb2.ListWorkersRequest()
        answer = await self._call(lambda at: at.operator.ListWorkers, request)
        return [worker_from_pb(worker) for worker in answer.workers]

    async def drain_worker(self, worker_id: str) -> None:
        """The worker gets no more jobs."""
        request = operator_pb2.DrainWorkerRequest(worker_id=worker_id)
        await self._call(lambda at: at.operator.DrainWorker, request, changes=True, again=True)

    async def undrain_worker(self, worker_id: str) -> None:
        """The worker takes jobs again."""
        request = operator_pb2.UndrainWorkerRequest(worker_id=worker_id)
        await self._call(lambda at: at.operator.UndrainWorker, request, changes=True, again=True)

    async def shutdown_worker(self, worker_id: str) -> None:
        """The worker drains, then exits."""
        request = operator_pb2.ShutdownWorkerRequest(worker_id=worker_id)
        await self._call(lambda at: at.operator.ShutdownWorker, request, changes=True, again=True)

    async def retry(self, job_id: str) -> Job:
        """Send a job back to PENDING."""
        request = operator_pb2.RetryJobRequest(job_id=job_id)
        return job_from_pb(
            (await self._call(lambda at: at.operator.RetryJob, request, changes=True)).job
        )

    async def retry_dead_letters(self, query: RetryQuery) -> Retried:
        """Send the next dead letters that match back to PENDING."""
        request = retry_query_to_pb(query)
        changes = not query.dry_run
        answer = await self._call(lambda at: at.operator.RetryDeadLetters, request, changes=changes)
        return retried_from_pb(answer)

    async def delete_job(self, job_id: str) -> None:
        """Remove a terminal job."""
        request = operator_pb2.DeleteJobRequest(job_id=job_id)
        await self._call(lambda at: at.operator.DeleteJob, request, changes=True)

    async def health(self) -> Health:
        """Whether the system can do its work."""
        request = operator_pb2.GetHealthRequest()
        return health_from_pb(await self._call(lambda at: at.operator.GetHealth, request))

    # -- workers -------------------------------------------------------------------------------

    async def connect(self, info: WorkerInfo, inbox: Inbox) -> Link:
        """Register a worker; a second call for the same worker replaces its link."""
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
        """Heartbeat of a worker that need not be connected through here."""
        servers = self._servers
        request = beat_request(worker_id, incarnation, leases, begun, complete, progress, overrun)
        return pulse_from_pb(servers.heartbeat(request, servers.pick()).pulse)

    async def leave(self, worker_id: str, incarnation: int, *, owner: str = "") -> None:
        """Deregister such a worker."""
        request = worker_pb2.DeregisterRequest(worker_id=worker_id, incarnation=incarnation)
        await self._call(lambda at: at.worker.Deregister, request, again=True)

    async def missing_queues(self, names: Sequence[str]) -> list[str]:
        """Those of these queues that do not exist."""
        request = worker_pb2.MissingQueuesRequest(names=names)
        answer = await self._call(lambda at: at.worker.MissingQueues, request)
        return list(answer.missing)

    def _forget(self, link: RemoteLink) -> None:
        if self._links.get(link.info.id) is link:
            del self._links[link.info.id]
