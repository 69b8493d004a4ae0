"""Define the errors of the package.

Each error has a stable code, and every face has one table that maps the codes to its own codes.

JobQueueError
├── InvalidArgument     a field of the request is not valid
├── NotFound            the job, queue, worker or schedule does not exist
├── AlreadyExists       the name is taken
├── Conflict            the state of the job, queue or worker forbids the call
├── KeyConflict         the idempotency key belongs to a job with another payload
├── NotUnique           the unique key belongs to another job
├── QueueFull           the queue is at capacity; the error has a retry_after
├── RateLimited         the caller sends too fast; the error has a retry_after
├── Unavailable         the call had no effect; try again
├── OutcomeUnknown      the call may have had an effect; check before trying again
├── DeadlineExceeded    the caller's deadline passed
├── Unauthenticated     the caller is not known
├── PermissionDenied    the caller is known and may not make this call
├── JobFailed           raised by result(): the job ended without a result
└── Internal            a defect of jobqueue
"""

from __future__ import annotations

import enum
from typing import TypeVar


class Code(enum.StrEnum):
    """The stable name of an error, which is the same on every face."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CONFLICT = "CONFLICT"
    KEY_CONFLICT = "KEY_CONFLICT"
    NOT_UNIQUE = "NOT_UNIQUE"
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
    """The base class of every error that this package raises on purpose."""

    code: Code = Code.INTERNAL

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


E = TypeVar("E", bound=BaseException)


def without_trace(error: E) -> E:
    """Remove the error's traceback and cause, and return the error.

    The frames of a traceback would keep the request in memory.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


class InvalidArgument(JobQueueError):
    """Reports that a field of the request is not valid; the message says what is allowed."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.problem = message


class NotFound(JobQueueError):
    """Reports that the named job, queue, worker or schedule does not exist."""

    code = Code.NOT_FOUND


def no_such_job(job_id: str) -> NotFound:
    return NotFound(f"job_id: there is no job {job_id}")


def being_changed(job_id: str) -> Conflict:
    return Conflict(
        f"job {job_id} cannot be changed now: a database transaction that has not ended, perhaps"
        " one of the job's handler, is changing it; try again when that transaction has ended"
    )


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
    """Return the error for a worker whose lists of types and queues exceed the caller's limit."""
    return RateLimited(
        f"types: the lists of types and queues of the workers of {owner!r} would need more than"
        f" {most >> 20} MiB together, which is the limit of one caller; list fewer names, or stop"
        " workers",
        retry_after=30.0,
    )


def too_many_workers(owner: str, most: int) -> RateLimited:
    return RateLimited(
        f"worker_id: {owner!r} has {most} workers already, which is the limit of one caller"
        " (limits.workers_per_caller); stop workers, or raise the limit",
        retry_after=30.0,
    )


class AlreadyExists(JobQueueError):
    """Reports that the name is taken."""

    code = Code.ALREADY_EXISTS


class Conflict(JobQueueError):
    """Reports that the state of the job, queue, worker or store forbids the call."""

    code = Code.CONFLICT


class NotUnique(JobQueueError):
    """Reports that the unique key belongs to another job; ``job_id`` is that job's id."""

    code = Code.NOT_UNIQUE

    def __init__(self, message: str, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class KeyConflict(JobQueueError):
    """Reports that the idempotency key belongs to another job, with another payload or type.

    ``job_id`` is the id of that job.
    """

    code = Code.KEY_CONFLICT

    def __init__(self, message: str, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class QueueFull(JobQueueError):
    """Reports that the queue is at capacity, and that nothing was written.

    Try again after ``retry_after`` seconds.
    """

    code = Code.QUEUE_FULL

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(JobQueueError):
    """Reports that the caller exceeds its rate or another limit, and that nothing was written.

    Try again after ``retry_after`` seconds.
    """

    code = Code.RATE_LIMITED

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(JobQueueError):
    """Reports that the call had no effect, because the store or server could not serve it.

    Repeating the call is safe.
    """

    code = Code.UNAVAILABLE


class Unreachable(Unavailable):
    """Reports that the call had no effect because the connection to the server is lost."""


class KeyHeld(Unavailable):
    """Reports that an open transaction of another program holds the idempotency key.

    The job was not submitted. When that transaction ends, the key is either taken or free.
    """


class OutcomeUnknown(JobQueueError):
    """Reports that the answer to the call was lost, so the call may have had an effect.

    Repeat a submit only with an idempotency key.
    """

    code = Code.OUTCOME_UNKNOWN


class DeadlineExceeded(JobQueueError):
    """Reports that the caller's deadline passed before the answer."""

    code = Code.DEADLINE_EXCEEDED


class Unauthenticated(JobQueueError):
    """Reports that the caller sent no credential, or a credential that is not valid."""

    code = Code.UNAUTHENTICATED


class PermissionDenied(JobQueueError):
    """Reports that the caller is known but may not make this call."""

    code = Code.PERMISSION_DENIED


class JobFailed(JobQueueError):
    """Reports that a job ended without a result; ``reason`` and ``error`` say why."""

    code = Code.JOB_FAILED

    def __init__(self, job_id: str, reason: str, error: str) -> None:
        super().__init__(f"job {job_id} was dead-lettered ({reason}): {error or 'no error text'}")
        self.job_id = job_id
        self.reason = reason
        self.error = error


class Internal(JobQueueError):
    """Reports a defect in jobqueue itself."""

    code = Code.INTERNAL


class UnknownCall(Internal):
    """Reports that the server does not know a call, because its version is older."""
