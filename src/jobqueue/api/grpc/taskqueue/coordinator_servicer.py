"""CoordinatorInternalService: decode, call, encode."""

from __future__ import annotations

from jobqueue.api.grpc.calls import Calls
from jobqueue.api.grpc.taskqueue import codec
from jobqueue.api.grpc.taskqueue.answering import served
from jobqueue.api.grpc.taskqueue.callers import Call
from jobqueue.core.ids import parse_job_id
from jobqueue.pb import taskqueue_internal_pb2 as pb
from jobqueue.pb import taskqueue_internal_pb2_grpc as pb_grpc
from jobqueue.services.protocols import Coordination


class CoordinatorServicer(pb_grpc.CoordinatorInternalServiceServicer):
    """What workers call."""

    DESCRIPTOR = pb.DESCRIPTOR.services_by_name["CoordinatorInternalService"]

    def __init__(self, coordination: Coordination, calls: Calls) -> None:
        self.calls = calls
        self._coordination = coordination

    @served
    async def WorkerHeartbeat(
        self, request: pb.WorkerHeartbeatRequest, call: Call
    ) -> pb.WorkerHeartbeatResponse:
        """The worker lives."""
        next_ms = await self._coordination.heartbeat(
            request.worker_id,
            request.heartbeat_at_ms,
            request.capacity_hint,
            incarnation=call.incarnation,
            running=[parse_job_id(job, "running_job_ids") for job in request.running_job_ids],
        )
        return pb.WorkerHeartbeatResponse(accepted=True, next_heartbeat_in_ms=next_ms)

    @served
    async def FetchWork(self, request: pb.FetchWorkRequest, call: Call) -> pb.FetchWorkResponse:
        """A job to execute, or when to ask again."""
        work = await self._coordination.fetch(request.worker_id, request_id=call.request_id)
        return codec.work_to_pb(work)

    @served
    async def ReportWorkOutcome(
        self, request: pb.ReportWorkOutcomeRequest, call: Call
    ) -> pb.ReportWorkOutcomeResponse:
        """How a job ended."""
        accepted = await self._coordination.report(
            codec.asked_report(request), request_id=call.request_id
        )
        return pb.ReportWorkOutcomeResponse(accepted=accepted)
