"""QueueInternalService: decode, call, encode."""

from __future__ import annotations

from jobqueue.api.grpc.calls import Calls
from jobqueue.api.grpc.taskqueue.answering import served
from jobqueue.api.grpc.taskqueue.callers import LOOK, RESCUE, Call
from jobqueue.core.ids import parse_job_id
from jobqueue.pb import taskqueue_internal_pb2 as pb
from jobqueue.pb import taskqueue_internal_pb2_grpc as pb_grpc
from jobqueue.services.protocols import Queue
from jobqueue.services.requests import check_worker_id


class QueueServicer(pb_grpc.QueueInternalServiceServicer):
    """What the owner of the order is asked."""

    DESCRIPTOR = pb.DESCRIPTOR.services_by_name["QueueInternalService"]

    def __init__(self, queue: Queue, calls: Calls) -> None:
        self.calls = calls
        self._queue = queue

    @served
    async def EnqueueJob(self, request: pb.EnqueueJobRequest, call: Call) -> pb.EnqueueJobResponse:
        """At the end; or a look."""
        job_id = parse_job_id(request.job_id)
        if call.purpose == LOOK:
            return pb.EnqueueJobResponse(accepted=await self._queue.contains(job_id))
        accepted = await self._queue.enqueue(
            job_id,
            request.enqueued_at_ms,
            rescue=call.purpose == RESCUE,
            request_id=call.request_id,
        )
        return pb.EnqueueJobResponse(accepted=accepted)

    @served
    async def DequeueJob(self, request: pb.DequeueJobRequest, call: Call) -> pb.DequeueJobResponse:
        """Take the first one out."""
        check_worker_id(request.worker_id)
        job_id = await self._queue.dequeue(request.worker_id, request_id=call.request_id)
        return pb.DequeueJobResponse(found=job_id is not None, job_id=job_id or "")

    @served
    async def RemoveJobIfPresent(
        self, request: pb.RemoveJobIfPresentRequest, call: Call
    ) -> pb.RemoveJobIfPresentResponse:
        """Take this one out."""
        removed = await self._queue.remove(parse_job_id(request.job_id), request_id=call.request_id)
        return pb.RemoveJobIfPresentResponse(removed=removed)
