"""Implement OperatorService, the gRPC service for operators."""

from __future__ import annotations

from jobqueue.api.grpc.calls import Calls, unary
from jobqueue.api.grpc.codec import (
    deleted_to_pb,
    groups_to_pb,
    health_to_pb,
    job_to_pb,
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
    """Implements jq.v1.OperatorService; the proto file documents its methods."""

    def __init__(self, backend: OperatorApi, calls: Calls) -> None:
        self._backend = backend
        self.calls = calls

    @unary
    async def CreateQueue(self, request: pb.CreateQueueRequest) -> pb.CreateQueueResponse:
        if not request.HasField("queue"):
            raise InvalidArgument("queue", "is missing")
        queue = await self._backend.create_queue(queue_spec_from_pb(request.queue))
        return pb.CreateQueueResponse(queue=queue_to_pb(queue))

    @unary
    async def UpdateQueue(self, request: pb.UpdateQueueRequest) -> pb.UpdateQueueResponse:
        if not request.HasField("queue"):
            raise InvalidArgument("queue", "is missing")
        queue = await self._backend.update_queue(request.queue.name, queue_update_from_pb(request))
        return pb.UpdateQueueResponse(queue=queue_to_pb(queue))

    @unary
    async def DeleteQueue(self, request: pb.DeleteQueueRequest) -> pb.DeleteQueueResponse:
        dropped = await self._backend.delete_queue(request.name, force=request.force)
        return pb.DeleteQueueResponse(dead_lettered=dropped)

    @unary
    async def PauseQueue(self, request: pb.PauseQueueRequest) -> pb.PauseQueueResponse:
        await self._backend.pause_queue(request.name)
        return pb.PauseQueueResponse()

    @unary
    async def ResumeQueue(self, request: pb.ResumeQueueRequest) -> pb.ResumeQueueResponse:
        await self._backend.resume_queue(request.name)
        return pb.ResumeQueueResponse()

    @unary
    async def GetQueueStats(self, request: pb.GetQueueStatsRequest) -> pb.GetQueueStatsResponse:
        stats = await self._backend.queue_stats(request.name)
        return pb.GetQueueStatsResponse(stats=stats_to_pb(stats))

    @unary
    async def ListQueues(self, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
        queues = await self._backend.list_queues()
        return pb.ListQueuesResponse(queues=await in_turns(stats_to_pb, queues, JOB))

    @unary
    async def ListWorkers(self, request: pb.ListWorkersRequest) -> pb.ListWorkersResponse:
        workers = await self._backend.list_workers()
        return pb.ListWorkersResponse(workers=await in_turns(worker_to_pb, workers, WORKER))

    @unary
    async def DrainWorker(self, request: pb.DrainWorkerRequest) -> pb.DrainWorkerResponse:
        await self._backend.drain_worker(request.worker_id)
        return pb.DrainWorkerResponse()

    @unary
    async def UndrainWorker(self, request: pb.UndrainWorkerRequest) -> pb.UndrainWorkerResponse:
        await self._backend.undrain_worker(request.worker_id)
        return pb.UndrainWorkerResponse()

    @unary
    async def ShutdownWorker(self, request: pb.ShutdownWorkerRequest) -> pb.ShutdownWorkerResponse:
        await self._backend.shutdown_worker(request.worker_id)
        return pb.ShutdownWorkerResponse()

    @unary
    async def RetryJob(self, request: pb.RetryJobRequest) -> pb.RetryJobResponse:
        job = await self._backend.retry(parse_job_id(request.job_id))
        return pb.RetryJobResponse(job=job_to_pb(job))

    @unary
    async def RetryDeadLetters(
        self, request: pb.RetryDeadLettersRequest
    ) -> pb.RetryDeadLettersResponse:
        retried = await self._backend.retry_dead_letters(retry_query_from_pb(request))
        return retried_to_pb(retried)

    @unary
    async def GroupDeadLetters(
        self, request: pb.GroupDeadLettersRequest
    ) -> pb.GroupDeadLettersResponse:
        return groups_to_pb(await self._backend.group_dead_letters(retry_query_from_pb(request)))

    @unary
    async def DeleteDeadLetters(
        self, request: pb.DeleteDeadLettersRequest
    ) -> pb.DeleteDeadLettersResponse:
        return deleted_to_pb(await self._backend.delete_dead_letters(retry_query_from_pb(request)))

    @unary
    async def DeleteJob(self, request: pb.DeleteJobRequest) -> pb.DeleteJobResponse:
        await self._backend.delete_job(parse_job_id(request.job_id))
        return pb.DeleteJobResponse()

    @unary
    async def GetHealth(self, request: pb.GetHealthRequest) -> pb.GetHealthResponse:
        return health_to_pb(await self._backend.health())
