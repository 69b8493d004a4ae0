"""The calls between the parts. Local objects and remote clients implement the same Protocols.

A call that changes something carries a request id. Repeated with the same id it returns the first
answer, so a caller that lost an answer asks again. Errors are those of ``core.errors``: after
Unavailable, DeadlineExceeded and Internal the call may have been carried out, after Unreachable
not.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Protocol

from jobqueue.core.errors import Code, JobQueueError, Unreachable
from jobqueue.core.waiting import deadline
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
    """Return whether a call that failed like this may have been carried out."""
    return error.code in _UNCERTAIN and not isinstance(error, Unreachable)


def new_request_id() -> str:
    """Return an id for one call and its repetitions."""
    return uuid.uuid4().hex


class JobOwner(Protocol):
    """The owner of the canonical status."""

    async def create(self, spec: Spec, key: str, *, request_id: str) -> CreatedJob:
        """Create a job, or return the one that has the key. KeyConflict: that has another spec."""

    async def delete_if(self, job_id: str, expected: Status, *, request_id: str) -> Applied:
        """Remove the job and free its key, if it has that status."""

    async def get(self, job_id: str) -> JobRecord:
        """Return the record. NotFound: there is no such job."""

    async def list(self, listing: Listing) -> SummaryPage:
        """Return one page of the jobs as they are now."""

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
        """Set the status if it is the expected one. The table must have the transition."""

    async def request_cancel(self, job_id: str, reason: str, *, request_id: str) -> Applied:
        """Set the flag of a job that is not terminal. The reason is for the log."""


class QueueOwner(Protocol):
    """The owner of the order."""

    async def enqueue(
        self, job_id: str, enqueued_at_ms: int, *, rescue: bool = False, request_id: str
    ) -> bool:
        """Put the job at the end; return False if there is no room.

        ``rescue``: it is put back after a lost race, and finds room in any case.
        """

    async def contains(self, job_id: str) -> bool:
        """Return whether the job waits."""

    async def dequeue(self, worker_id: str, *, request_id: str) -> str | None:
        """Take the first job out; None: there is none."""

    async def remove(self, job_id: str, *, request_id: str) -> bool:
        """Take this job out; False: it is not there."""


class ResultOwner(Protocol):
    """The owner of the outputs."""

    async def store(self, envelope: Envelope, *, request_id: str) -> Stored:
        """Keep the envelope, unless there is one already: the first stays."""

    async def get(self, job_id: str) -> Envelope | None:
        """Return the envelope that is kept."""


async def put_back(queue: QueueOwner, job_id: str, now_ms: int) -> str:
    """Try once to put a job back into the queue; return the reason if that fails.

    It may take longer than its caller waits: the job must not be lost with the caller.
    """
    with deadline(None):
        try:
            queued = await queue.enqueue(job_id, now_ms, rescue=True, request_id=new_request_id())
        except JobQueueError as error:
            return error.message
    return "" if queued else "the queue is full"


class Coordination(Protocol):
    """The calls of a worker."""

    async def heartbeat(
        self,
        worker_id: str,
        at_ms: int,
        capacity: int,
        *,
        incarnation: str = "",
        running: Sequence[str] = (),
    ) -> int:
        """Note that the worker lives; return the milliseconds until its next heartbeat.

        A worker that was started anew has another ``incarnation``. ``running`` are the jobs that it
        has.
        """

    async def fetch(self, worker_id: str, *, request_id: str) -> Work:
        """Return a job to execute, if there is one and the worker is alive."""

    async def report(self, report: Report, *, request_id: str) -> bool:
        """Take the end of a job; return whether the job has ended as reported."""


class TaskQueue(Protocol):
    """The calls of a client, in every topology."""

    async def submit(self, spec: Spec, key: str) -> Submitted:
        """Accept a job; with a key, once. KeyConflict: the key has another spec."""

    async def status(self, job_id: str) -> JobRecord:
        """Return the record. NotFound: there is no such job."""

    async def result(self, job_id: str) -> Envelope | None:
        """Return the envelope of a terminal job; None for other jobs."""

    async def cancel(self, job_id: str, reason: str) -> Canceled:
        """Cancel a queued job; ask a running one to end."""

    async def list(self, listing: Listing) -> SummaryPage:
        """Return one page of the jobs as they are now."""
