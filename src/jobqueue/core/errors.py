"""Errors, each with a stable code that every face maps to its own in one table.

JobQueueError
├── InvalidArgument     a field of the request is wrong
├── NotFound            no such job, queue or worker
├── AlreadyExists       the name is taken
├── Conflict            the state of the thing forbids it
├── KeyConflict         the idempotency key belongs to a job with another payload
├── QueueFull           the queue is at capacity; carries retry_after
├── RateLimited         the caller sends too fast; carries retry_after
├── Unavailable         it did not happen; try again
├── OutcomeUnknown      it may have happened; read back before trying again
├── DeadlineExceeded    the caller's time ran out
├── Unauthenticated     the caller is not known
├── PermissionDenied    the caller is known and may not do that
├── JobFailed           raised by result(): the job ended without a result
└── Internal            a defect
"""

from __future__ import annotations

import enum
from typing import TypeVar


class Code(enum.StrEnum):
    """Stable names of errors, the same on every face."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CONFLICT = "CONFLICT"
    KEY_CONFLICT = "KEY_CONFLICT"
    QUEUE_FULL = "QUEUE_FULL"
    RATE_LIMITED = "RATE_LIMITED"
    UNAVAILABLE = "UNAVAILABLE"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    JOB_FAILED = "JOB_FAILED"
    INTERNAL = "INTERNAL"


class JobQueueError(Exception):
    """Base of every error this package raises on purpose."""

    code: Code = Code.INTERNAL

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


E = TypeVar("E", bound=BaseException)


def without_trace(error: E) -> E:
    """Return the error without its traceback, whose frames would keep the request in memory."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


class InvalidArgument(JobQueueError):
    """A field of the request is wrong. The message says what is allowed."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.problem = message


class NotFound(JobQueueError):
    """The named thing does not exist."""

    code = Code.NOT_FOUND


def no_such_job(job_id: str) -> NotFound:
    return NotFound(f"job_id: there is no job {job_id}")


def no_such_queue(name: str) -> NotFound:
    return NotFound(
        f"queue: there is no queue {name!r}; create it with: jq-ctl queue create {name}"
    )


def not_your_worker(worker_id: str) -> PermissionDenied:
    return PermissionDenied(
        f"worker_id: worker {worker_id[:120]!r} was registered with another credential; give this"
        " worker an id of its own, or wait until the other one is OFFLINE"
    )


def too_many_names(owner: str, most: int) -> RateLimited:
    """Make the error of a worker whose lists of names take too much with the caller's others."""
    return RateLimited(
        f"types: the workers of {owner!r} name so many types and queues that they would take more"
        f" than {most >> 20} MiB together, the most that one caller may have; name fewer, or stop"
        " workers",
        retry_after=30.0,
    )


def too_many_workers(owner: str, most: int) -> RateLimited:
    return RateLimited(
        f"worker_id: {owner!r} has {most} workers already, which is as many as one caller may have"
        " (limits.workers_per_caller)",
        retry_after=30.0,
    )


class AlreadyExists(JobQueueError):
    """The name is taken."""

    code = Code.ALREADY_EXISTS


class Conflict(JobQueueError):
    """The thing exists, but its state forbids the call."""

    code = Code.CONFLICT


class KeyConflict(JobQueueError):
    """The idempotency key was used for another payload; ``job_id`` is that job."""

    code = Code.KEY_CONFLICT

    def __init__(self, message: str, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class QueueFull(JobQueueError):
    """The queue is at capacity. Nothing was written; try again after ``retry_after`` seconds."""

    code = Code.QUEUE_FULL

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(JobQueueError):
    """The caller is over its rate. Nothing was written; try again after ``retry_after`` seconds."""

    code = Code.RATE_LIMITED

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(JobQueueError):
    """It did not happen: the store or server cannot be reached or written. Safe to repeat."""

    code = Code.UNAVAILABLE


class Unreachable(Unavailable):
    """It did not happen: there is no connection to the server."""


class OutcomeUnknown(JobQueueError):
    """It may have happened: the answer was lost. Repeat only with an idempotency key."""

    code = Code.OUTCOME_UNKNOWN


class DeadlineExceeded(JobQueueError):
    """The caller's time ran out before the answer."""

    code = Code.DEADLINE_EXCEEDED


class Unauthenticated(JobQueueError):
    """The caller gave no credential, or one that is not valid."""

    code = Code.UNAUTHENTICATED


class PermissionDenied(JobQueueError):
    """The caller is known and may not do that."""

    code = Code.PERMISSION_DENIED


class JobFailed(JobQueueError):
    """The job ended without a result; ``reason`` and ``error`` say why."""

    code = Code.JOB_FAILED

    def __init__(self, job_id: str, reason: str, error: str) -> None:
        super().__init__(f"job {job_id} was dead-lettered ({reason}): {error or 'no error text'}")
        self.job_id = job_id
        self.reason = reason
        self.error = error


class Internal(JobQueueError):
    """A defect in jobqueue itself."""

    code = Code.INTERNAL
