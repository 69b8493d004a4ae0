"""The parts on the other side of a connection; they satisfy the Protocols that local ones do."""

from __future__ import annotations

from collections.abc import Sequence

from jobqueue.api.grpc.taskqueue import codec
from jobqueue.api.grpc.taskqueue.callers import LOOK, RESCUE
from jobqueue.api.grpc.taskqueue.peer import Peer
from jobqueue.pb import taskqueue_internal_pb2 as pb
from jobqueue.pb import taskqueue_internal_pb2_grpc as pb_grpc
from jobqueue.services.model import (
    Applied,
    Created,
    Envelope,
    Listing,
    Page,
    Record,
    Report,
    Spec,
    Status,
    Stored,
    Work,
)

# The document's deadlines, in seconds.
UNARY = 1.0
FETCH = 1.5
HEARTBEAT = 1.0


class RemoteJobs:
    """The job service."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stub = pb_grpc.JobInternalServiceStub(peer.channel)

    async def create(self, spec: Spec, key: str, *, request_id: str) -> Created:
        """A new job, or the one that has the key."""
        request = pb.CreateJobRequest(
            spec=codec.spec_to_pb(spec),
            client_request_id=codec.text_to_send(key, "client_request_id"),
        )
        return codec.created_from_pb(
            await self._peer.call(
                self._stub.CreateJob, request, timeout=UNARY, request_id=request_id
            )
        )

    async def delete_if(self, job_id: str, expected: Status, *, request_id: str) -> Applied:
        """Remove the job and free its key, if it has that status."""
        request = pb.DeleteJobIfStatusRequest(
            job_id=job_id, expected_status=codec.STATUS_TO_PB[expected]
        )
        answer = await self._peer.call(
            self._stub.DeleteJobIfStatus, request, timeout=UNARY, request_id=request_id
        )
        return codec.applied_from(answer.deleted, answer.current_status)

    async def get(self, job_id: str) -> Record:
        """All about a job."""
        request = pb.GetJobRecordRequest(job_id=job_id)
        return codec.record_from_pb(
            await self._peer.call(self._stub.GetJobRecord, request, timeout=UNARY, repeatable=True)
        )

    async def list(self, listing: Listing) -> Page:
        """One page."""
        request = codec.list_request(listing)
        answer = await self._peer.call(
            self._stub.ListJobRecords, request, timeout=UNARY, repeatable=True
        )
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
        """Compare and set."""
        request = pb.TransitionJobStatusRequest(
            job_id=job_id,
            expected_from_status=codec.STATUS_TO_PB[expected],
            to_status=codec.STATUS_TO_PB[to],
            actor=actor,
            reason=reason,
        )
        answer = await self._peer.call(
            self._stub.TransitionJobStatus,
            request,
            timeout=UNARY,
            request_id=request_id,
            # It may have been applied, and a job that is RUNNING is given to nobody else.
            retry_internal=True,
        )
        return codec.applied_from(answer.applied, answer.current_status)

    async def request_cancel(self, job_id: str, reason: str, *, request_id: str) -> Applied:
        """Set the flag of a job that is not terminal."""
        request = pb.SetCancelRequestedRequest(job_id=job_id, cancel_requested=True, reason=reason)
        answer = await self._peer.call(
            self._stub.SetCancelRequested, request, timeout=UNARY, request_id=request_id
        )
        return codec.applied_from(answer.applied, answer.current_status)


class RemoteQueue:
    """The queue service."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stub = pb_grpc.QueueInternalServiceStub(peer.channel)

    async def enqueue(
        self, job_id: str, enqueued_at_ms: int, *, rescue: bool = False, request_id: str
    ) -> bool:
        """At the end; False when there is no room."""
        request = pb.EnqueueJobRequest(job_id=job_id, enqueued_at_ms=enqueued_at_ms)
        answer = await self._peer.call(
            self._stub.EnqueueJob,
            request,
            timeout=UNARY,
            request_id=request_id,
            purpose=RESCUE if rescue else "",
        )
        return answer.accepted

    async def contains(self, job_id: str) -> bool:
        """Whether it waits."""
        answer = await self._peer.call(
            self._stub.EnqueueJob,
            pb.EnqueueJobRequest(job_id=job_id),
            timeout=UNARY,
            purpose=LOOK,
            repeatable=True,
        )
        return answer.accepted

    async def dequeue(self, worker_id: str, *, request_id: str) -> str | None:
        """Take the first one out; None if there is none."""
        request = pb.DequeueJobRequest(worker_id=worker_id)
        answer = await self._peer.call(
            self._stub.DequeueJob, request, timeout=UNARY, request_id=request_id
        )
        return answer.job_id if answer.found else None

    async def remove(self, job_id: str, *, request_id: str) -> bool:
        """Take this one out; False if it is not there."""
        request = pb.RemoveJobIfPresentRequest(job_id=job_id)
        answer = await self._peer.call(
            self._stub.RemoveJobIfPresent, request, timeout=UNARY, request_id=request_id
        )
        return answer.removed


class RemoteResults:
    """The result service."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stub = pb_grpc.ResultInternalServiceStub(peer.channel)

    async def store(self, envelope: Envelope, *, request_id: str) -> Stored:
        """Keep it, unless there is one."""
        request = codec.envelope_to_store(envelope)
        return codec.stored_from_pb(
            await self._peer.call(
                self._stub.StoreResult, request, timeout=UNARY, request_id=request_id
            )
        )

    async def get(self, job_id: str) -> Envelope | None:
        """The envelope kept."""
        request = pb.GetResultRequest(job_id=job_id)
        return codec.envelope_from_pb(
            await self._peer.call(self._stub.GetResult, request, timeout=UNARY, repeatable=True)
        )


class RemoteCoordination:
    """The coordinator."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stub = pb_grpc.CoordinatorInternalServiceStub(peer.channel)

    async def heartbeat(
        self,
        worker_id: str,
        at_ms: int,
        capacity: int,
        *,
        incarnation: str = "",
        running: Sequence[str] = (),
    ) -> int:
        """The worker lives; may be said twice."""
        request = pb.WorkerHeartbeatRequest(
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
        """A job to execute, or when to ask again."""
        request = pb.FetchWorkRequest(worker_id=codec.text_to_send(worker_id, "worker_id"))
        return codec.work_from_pb(
            await self._peer.call(
                self._stub.FetchWork, request, timeout=FETCH, request_id=request_id
            )
        )

    async def report(self, report: Report, *, request_id: str) -> bool:
        """How a job ended; whether this decided it."""
        request = codec.report_to_pb(report)
        answer = await self._peer.call(
            self._stub.ReportWorkOutcome, request, timeout=UNARY, request_id=request_id
        )
        return answer.accepted
