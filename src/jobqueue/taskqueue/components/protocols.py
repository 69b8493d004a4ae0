"""Define the calls between the parts, which local objects and remote clients both implement.

A call that changes something carries a request id. A repeated call with the same id returns the
first answer, so a caller that lost the answer may repeat the call. All errors are classes of
``core.errors``. After Unavailable, OutcomeUnknown, DeadlineExceeded and Internal, the call may have
been carried out. After Unreachable, it was not.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Protocol

from jobqueue.core.errors import Code, JobQueueError, Unreachable
from jobqueue.core.waiting import deadline
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.model import (
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

_UNCERTAIN = frozenset(
    {Code.UNAVAILABLE, Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED, Code.INTERNAL}
)


def is_uncertain(error: JobQueueError) -> bool:
    """Return True if a call that failed with this error may have been carried out."""
    return error.code in _UNCERTAIN and not isinstance(error, Unreachable)


def new_request_id() -> str:
    """Return a new id for one call and all its repetitions."""
    return uuid.uuid4().hex


class JobOwner(Protocol):
    """Keeps the jobs and their authoritative status."""

    async def create(self, spec: Spec, key: str, *, request_id: str) -> CreatedJob:
        """Create a job, or return the job that already has the key.

        KeyConflict means that the existing job has another spec. An empty key means no key.
        """

    async def delete_if(self, job_id: str, expected: Status, *, request_id: str) -> Applied:
        """Delete the job and free its key, if the job has the expected status."""

    async def get(self, job_id: str) -> JobRecord:
        """Return the job's record. NotFound means that the job does not exist."""

    async def list(self, listing: Listing) -> SummaryPage:
        """Return one page of the jobs in their current state."""

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
        """Change the job's status if it is the expected one.

        InvalidArgument means that ``TRANSITIONS`` has no such transition.
        """

    async def request_cancel(self, job_id: str, reason: str, *, request_id: str) -> Applied:
        """Set the cancel flag of a job that has not ended. The reason is for the log."""


class QueueOwner(Protocol):
    """Keeps the order of the waiting jobs."""

    async def enqueue(
        self, job_id: str, enqueued_at_ms: int, *, rescue: bool = False, request_id: str
    ) -> bool:
        """Put the job at the end of the queue; return False if the queue is full.

        With ``rescue`` the job is one that was in the queue before: it is put back even if the
        queue is full.
        """

    async def contains(self, job_id: str) -> bool:
        """Return True if the job is in the queue."""

    async def dequeue(self, worker_id: str, *, request_id: str) -> str | None:
        """Remove the first job and return its id; return None if the queue is empty."""

    async def remove(self, job_id: str, *, request_id: str) -> bool:
        """Remove this job; return False if the job is not in the queue."""


class ResultOwner(Protocol):
    """Keeps the envelopes of the jobs that have ended."""

    async def store(self, envelope: Envelope, *, request_id: str) -> Stored:
        """Store the envelope, unless the job already has one: the first envelope stays."""

    async def get(self, job_id: str) -> Envelope | None:
        """Return the job's envelope; None if the job has none."""


async def put_back(
    queue: QueueOwner, job_id: str, now_ms: int, *, why: str = "", retries: str
) -> bool:
    """Try once to put a job back into the queue, even if the queue is full; log the outcome.

    ``why`` is the reason, and ``retries`` says which part repeats a failed try, for the log.
    """
    # No deadline of the caller applies: the job must not be lost when the caller stops waiting.
    with deadline(None):
        try:
            queued = await queue.enqueue(job_id, now_ms, rescue=True, request_id=new_request_id())
            failure = "" if queued else "the queue is full"
        except JobQueueError as error:
            failure = error.message
    if failure:
        journal.anomaly(
            f"cannot put the QUEUED job {job_id} back into the queue: {failure}; {retries}",
            job_id=job_id,
        )
    else:
        reason = f", {why}" if why else ""
        journal.warn(
            journal.RESCUE, f"job {job_id} was put back into the queue{reason}", job_id=job_id
        )
    return not failure


class Coordination(Protocol):
    """Serves workers: heartbeats, the hand-over of jobs, and reports of their ends."""

    async def heartbeat(
        self,
        worker_id: str,
        at_ms: int,
        capacity: int,
        *,
        incarnation: str = "",
        running: Sequence[str] = (),
    ) -> int:
        """Record a heartbeat of the worker; return the milliseconds until its next heartbeat.

        A restarted worker has a new ``incarnation``. ``running`` has the ids of the worker's jobs.
        """

    async def fetch(self, worker_id: str, *, request_id: str) -> Work:
        """Return a job to execute, if a job waits and the worker is alive."""

    async def report(self, report: Report, *, request_id: str) -> bool:
        """Store the reported end of a job; return True if the job has ended as reported."""


class TaskQueue(Protocol):
    """Serves the public calls of the task queue, which are the same in every topology."""

    async def submit(self, spec: Spec, key: str) -> Submitted:
        """Accept a job. Submits with the same key are one job.

        KeyConflict means that the key was used for a job with another spec.
        """

    async def status(self, job_id: str) -> JobRecord:
        """Return the job's record. NotFound means that the job does not exist."""

    async def result(self, job_id: str) -> Envelope | None:
        """Return the envelope of a job that has ended; None if the job has not ended."""

    async def cancel(self, job_id: str, reason: str) -> Canceled:
        """Cancel a queued job, or set the cancel flag of a running job."""

    async def list(self, listing: Listing) -> SummaryPage:
        """Return one page of the jobs in their current state."""
