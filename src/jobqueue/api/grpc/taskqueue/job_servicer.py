"""JobInternalService: decode, call, encode."""

from __future__ import annotations

from jobqueue.api.grpc.calls import Calls
from jobqueue.api.grpc.taskqueue import codec
from jobqueue.api.grpc.taskqueue.answering import served
from jobqueue.api.grpc.taskqueue.callers import Call, CallerRefused
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.ids import parse_job_id
from jobqueue.core.waiting import in_turns
from jobqueue.pb import taskqueue_internal_pb2 as pb
from jobqueue.pb import taskqueue_internal_pb2_grpc as pb_grpc
from jobqueue.services.protocols import Jobs


class JobServicer(pb_grpc.JobInternalServiceServicer):
    """What the owner of the status is asked."""

    DESCRIPTOR = pb.DESCRIPTOR.services_by_name["JobInternalService"]

    def __init__(self, jobs: Jobs, calls: Calls) -> None:
        self.calls = calls
        self._jobs = jobs

    @served
    async def CreateJob(self, request: pb.CreateJobRequest, call: Call) -> pb.CreateJobResponse:
        """A new job, or the one that has the key."""
        spec = codec.asked_spec(request)
        created = await self._jobs.create(
            spec, request.client_request_id, request_id=call.request_id
        )
        return codec.created_to_pb(created)

    @served
    async def DeleteJobIfStatus(
        self, request: pb.DeleteJobIfStatusRequest, call: Call
    ) -> pb.DeleteJobIfStatusResponse:
        """Remove a job, if it has that status."""
        answer = await self._jobs.delete_if(
            parse_job_id(request.job_id),
            codec.asked_status(request.expected_status, "expected_status"),
            request_id=call.request_id,
        )
        return pb.DeleteJobIfStatusResponse(
            deleted=answer.applied, current_status=codec.current_to_pb(answer.current)
        )

    @served
    async def GetJobRecord(
        self, request: pb.GetJobRecordRequest, call: Call
    ) -> pb.GetJobRecordResponse:
        """All about a job."""
        return codec.record_to_pb(await self._jobs.get(parse_job_id(request.job_id)))

    @served
    async def ListJobRecords(
        self, request: pb.ListJobRecordsRequest, call: Call
    ) -> pb.ListJobRecordsResponse:
        """One page."""
        page = await self._jobs.list(codec.asked_listing(request))
        shown = await in_turns(codec.summary_to_pb, page.jobs)
        return pb.ListJobRecordsResponse(jobs=shown, page=codec.page_end(page))

    @served
    async def TransitionJobStatus(
        self, request: pb.TransitionJobStatusRequest, call: Call
    ) -> pb.TransitionJobStatusResponse:
        """Compare and set."""
        actor = call.actor()
        if request.actor != actor:
            raise CallerRefused(f"actor is {request.actor[:80]!r}, the caller is the {actor}")
        answer = await self._jobs.transition(
            parse_job_id(request.job_id),
            codec.asked_status(request.expected_from_status, "expected_from_status"),
            codec.asked_status(request.to_status, "to_status"),
            actor=actor,
            reason=request.reason,
            request_id=call.request_id,
        )
        return pb.TransitionJobStatusResponse(
            applied=answer.applied, current_status=codec.current_to_pb(answer.current)
        )

    @served
    async def SetCancelRequested(
        self, request: pb.SetCancelRequestedRequest, call: Call
    ) -> pb.SetCancelRequestedResponse:
        """Set the flag."""
        if not request.cancel_requested:
            raise InvalidArgument("cancel_requested", "must be true: a request is not taken back")
        answer = await self._jobs.request_cancel(
            parse_job_id(request.job_id), request.reason, request_id=call.request_id
        )
        return pb.SetCancelRequestedResponse(
            applied=answer.applied, current_status=codec.current_to_pb(answer.current)
        )
