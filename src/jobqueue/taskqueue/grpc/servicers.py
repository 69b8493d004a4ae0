"""Serve the public API and the four internal APIs over gRPC: decode, call, encode."""

from __future__ import annotations

import grpc.aio

from jobqueue.api.grpc.calls import Calls
from jobqueue.api.grpc.server import AddService
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.ids import parse_job_id
from jobqueue.core.waiting import in_turns
from jobqueue.pb import taskqueue_internal_pb2 as internal
from jobqueue.pb import taskqueue_internal_pb2_grpc as internal_grpc
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.pb import taskqueue_public_pb2_grpc as public_grpc
from jobqueue.taskqueue.components.protocols import (
    Coordination,
    JobOwner,
    QueueOwner,
    ResultOwner,
    TaskQueue,
)
from jobqueue.taskqueue.components.requests import check_worker_id
from jobqueue.taskqueue.grpc import codec
from jobqueue.taskqueue.grpc.answering import Servicer, add_to_server, served
from jobqueue.taskqueue.grpc.callers import LOOK, RESCUE, Call, CallerRefused

SERVICE = public.DESCRIPTOR.services_by_name["TaskQueuePublicService"]


class PublicServicer(Servicer[TaskQueue], public_grpc.TaskQueuePublicServiceServicer):
    """Serves the public API to clients."""

    DESCRIPTOR = SERVICE

    @served
    async def SubmitJob(
        self, request: public.SubmitJobRequest, call: Call
    ) -> public.SubmitJobResponse:
        spec = codec.asked_spec(request)
        submitted = await self._part.submit(spec, request.client_request_id)
        return public.SubmitJobResponse(
            job_id=submitted.job_id,
            initial_status=public.QUEUED,  # as it was when the job was accepted
            accepted_at_ms=submitted.accepted_at_ms,
        )

    @served
    async def GetJobStatus(
        self, request: public.GetJobStatusRequest, call: Call
    ) -> public.GetJobStatusResponse:
        return codec.record_to_status(await self._part.status(parse_job_id(request.job_id)))

    @served
    async def GetJobResult(
        self, request: public.GetJobResultRequest, call: Call
    ) -> public.GetJobResultResponse:
        job_id = parse_job_id(request.job_id)
        envelope = await self._part.result(job_id)
        if envelope is None:
            return public.GetJobResultResponse(job_id=job_id)
        return public.GetJobResultResponse(result_ready=True, **codec.envelope_fields(envelope))

    @served
    async def CancelJob(
        self, request: public.CancelJobRequest, call: Call
    ) -> public.CancelJobResponse:
        canceled = await self._part.cancel(parse_job_id(request.job_id), request.reason)
        return public.CancelJobResponse(
            job_id=canceled.job_id,
            accepted=canceled.accepted,
            current_status=codec.STATUS_TO_PB[canceled.current],
            already_terminal=canceled.already_terminal,
        )

    @served
    async def ListJobs(
        self, request: public.ListJobsRequest, call: Call
    ) -> public.ListJobsResponse:
        page = await self._part.list(codec.asked_listing(request))
        shown = await in_turns(codec.summary_to_pb, page.jobs)
        return public.ListJobsResponse(jobs=shown, page=codec.page_end(page))


def taskqueue_service(backend: TaskQueue) -> dict[str, AddService]:
    """Return the service taskqueue.v1 in the form that a ``GrpcFace`` adds to its services."""

    def add(server: grpc.aio.Server, calls: Calls) -> None:
        add_to_server(PublicServicer(backend, calls), server)

    return {SERVICE.full_name: add}


class JobServicer(Servicer[JobOwner], internal_grpc.JobInternalServiceServicer):
    """Serves the calls of a ``JobOwner`` to other services."""

    DESCRIPTOR = internal.DESCRIPTOR.services_by_name["JobInternalService"]

    @served
    async def CreateJob(
        self, request: internal.CreateJobRequest, call: Call
    ) -> internal.CreateJobResponse:
        spec, key = codec.asked_spec(request), request.client_request_id
        created = await self._part.create(spec, key, request_id=call.request_id)
        return internal.CreateJobResponse(
            job_id=created.job_id,
            status=codec.STATUS_TO_PB[created.status],
            created=created.created,
        )

    @served
    async def DeleteJobIfStatus(
        self, request: internal.DeleteJobIfStatusRequest, call: Call
    ) -> internal.DeleteJobIfStatusResponse:
        answer = await self._part.delete_if(
            parse_job_id(request.job_id),
            codec.asked_status(request.expected_status, "expected_status"),
            request_id=call.request_id,
        )
        return internal.DeleteJobIfStatusResponse(
            deleted=answer.applied, current_status=codec.current_to_pb(answer.current)
        )

    @served
    async def GetJobRecord(
        self, request: internal.GetJobRecordRequest, call: Call
    ) -> internal.GetJobRecordResponse:
        return codec.record_to_pb(await self._part.get(parse_job_id(request.job_id)))

    @served
    async def ListJobRecords(
        self, request: internal.ListJobRecordsRequest, call: Call
    ) -> internal.ListJobRecordsResponse:
        page = await self._part.list(codec.asked_listing(request))
        shown = await in_turns(codec.summary_to_pb, page.jobs)
        return internal.ListJobRecordsResponse(jobs=shown, page=codec.page_end(page))

    @served
    async def TransitionJobStatus(
        self, request: internal.TransitionJobStatusRequest, call: Call
    ) -> internal.TransitionJobStatusResponse:
        actor = call.actor()
        if request.actor != actor:
            raise CallerRefused(f"actor: {request.actor[:80]!r}, but the caller is the {actor}")
        answer = await self._part.transition(
            parse_job_id(request.job_id),
            codec.asked_status(request.expected_from_status, "expected_from_status"),
            codec.asked_status(request.to_status, "to_status"),
            actor=actor,
            reason=request.reason,
            request_id=call.request_id,
        )
        return internal.TransitionJobStatusResponse(
            applied=answer.applied, current_status=codec.current_to_pb(answer.current)
        )

    @served
    async def SetCancelRequested(
        self, request: internal.SetCancelRequestedRequest, call: Call
    ) -> internal.SetCancelRequestedResponse:
        if not request.cancel_requested:
            raise InvalidArgument(
                "cancel_requested", "must be true: a cancel request cannot be withdrawn"
            )
        answer = await self._part.request_cancel(
            parse_job_id(request.job_id), request.reason, request_id=call.request_id
        )
        return internal.SetCancelRequestedResponse(
            applied=answer.applied, current_status=codec.current_to_pb(answer.current)
        )


class QueueServicer(Servicer[QueueOwner], internal_grpc.QueueInternalServiceServicer):
    """Serves the calls of a ``QueueOwner`` to other services."""

    DESCRIPTOR = internal.DESCRIPTOR.services_by_name["QueueInternalService"]

    @served
    async def EnqueueJob(
        self, request: internal.EnqueueJobRequest, call: Call
    ) -> internal.EnqueueJobResponse:
        job_id = parse_job_id(request.job_id)
        if call.purpose == LOOK:
            return internal.EnqueueJobResponse(accepted=await self._part.contains(job_id))
        accepted = await self._part.enqueue(
            job_id,
            request.enqueued_at_ms,
            rescue=call.purpose == RESCUE,
            request_id=call.request_id,
        )
        return internal.EnqueueJobResponse(accepted=accepted)

    @served
    async def DequeueJob(
        self, request: internal.DequeueJobRequest, call: Call
    ) -> internal.DequeueJobResponse:
        check_worker_id(request.worker_id)
        job_id = await self._part.dequeue(request.worker_id, request_id=call.request_id)
        return internal.DequeueJobResponse(found=job_id is not None, job_id=job_id or "")

    @served
    async def RemoveJobIfPresent(
        self, request: internal.RemoveJobIfPresentRequest, call: Call
    ) -> internal.RemoveJobIfPresentResponse:
        removed = await self._part.remove(parse_job_id(request.job_id), request_id=call.request_id)
        return internal.RemoveJobIfPresentResponse(removed=removed)


class ResultServicer(Servicer[ResultOwner], internal_grpc.ResultInternalServiceServicer):
    """Serves the calls of a ``ResultOwner`` to other services."""

    DESCRIPTOR = internal.DESCRIPTOR.services_by_name["ResultInternalService"]

    @served
    async def StoreResult(
        self, request: internal.StoreResultRequest, call: Call
    ) -> internal.StoreResultResponse:
        envelope = codec.asked_envelope(request)
        stored = await self._part.store(envelope, request_id=call.request_id)
        return internal.StoreResultResponse(
            stored=stored.stored,
            already_exists=stored.already_exists,
            current_terminal_status=codec.STATUS_TO_PB[stored.current],
        )

    @served
    async def GetResult(
        self, request: internal.GetResultRequest, call: Call
    ) -> internal.GetResultResponse:
        envelope = await self._part.get(parse_job_id(request.job_id))
        if envelope is None:
            return internal.GetResultResponse()
        return internal.GetResultResponse(found=True, **codec.envelope_fields(envelope))


class CoordinatorServicer(Servicer[Coordination], internal_grpc.CoordinatorInternalServiceServicer):
    """Serves the calls of ``Coordination`` to workers."""

    DESCRIPTOR = internal.DESCRIPTOR.services_by_name["CoordinatorInternalService"]

    @served
    async def WorkerHeartbeat(
        self, request: internal.WorkerHeartbeatRequest, call: Call
    ) -> internal.WorkerHeartbeatResponse:
        next_ms = await self._part.heartbeat(
            request.worker_id,
            request.heartbeat_at_ms,
            request.capacity_hint,
            incarnation=call.incarnation,
            running=[parse_job_id(job, "running_job_ids") for job in request.running_job_ids],
        )
        return internal.WorkerHeartbeatResponse(accepted=True, next_heartbeat_in_ms=next_ms)

    @served
    async def FetchWork(
        self, request: internal.FetchWorkRequest, call: Call
    ) -> internal.FetchWorkResponse:
        work = await self._part.fetch(request.worker_id, request_id=call.request_id)
        if work.spec is None:
            return internal.FetchWorkResponse(retry_after_ms=work.retry_after_ms)
        spec = codec.spec_to_pb(work.spec)
        return internal.FetchWorkResponse(assigned=True, job_id=work.job_id, spec=spec)

    @served
    async def ReportWorkOutcome(
        self, request: internal.ReportWorkOutcomeRequest, call: Call
    ) -> internal.ReportWorkOutcomeResponse:
        report = codec.asked_report(request)
        accepted = await self._part.report(report, request_id=call.request_id)
        return internal.ReportWorkOutcomeResponse(accepted=accepted)
