"""OperatorService: decode, call, encode."""

from __future__ import annotations

from typing import Any

from jobqueue.api.grpc.calls import Calls, handled
from jobqueue.api.grpc.codec.jobs import job_to_pb
from jobqueue.api.grpc.codec.operations import (
    health_to_pb,
    queue_spec_from_pb,
    queue_to_pb,
    queue_update_from_pb,
    retried_to_pb,
    retry_query_from_pb,
    stats_to_pb,
    worker_to_pb,
)
from jobqueue.core.api import OperatorApi
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.ids import parse_job_id
from jobqueue.core.waiting import JOB, WORKER, in_turns
from jobqueue.pb.jq.v1 import operator_pb2 as pb
from jobqueue.pb.jq.v1 import operator_pb2_grpc as rpc


class OperatorServicer(rpc.OperatorServiceServicer):
    """What operators call."""

    def __init__(self, backend: OperatorApi, calls: Calls) -> None:
        self._backend = backend
        self.calls = calls

    @handled
    async def CreateQueue(
        self, request: pb.CreateQueueRequest, context: Any
    ) -> pb.CreateQueueResponse:
        """Create a queue."""
        if not request.HasField("queue"):
            raise InvalidArgument("queue", "is missing")
        queue = await self._backend.create_queue(queue_spec_from_pb(request.queue))
        return pb.CreateQueueResponse(queue=queue_to_pb(queue))

    @handled
    async def UpdateQueue(
        self, request: pb.UpdateQueueRequest, context: Any
    ) -> pb.UpdateQueueResponse:
        """Change settings of a queue."""
        if not request.HasField("queue"):
            raise InvalidArgument("queue", "is missing")
        queue = await self._backend.update_queue(request.queue.name, queue_update_from_pb(request))
        return pb.UpdateQueueResponse(queue=queue_to_pb(queue))

    @handled
    async def DeleteQueue(
        self, request: pb.DeleteQueueRequest, context: Any
    ) -> pb.DeleteQueueResponse:
        """Delete a queue."""
        dropped = await self._backend.delete_queue(request.name, force=request.force)
        return pb.DeleteQueueResponse(dead_lettered=dropped)

    @handled
    async def PauseQueue(
        self, request: pb.PauseQueueRequest, context: Any
    ) -> pb.PauseQueueResponse:
        """Hand out no more of its jobs."""
        await self._backend.pause_queue(request.name)
        return pb.PauseQueueResponse()

    @handled
    async def ResumeQueue(
        self, request: pb.ResumeQueueRequest, context: Any
    ) -> pb.ResumeQueueResponse:
        """Hand out its jobs again."""
        await self._backend.resume_queue(request.name)
        return pb.ResumeQueueResponse()

    @handled
    async def GetQueueStats(
        self, request: pb.GetQueueStatsRequest, context: Any
    ) -> pb.GetQueueStatsResponse:
        """Figures of one queue."""
        stats = await self._backend.queue_stats(request.name)
        return pb.GetQueueStatsResponse(stats=stats_to_pb(stats))

    @handled
    async def ListQueues(
        self, request: pb.ListQueuesRequest, context: Any
    ) -> pb.ListQueuesResponse:
        """Figures of all queues."""
        queues = await self._backend.list_queues()
        return pb.ListQueuesResponse(queues=await in_turns(stats_to_pb, queues, JOB))

    @handled
    async def ListWorkers(
        self, request: pb.ListWorkersRequest, context: Any
    ) -> pb.ListWorkersResponse:
        """Every worker known."""
        workers = await self._backend.list_workers()
        return pb.ListWorkersResponse(workers=await in_turns(worker_to_pb, workers, WORKER))

    @handled
    async def DrainWorker(
        self, request: pb.DrainWorkerRequest, context: Any
    ) -> pb.DrainWorkerResponse:
        """The worker gets no more jobs."""
        await self._backend.drain_worker(request.worker_id)
        return pb.DrainWorkerResponse()

    @handled
    async def UndrainWorker(
        self, request: pb.UndrainWorkerRequest, context: Any
    ) -> pb.UndrainWorkerResponse:
        """The worker takes jobs again."""
        await self._backend.undrain_worker(request.worker_id)
        return pb.UndrainWorkerResponse()

    @handled
    async def ShutdownWorker(
        self, request: pb.ShutdownWorkerRequest, context: Any
    ) -> pb.ShutdownWorkerResponse:
        """The worker drains, then exits."""
        await self._backend.shutdown_worker(request.worker_id)
        return pb.ShutdownWorkerResponse()

    @handled
    async def RetryJob(self, request: pb.RetryJobRequest, context: Any) -> pb.RetryJobResponse:
        """Send a job back to PENDING."""
        job = await self._backend.retry(parse_job_id(request.job_id))
        return pb.RetryJobResponse(job=job_to_pb(job))

    @handled
    async def RetryDeadLetters(
        self, request: pb.RetryDeadLettersRequest, context: Any
    ) -> pb.RetryDeadLettersResponse:
        """Send the next dead letters that match back to PENDING."""
        retried = await self._backend.retry_dead_letters(retry_query_from_pb(request))
        return retried_to_pb(retried)

    @handled
    async def DeleteJob(self, request: pb.DeleteJobRequest, context: Any) -> pb.DeleteJobResponse:
        """Remove a terminal job."""
        await self._backend.delete_job(parse_job_id(request.job_id))
        return pb.DeleteJobResponse()

    @handled
    async def GetHealth(self, request: pb.GetHealthRequest, context: Any) -> pb.GetHealthResponse:
        """Whether the system can do its work."""
        return health_to_pb(await self._backend.health())
