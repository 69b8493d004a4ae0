"""TaskQueuePublicService: decode, call, encode."""

from __future__ import annotations

from jobqueue.api.grpc.calls import Calls
from jobqueue.api.grpc.taskqueue import codec
from jobqueue.api.grpc.taskqueue.answering import served
from jobqueue.api.grpc.taskqueue.callers import Call
from jobqueue.core.ids import parse_job_id
from jobqueue.core.waiting import in_turns
from jobqueue.pb import taskqueue_public_pb2 as pb
from jobqueue.pb import taskqueue_public_pb2_grpc as pb_grpc
from jobqueue.services.protocols import TaskQueue


class PublicServicer(pb_grpc.TaskQueuePublicServiceServicer):
    """What clients call."""

    DESCRIPTOR = pb.DESCRIPTOR.services_by_name["TaskQueuePublicService"]

    def __init__(self, backend: TaskQueue, calls: Calls) -> None:
        self.calls = calls
        self._backend = backend

    @served
    async def SubmitJob(self, request: pb.SubmitJobRequest, call: Call) -> pb.SubmitJobResponse:
        """Accept a job."""
        spec = codec.asked_spec(request)
        return codec.submitted_to_pb(await self._backend.submit(spec, request.client_request_id))

    @served
    async def GetJobStatus(
        self, request: pb.GetJobStatusRequest, call: Call
    ) -> pb.GetJobStatusResponse:
        """The canonical status."""
        return codec.record_to_status(await self._backend.status(parse_job_id(request.job_id)))

    @served
    async def GetJobResult(
        self, request: pb.GetJobResultRequest, call: Call
    ) -> pb.GetJobResultResponse:
        """The output, once there is one."""
        job_id = parse_job_id(request.job_id)
        return codec.envelope_to_result(job_id, await self._backend.result(job_id))

    @served
    async def CancelJob(self, request: pb.CancelJobRequest, call: Call) -> pb.CancelJobResponse:
        """Cancel, or ask for it."""
        job_id = parse_job_id(request.job_id)
        return codec.canceled_to_pb(await self._backend.cancel(job_id, request.reason))

    @served
    async def ListJobs(self, request: pb.ListJobsRequest, call: Call) -> pb.ListJobsResponse:
        """One page."""
        page = await self._backend.list(codec.asked_listing(request))
        shown = await in_turns(codec.summary_to_pb, page.jobs)
        return pb.ListJobsResponse(jobs=shown, page=codec.page_end(page))
