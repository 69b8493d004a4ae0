"""Call the parts of the task queue in another process over gRPC: encode, call, decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import grpc.aio

from jobqueue.access.tls import Credentials
from jobqueue.core.errors import DeadlineExceeded
from jobqueue.core.waiting import remaining
from jobqueue.pb import taskqueue_internal_pb2 as internal
from jobqueue.pb import taskqueue_internal_pb2_grpc as internal_grpc
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.pb import taskqueue_public_pb2_grpc as public_grpc
from jobqueue.taskqueue.components.model import (
    CANCEL_SECONDS,
    READ_SECONDS,
    SUBMIT_SECONDS,
    Applied,
    Canceled,
    CreatedJob,
    Envelope,
    JobRecord,
    Listing,
    Report,
    Spec,
    Status,
    Stored,
    Submitted,
    SummaryPage,
    Work,
)
from jobqueue.taskqueue.grpc import codec
from jobqueue.taskqueue.grpc.callers import LOOK, RESCUE
from jobqueue.taskqueue.grpc.peer import Peer, ServerChannel

# The specification's other deadlines, in seconds.
FETCH = 1.5
HEARTBEAT = 1.0

Request = TypeVar("Request")
Response = TypeVar("Response")


class RemoteJobs:
    """Implements ``JobOwner`` by calls to the job service."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stub = internal_grpc.JobInternalServiceStub(peer.channel)

    async def create(self, spec: Spec, key: str, *, request_id: str) -> CreatedJob:
        request = internal.CreateJobRequest(
            spec=codec.spec_to_pb(spec),
            client_request_id=codec.text_to_send(key, "client_request_id"),
        )
        answer = await self._peer.call(self._stub.CreateJob, request, request_id=request_id)
        return CreatedJob(answer.job_id, codec.status_from(answer.status), answer.created)

    async def delete_if(self, job_id: str, expected: Status, *, request_id: str) -> Applied:
        request = internal.DeleteJobIfStatusRequest(
            job_id=job_id, expected_status=codec.STATUS_TO_PB[expected]
        )
        answer = await self._peer.call(self._stub.DeleteJobIfStatus, request, request_id=request_id)
        return codec.applied_from(answer.deleted, answer.current_status)

    async def get(self, job_id: str) -> JobRecord:
        request = internal.GetJobRecordRequest(job_id=job_id)
        return codec.record_from_pb(
            await self._peer.call(self._stub.GetJobRecord, request, repeatable=True)
        )

    async def list(self, listing: Listing) -> SummaryPage:
        request = internal.ListJobRecordsRequest(**codec.listing_fields(listing))
        answer = await self._peer.call(self._stub.ListJobRecords, request, repeatable=True)
        return codec.page_from_pb(answer)

    async def transition(
        self,
        job_id: str,
        expected: Status,
        to: Status,
        *,
        actor: str,
        reason: str = "",
        request_id: str,
    ) -> Applied:
        request = internal.TransitionJobStatusRequest(
            job_id=job_id,
            expected_from_status=codec.STATUS_TO_PB[expected],
            to_status=codec.STATUS_TO_PB[to],
            actor=actor,
            reason=reason,
        )
        answer = await self._peer.call(
            self._stub.TransitionJobStatus,
            request,
            request_id=request_id,
            # The change may have been made, and no other worker gets a job that is RUNNING.
            retry_internal=True,
        )
        return codec.applied_from(answer.applied, answer.current_status)

    async def request_cancel(self, job_id: str, reason: str, *, request_id: str) -> Applied:
        request = internal.SetCancelRequestedRequest(
            job_id=job_id, cancel_requested=True, reason=reason
        )
        answer = await self._peer.call(
            self._stub.SetCancelRequested, request, request_id=request_id
        )
        return codec.applied_from(answer.applied, answer.current_status)


class RemoteQueue:
    """Implements ``QueueOwner`` by calls to the queue service."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stub = internal_grpc.QueueInternalServiceStub(peer.channel)

    async def enqueue(
        self, job_id: str, enqueued_at_ms: int, *, rescue: bool = False, request_id: str
    ) -> bool:
        request = internal.EnqueueJobRequest(job_id=job_id, enqueued_at_ms=enqueued_at_ms)
        answer = await self._peer.call(
            self._stub.EnqueueJob, request, request_id=request_id, purpose=RESCUE if rescue else ""
        )
        return answer.accepted

    async def contains(self, job_id: str) -> bool:
        request = internal.EnqueueJobRequest(job_id=job_id)
        answer = await self._peer.call(
            self._stub.EnqueueJob, request, purpose=LOOK, repeatable=True
        )
        return answer.accepted

    async def dequeue(self, worker_id: str, *, request_id: str) -> str | None:
        request = internal.DequeueJobRequest(worker_id=worker_id)
        answer = await self._peer.call(self._stub.DequeueJob, request, request_id=request_id)
        return answer.job_id if answer.found else None

    async def remove(self, job_id: str, *, request_id: str) -> bool:
        request = internal.RemoveJobIfPresentRequest(job_id=job_id)
        answer = await self._peer.call(
            self._stub.RemoveJobIfPresent, request, request_id=request_id
        )
        return answer.removed


class RemoteResults:
    """Implements ``ResultOwner`` by calls to the result service."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stub = internal_grpc.ResultInternalServiceStub(peer.channel)

    async def store(self, envelope: Envelope, *, request_id: str) -> Stored:
        request = internal.StoreResultRequest(**codec.envelope_fields(envelope))
        answer = await self._peer.call(self._stub.StoreResult, request, request_id=request_id)
        current = codec.status_from(answer.current_terminal_status)
        return Stored(answer.stored, answer.already_exists, current)

    async def get(self, job_id: str) -> Envelope | None:
        request = internal.GetResultRequest(job_id=job_id)
        answer = await self._peer.call(self._stub.GetResult, request, repeatable=True)
        return codec.envelope_from_pb(answer) if answer.found else None


class RemoteCoordination:
    """Implements ``Coordination`` by calls to the coordinator."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stub = internal_grpc.CoordinatorInternalServiceStub(peer.channel)

    async def heartbeat(
        self,
        worker_id: str,
        at_ms: int,
        capacity: int,
        *,
        incarnation: str = "",
        running: Sequence[str] = (),
    ) -> int:
        request = internal.WorkerHeartbeatRequest(
            worker_id=codec.text_to_send(worker_id, "worker_id"),
            heartbeat_at_ms=at_ms,
            capacity_hint=capacity,
            running_job_ids=running,
        )
        answer = await self._peer.call(
            self._stub.WorkerHeartbeat,
            request,
            timeout=HEARTBEAT,
            incarnation=incarnation,
            repeatable=True,
        )
        return answer.next_heartbeat_in_ms

    async def fetch(self, worker_id: str, *, request_id: str) -> Work:
        request = internal.FetchWorkRequest(worker_id=codec.text_to_send(worker_id, "worker_id"))
        answer = await self._peer.call(
            self._stub.FetchWork, request, timeout=FETCH, request_id=request_id
        )
        if not answer.assigned:
            return Work(retry_after_ms=answer.retry_after_ms)
        return Work(answer.job_id, codec.spec_from_pb(answer.spec))

    async def report(self, report: Report, *, request_id: str) -> bool:
        request = codec.report_to_pb(report)
        answer = await self._peer.call(self._stub.ReportWorkOutcome, request, request_id=request_id)
        return answer.accepted


class RemoteTaskQueue:
    """Implements ``TaskQueueTransport`` by calls to one server, each without retries.

    Create it on the event loop that uses it.
    """

    def __init__(self, target: str, credentials: Credentials | None = None) -> None:
        self._server = ServerChannel(target, credentials)
        self._stub = public_grpc.TaskQueuePublicServiceStub(self._server.channel)

    async def submit(self, spec: Spec, key: str, *, timeout: float = SUBMIT_SECONDS) -> Submitted:
        request = public.SubmitJobRequest(
            spec=codec.spec_to_pb(spec),
            client_request_id=codec.text_to_send(key, "client_request_id"),
        )
        answer = await self._call(self._stub.SubmitJob, request, timeout)
        return Submitted(answer.job_id, answer.accepted_at_ms)

    async def status(self, job_id: str, *, timeout: float = READ_SECONDS) -> JobRecord:
        """Return the record without its spec, which the public API does not show."""
        request = public.GetJobStatusRequest(job_id=codec.text_to_send(job_id, "job_id"))
        return codec.record_from_status(await self._call(self._stub.GetJobStatus, request, timeout))

    async def result(self, job_id: str, *, timeout: float = READ_SECONDS) -> Envelope | None:
        request = public.GetJobResultRequest(job_id=codec.text_to_send(job_id, "job_id"))
        answer = await self._call(self._stub.GetJobResult, request, timeout)
        return codec.envelope_from_pb(answer) if answer.result_ready else None

    async def cancel(
        self, job_id: str, reason: str, *, timeout: float = CANCEL_SECONDS
    ) -> Canceled:
        request = public.CancelJobRequest(
            job_id=codec.text_to_send(job_id, "job_id"), reason=codec.text_to_send(reason, "reason")
        )
        answer = await self._call(self._stub.CancelJob, request, timeout)
        current = codec.status_from(answer.current_status)
        return Canceled(answer.job_id, answer.accepted, current, answer.already_terminal)

    async def list(self, listing: Listing, *, timeout: float = READ_SECONDS) -> SummaryPage:
        request = public.ListJobsRequest(**codec.listing_fields(listing))
        answer = await self._call(self._stub.ListJobs, request, timeout)
        return codec.page_from_pb(answer)

    async def _call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        timeout: float,
    ) -> Response:
        left = remaining(timeout)
        if left <= 0:
            raise DeadlineExceeded("the deadline passed before the server could be called")
        return await self._server.call(
            method, request, timeout=left, metadata=self._server.metadata
        )

    async def close(self) -> None:
        await self._server.close()
