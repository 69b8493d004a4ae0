"""What the parts ask of each other. Local objects and remote clients satisfy the same.

A call that changes something carries a request id: whoever gets the same id again repeats its
first answer, so that a caller whose answer was lost asks again and learns what became of it.
Errors are those of ``core.errors``: Unavailable, DeadlineExceeded and Internal leave open whether
the call was carried out, Unreachable does not.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Protocol

from jobqueue.core.errors import Code, JobQueueError, Unreachable
from jobqueue.services.model import (
    Applied,
    Canceled,
    Created,
    Envelope,
    Listing,
    Page,
    Record,
    Report,
    Spec,
    Status,
    Stored,
    Submitted,
    Work,
)

_UNCERTAIN = frozenset(
    {Code.UNAVAILABLE, Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED, Code.INTERNAL}
)


def is_uncertain(error: JobQueueError) -> bool:
    """Whether the call that failed like this may have been carried out."""
    return error.code in _UNCERTAIN and not isinstance(error, Unreachable)


def new_request_id() -> str:
    """For one call and its repetitions."""
    return uuid.uuid4().hex


class Jobs(Protocol):
    """The owner of the canonical status."""

    async def create(self, spec: Spec, key: str, *, request_id: str) -> Created:
        """A new job, or the one that has the key; KeyConflict if that has another spec."""
        ...

    async def delete_if(self, job_id: str, expected: Status, *, request_id: str) -> Applied:
        """Remove the job and free its key, if it has that status."""
        ...

    async def get(self, job_id: str) -> Record:
        """NotFound if there is none."""
        ...

    async def list(self, listing: Listing) -> Page:
        """One page."""
        ...

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
        ...

    async def request_cancel(self, job_id: str, reason: str, *, request_id: str) -> Applied:
        """Set the flag of a job that is not terminal; the reason is for the log."""
        ...


class Queue(Protocol):
    """The owner of the order."""

    async def enqueue(
        self, job_id: str, enqueued_at_ms: int, *, rescue: bool = False, request_id: str
    ) -> bool:
        """At the end; True if it is there now. ``rescue``: put back what a lost race took out."""
        ...

    async def contains(self, job_id: str) -> bool:
        """Whether it waits."""
        ...

    async def dequeue(self, worker_id: str, *, request_id: str) -> str | None:
        """Take the first one out; None if there is none."""
        ...

    async def remove(self, job_id: str, *, request_id: str) -> bool:
        """Take this one out; False if it is not there."""
        ...


class Results(Protocol):
    """The owner of the outputs."""

    async def store(self, envelope: Envelope, *, request_id: str) -> Stored:
        """Keep it, unless there is one: the first stays."""
        ...

    async def get(self, job_id: str) -> Envelope | None:
        """The envelope kept."""
        ...


class Coordination(Protocol):
    """What a worker calls."""

    async def heartbeat(
        self,
        worker_id: str,
        at_ms: int,
        capacity: int,
        *,
        incarnation: str = "",
        running: Sequence[str] = (),
    ) -> int:
        """The worker lives; returns when the next beat is due, in milliseconds.

        ``incarnation`` is another one when the worker was started anew; ``running`` are the jobs
        that it has.
        """
        ...

    async def fetch(self, worker_id: str, *, request_id: str) -> Work:
        """A job to execute, if there is one and the worker is alive."""
        ...

    async def report(self, report: Report, *, request_id: str) -> bool:
        """How a job ended; whether it has ended as this says."""
        ...


class TaskQueue(Protocol):
    """What clients call, in every topology."""

    async def submit(self, spec: Spec, key: str) -> Submitted:
        """Accept a job; with a key, once. KeyConflict: the key has another spec."""
        ...

    async def status(self, job_id: str) -> Record:
        """NotFound if there is no such job."""
        ...

    async def result(self, job_id: str) -> Envelope | None:
        """The envelope of a terminal job; None while it is not."""
        ...

    async def cancel(self, job_id: str, reason: str) -> Canceled:
        """Cancel a queued job, ask for it if it runs."""
        ...

    async def list(self, listing: Listing) -> Page:
        """One page."""
        ...
