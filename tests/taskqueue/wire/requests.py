"""For each method of the five services, a request that nothing is wrong with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc.aio

from jobqueue.pb import taskqueue_internal_pb2 as internal
from jobqueue.pb import taskqueue_internal_pb2_grpc as internal_grpc
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.pb import taskqueue_public_pb2_grpc as public_grpc
from tests import patience
from tests.taskqueue.wire.parts import JOB

SPEC = public.JobSpec(job_type="simulate")

STUBS: Mapping[str, Callable[[grpc.aio.Channel], Any]] = {
    "TaskQueuePublicService": public_grpc.TaskQueuePublicServiceStub,
    "JobInternalService": internal_grpc.JobInternalServiceStub,
    "QueueInternalService": internal_grpc.QueueInternalServiceStub,
    "CoordinatorInternalService": internal_grpc.CoordinatorInternalServiceStub,
    "ResultInternalService": internal_grpc.ResultInternalServiceStub,
}

# The transition, the envelope and the enqueue are such that every caller with a right to the
# method has one to this request.
REQUESTS: Mapping[str, tuple[str, Any]] = {
    "SubmitJob": ("TaskQueuePublicService", public.SubmitJobRequest(spec=SPEC)),
    "GetJobStatus": ("TaskQueuePublicService", public.GetJobStatusRequest(job_id=JOB)),
    "GetJobResult": ("TaskQueuePublicService", public.GetJobResultRequest(job_id=JOB)),
    "CancelJob": ("TaskQueuePublicService", public.CancelJobRequest(job_id=JOB)),
    "ListJobs": ("TaskQueuePublicService", public.ListJobsRequest()),
    "CreateJob": ("JobInternalService", internal.CreateJobRequest(spec=SPEC)),
    "DeleteJobIfStatus": (
        "JobInternalService",
        internal.DeleteJobIfStatusRequest(job_id=JOB, expected_status=public.QUEUED),
    ),
    "GetJobRecord": ("JobInternalService", internal.GetJobRecordRequest(job_id=JOB)),
    "ListJobRecords": ("JobInternalService", internal.ListJobRecordsRequest()),
    "TransitionJobStatus": (
        "JobInternalService",
        internal.TransitionJobStatusRequest(
            job_id=JOB, expected_from_status=public.QUEUED, to_status=public.CANCELED
        ),
    ),
    "SetCancelRequested": (
        "JobInternalService",
        internal.SetCancelRequestedRequest(job_id=JOB, cancel_requested=True),
    ),
    "EnqueueJob": ("QueueInternalService", internal.EnqueueJobRequest(job_id=JOB)),
    "DequeueJob": ("QueueInternalService", internal.DequeueJobRequest(worker_id="w")),
    "RemoveJobIfPresent": ("QueueInternalService", internal.RemoveJobIfPresentRequest(job_id=JOB)),
    "WorkerHeartbeat": (
        "CoordinatorInternalService",
        internal.WorkerHeartbeatRequest(worker_id="w"),
    ),
    "FetchWork": ("CoordinatorInternalService", internal.FetchWorkRequest(worker_id="w")),
    "ReportWorkOutcome": (
        "CoordinatorInternalService",
        internal.ReportWorkOutcomeRequest(
            worker_id="w", job_id=JOB, outcome=public.JOB_OUTCOME_SUCCEEDED
        ),
    ),
    "StoreResult": (
        "ResultInternalService",
        internal.StoreResultRequest(job_id=JOB, terminal_status=public.CANCELED),
    ),
    "GetResult": ("ResultInternalService", internal.GetResultRequest(job_id=JOB)),
}


async def ask(
    channel: grpc.aio.Channel,
    method: str,
    metadata: tuple[tuple[str, str], ...] = (),
    request: Any = None,
    **changes: Any,
) -> tuple[str, str]:
    """The status and the text of the answer."""
    service, usual = REQUESTS[method]
    asked = type(usual)()
    asked.CopyFrom(usual if request is None else request)
    for field, value in changes.items():
        if isinstance(value, list):
            getattr(asked, field).extend(value)
        else:
            setattr(asked, field, value)
    try:
        await getattr(STUBS[service](channel), method)(
            asked, timeout=patience.longest(20), metadata=metadata
        )
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""
