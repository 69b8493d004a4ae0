"""Define the records that the parts of the system exchange: jobs, moves, workers and queries."""

from __future__ import annotations

import enum
import hashlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeVar

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.errors import (
    InvalidArgument,
    JobQueueError,
    KeyConflict,
    NotUnique,
    without_trace,
)
from jobqueue.core.ids import stored_key
from jobqueue.core.lifecycle import FAILURES, REPORTABLE, Move, Reason, State, Step
from jobqueue.core.progress import Progress
from jobqueue.core.queue import QueueSettings
from jobqueue.core.unique import REJECT, UniqueKey

T = TypeVar("T")

DEFAULT_QUEUE = "default"
MAX_PAGE = 1_000  # jobs in one answer, on every face
MAX_HISTORY = 500  # transitions of a job in one answer, on every face
MAX_VERSION = 2**31 - 1  # of a job: its transitions are numbered from 1
MAX_SEQ = 2**53 - 1  # of a job: Redis computes with floating-point numbers
MAX_ERROR_BYTES = 8 * 1024  # of the text that an attempt ended with
SUSPECT_AFTER = 2  # workers that died while they had a job: the next one runs it alone
NO_LABELS: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True, kw_only=True)
class JobSpec:
    """Everything that the submitter said about a job; None stands for the queue's setting."""

    payload: bytes
    queue: str = DEFAULT_QUEUE
    type: str = ""
    priority: int = 0
    max_retries: int | None = None
    ttl: float | None = None
    delay: float | None = None  # seconds from now by the store's clock
    run_at: float | None = None  # epoch seconds; at most one of delay and run_at
    timeout: float | None = None
    key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    key_owner: str = ""  # a caller's name; empty: all callers share the key
    unique: UniqueKey | None = None  # None: any number of equal jobs
    # The queue's limits and shares of keys count the jobs of equal keys together; None: no key.
    concurrency_key: str | None = None

    @property
    def stored_key(self) -> str | None:
        return None if self.key is None else stored_key(self.key_owner, self.key)

    @property
    def shared_key(self) -> str | None:
        """Return the key without its owner, or None if the spec's key has no owner.

        This submit is also a duplicate of a job that was submitted under the key without owner.
        """
        return stored_key("", self.key) if self.key_owner and self.key is not None else None

    def accepted(self, queue: QueueSettings, now: float) -> JobSpec:
        """Return the spec with the queue's settings in place of None, and a delay as ``run_at``."""
        accepted = JobSpec(  # field by field, because a generic copy is slow for every job
            payload=self.payload,
            queue=self.queue,
            type=self.type,
            priority=self.priority,
            max_retries=queue.max_retries if self.max_retries is None else self.max_retries,
            ttl=queue.ttl if self.ttl is None else self.ttl,
            run_at=self.run_at if self.delay is None else now + self.delay,
            timeout=queue.timeout if self.timeout is None else self.timeout,
            key=self.key,
            labels=self.labels,
            key_owner=self.key_owner,
        )
        if _more_of(self) != _NO_MORE:
            for name in MORE:
                setattr(accepted, name, getattr(self, name))
        return accepted

    @property
    def says_more(self) -> bool:
        """Return True if a field in ``MORE`` has another value than its default."""
        return bool(_more_of(self) != _NO_MORE)

    def more(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in MORE}

    def fingerprint(self) -> bytes:
        """Return a hash of the type and the payload.

        Two submits under one idempotency key are the same job if their fingerprints are equal. If a
        function in a database wrote the key, its fingerprint is the hash of ``sha256``.
        """
        digest = hashlib.blake2b(self.payload, digest_size=16)
        digest.update(b"\0" + self.type.encode())
        return digest.digest()

    def sha256(self) -> bytes:
        """Return a hash of the same data as ``fingerprint``, which SQL can compute as well.

        It is longer, so the two are never equal.
        """
        return hashlib.sha256(self.payload + b"\0" + self.type.encode()).digest()


COMMON = (
    "payload", "queue", "type", "priority", "max_retries", "ttl", "delay", "run_at", "timeout",
    "key", "labels", "key_owner",
)  # fmt: skip
"""The fields that queries search or that every job has. They are columns in SQL, and hot functions
list each of them by name."""
MORE = tuple(one.name for one in fields(JobSpec) if one.name not in COMMON)
"""All other fields, including new ones. Stores, messages and documents copy them by this list."""
_more_of = operator.attrgetter(*MORE)  # faster than a loop, for jobs that have none of them
_NO_MORE = _more_of(JobSpec(payload=b""))


@dataclass(slots=True)
class NewJob:
    """A validated spec and the id of the job to create."""

    id: str
    spec: JobSpec


class SubmitStatus(enum.Enum):
    """The status of a submitted spec."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # the key and the payload are those of the job ``job_id``
    EXISTING = "existing"  # the job ``job_id`` has the unique key
    REFUSED = "refused"  # nothing was written; ``error`` says why


@dataclass(slots=True)
class SubmitResult:
    """The result for one submitted spec: a job id, or the error that refused the spec."""

    status: SubmitStatus
    job_id: str = ""
    error: JobQueueError | None = None

    def unwrap(self) -> str:
        if self.error is not None:
            raise self.error
        return self.job_id

    @classmethod
    def accepted(cls, job_id: str) -> SubmitResult:
        return cls(SubmitStatus.ACCEPTED, job_id)

    @classmethod
    def duplicate(cls, job_id: str) -> SubmitResult:
        return cls(SubmitStatus.DUPLICATE, job_id)

    @classmethod
    def conflict(cls, job_id: str, key: str) -> SubmitResult:
        message = f"idempotency_key: {key!r} was used for job {job_id} with another payload or type"
        return cls(SubmitStatus.REFUSED, job_id, KeyConflict(message, job_id))

    @classmethod
    def not_unique(cls, unique: UniqueKey, job_id: str) -> SubmitResult:
        """Return the result if the job ``job_id`` has the key and is not replaced."""
        if unique.on_conflict != REJECT:
            return cls(SubmitStatus.EXISTING, job_id)
        message = f"unique.key: {unique.key!r} belongs to job {job_id}"
        return cls(SubmitStatus.REFUSED, job_id, NotUnique(message, job_id))

    @classmethod
    def refused(cls, error: JobQueueError) -> SubmitResult:
        return cls(SubmitStatus.REFUSED, "", without_trace(error))


class _OfSpec:
    """Gives jobs and assignments properties that read the fields of their spec."""

    __slots__ = ()
    spec: JobSpec

    @property
    def queue(self) -> str:
        return self.spec.queue

    @property
    def type(self) -> str:
        return self.spec.type

    @property
    def payload(self) -> bytes:
        return self.spec.payload

    @property
    def priority(self) -> int:
        return self.spec.priority

    @property
    def max_retries(self) -> int:
        return self.spec.max_retries or 0

    @property
    def timeout(self) -> float | None:
        return self.spec.timeout

    @property
    def labels(self) -> Mapping[str, str]:
        return self.spec.labels


@dataclass(slots=True, kw_only=True)
class Job(_OfSpec):
    """The complete record of a job, as ``get`` and ``list_jobs`` return it.

    Times are in seconds since the epoch.
    """

    id: str
    # The job's number in its store. Numbers grow in the order of submission; moves name the job by
    # its number.
    seq: int
    # The accepted spec (``JobSpec.accepted``); a retry by hand removes ``run_at``.
    spec: JobSpec
    state: State
    version: int
    attempt: int
    retry_count: int
    created_at: float
    updated_at: float  # when the latest transition was written
    expires_at: float | None = None
    worker_id: str | None = None
    cancel_requested: bool = False
    started_at: float | None = None  # of the latest attempt
    completed_at: float | None = None
    next_retry_at: float | None = None  # while FAILED
    result: bytes | None = None
    error: str = ""
    reason: Reason = Reason.SUBMITTED  # of the latest transition
    hint: str = ""  # why the job waits, for people; set by the engine when a single job is read
    progress: Progress | None = None  # of the running attempt; None: nothing reported yet

    def __post_init__(self) -> None:
        # The start is the end minus the run time that the worker reports. That run time may be
        # wrong, but no job starts before its creation.
        if self.started_at is not None:
            self.started_at = max(self.started_at, self.created_at)

    @property
    def run_at(self) -> float | None:
        return self.spec.run_at

    @property
    def ttl(self) -> float | None:
        return self.spec.ttl

    @property
    def key(self) -> str | None:
        return self.spec.key


@dataclass(slots=True)
class Assignment(_OfSpec):
    """One attempt of a job, as it is sent to a worker."""

    seq: int
    id: str
    spec: JobSpec  # as it was accepted; some fields are not sent to workers
    attempt: int
    lease: int
    worker_id: str
    retry_count: int
    created_at: float
    expires_in: float | None = None  # seconds until the TTL ends, counted from delivery
    deaths: int = 0  # workers that died while they held the job


@dataclass(slots=True)
class Event:
    """The record of one transition of a job. ``(job_id, version)`` identifies the event."""

    job_id: str
    version: int
    from_state: State | None
    to_state: State
    reason: Reason
    at: float
    attempt: int
    worker_id: str | None = None
    detail: str = ""
    queue: str = ""


def older(events: Sequence[Event]) -> int:
    """Return the number of the job's transitions before the first of these events.

    Versions begin at 1.
    """
    return events[0].version - 1 if events else 0


def check_before_version(version: int | None) -> None:
    if version is not None and not 1 <= version <= MAX_VERSION:
        raise InvalidArgument("before_version", f"must be 1 to {MAX_VERSION}")


def bounded(text: str, limit: int = MAX_ERROR_BYTES) -> str:
    """Cut a text to at most ``limit`` bytes, and replace characters that cannot be encoded."""
    if len(text) <= limit and text.isascii():
        return text
    raw = text[: limit + 1].encode(errors="replace")  # a letter takes a byte or more
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - 3].decode(errors="ignore") + "…"


@dataclass(slots=True)
class Transition:
    """A requested move of a job. Create transitions with the named constructors."""

    seq: int
    move: Move
    lease: int | None = None  # fenced moves
    version: int | None = None  # refuse the move if the job has another version
    result: bytes | None = None
    error: str = ""
    retryable: bool = True
    retry_after: float | None = None  # overrides the backoff
    ran_for: float | None = None  # seconds, by the worker's monotonic clock
    worker_id: str | None = None  # refuse the move if another worker holds the lease

    def __post_init__(self) -> None:
        # Some stores cannot store a NUL or a lone surrogate (from an undecodable file name in an
        # exception), and a report must not fail because of its text. The text is cut because it is
        # stored for each attempt.
        if self.error:
            self.error = bounded(self.error.replace("\0", "\ufffd"))

    @property
    def by_others(self) -> bool:
        """Return True unless the move looks like the worker's own report.

        If True, the worker must be notified, because the move may end its lease.
        """
        # A worker's reports never name a version.
        return self.move not in REPORTABLE or self.version is not None

    @classmethod
    def started(cls, seq: int, lease: int) -> Transition:
        return cls(seq, Move.START, lease)

    @classmethod
    def succeeded(
        cls, seq: int, lease: int, result: bytes | None, ran_for: float | None = None
    ) -> Transition:
        return cls(seq, Move.SUCCEED, lease, None, result, "", True, None, ran_for)

    @classmethod
    def failed(
        cls,
        seq: int,
        lease: int,
        error: str,
        *,
        retryable: bool = True,
        retry_after: float | None = None,
        ran_for: float | None = None,
    ) -> Transition:
        return cls(seq, Move.FAIL, lease, None, None, error, retryable, retry_after, ran_for)

    @classmethod
    def timed_out(
        cls,
        seq: int,
        lease: int,
        error: str = "",
        ran_for: float | None = None,
        retry_after: float | None = None,
    ) -> Transition:
        error = error or "timed out"
        return cls(seq, Move.TIME_OUT, lease, None, None, error, True, retry_after, ran_for)

    @classmethod
    def cancel_acknowledged(cls, seq: int, lease: int, ran_for: float | None = None) -> Transition:
        return cls(seq, Move.ACKNOWLEDGE_CANCEL, lease, error="cancelled", ran_for=ran_for)

    @classmethod
    def handed_back(cls, seq: int, lease: int) -> Transition:
        return cls(seq, Move.HAND_BACK, lease)

    @classmethod
    def worker_lost(cls, seq: int, lease: int, error: str) -> Transition:
        return cls(seq, Move.LOSE_WORKER, lease, error=error)

    @classmethod
    def cancelled(cls, seq: int) -> Transition:
        return cls(seq, Move.CANCEL)

    @classmethod
    def superseded(cls, seq: int, by: str) -> Transition:
        """Return the move of a waiting job whose place the job with the id ``by`` takes."""
        return cls(seq, Move.SUPERSEDE, error=f"superseded by job {by}")

    @classmethod
    def retried_by_hand(cls, seq: int, version: int | None = None) -> Transition:
        """Return the move of a failed job or dead letter to PENDING, with its retries reset."""
        return cls(seq, Move.RETRY_BY_HAND, version=version)

    @classmethod
    def dropped_with_queue(cls, seq: int) -> Transition:
        return cls(seq, Move.DROP_WITH_QUEUE)


class Refusal(enum.Enum):
    """The reason for which a move was not made."""

    NO_SUCH_JOB = "no such job"
    WRONG_STATE = "the job's state does not allow it"
    STALE_LEASE = "the lease is not in force any more"
    STALE_VERSION = "the job has moved on"
    NO_QUEUE = "its queue is deleted"
    LOCKED = "a database transaction that has not ended is changing it"


@dataclass(slots=True)
class Outcome:
    """The result of one requested move.

    ``state`` is the job's state after the call, also if the move was refused.
    """

    refusal: Refusal | None
    state: State | None = None
    reason: Reason | None = None
    job_id: str = ""
    queue: str = ""
    lease: int | None = None  # that the move ended
    worker_id: str | None = None
    ran_for: float | None = None
    due: float | None = None  # of a FAILED job: when it is retried
    steps: tuple[Step, ...] = ()  # every state that was entered, in order

    @property
    def applied(self) -> bool:
        return self.refusal is None

    @property
    def is_locked(self) -> bool:
        """Return True if another transaction, which may stay open, is changing the job."""
        return self.refusal is Refusal.LOCKED


class WorkerStatus(enum.StrEnum):
    """The status of a worker, as operators see it."""

    ONLINE = "ONLINE"
    DRAINING = "DRAINING"  # finishes its jobs, gets no more
    STOPPING = "STOPPING"  # drains, then exits
    OFFLINE = "OFFLINE"  # silent beyond the timeout, or gone

    def may_become(self, status: WorkerStatus) -> bool:
        """Return True if an operator may change this status to ``status``.

        A worker that is STOPPING or OFFLINE cannot return to ONLINE or DRAINING.
        """
        ending = (WorkerStatus.STOPPING, WorkerStatus.OFFLINE)
        return status in ending or self not in ending


IN_PROCESS = "\tin process"
"""The owner of a worker that opens the store directly. No caller can have this name."""


def owner_allows(owner: str, asking: str) -> bool:
    """Return True if the caller ``asking`` may use a worker that ``owner`` has registered.

    A caller may use its own workers, and workers without an owner. A caller without a name (on a
    server without authentication) and a process that opens the store directly may use every worker.
    Otherwise a caller could take the id of a server's own worker, which then could not start.
    """
    return asking in ("", IN_PROCESS) or owner in ("", asking)


def shown_owner(owner: str) -> str:
    """Return the owner if it is the name of a caller, else an empty text."""
    return "" if owner == IN_PROCESS else owner


def is_limited(owner: str) -> bool:
    """Return True if ``owner`` is the name of a caller, whose number of workers is limited."""
    return bool(shown_owner(owner))


@dataclass(slots=True, kw_only=True)
class WorkerInfo:
    """The data that a worker registers with. ``incarnation`` is a random number per process."""

    id: str
    incarnation: int
    hostname: str
    pid: int
    concurrency: int
    queues: tuple[str, ...]
    version: str = ""
    # True for the worker of a server without the user's tasks. It gets no jobs from queues that
    # another worker of the server serves, because that worker may have another task of that name.
    fallback: bool = False
    # The task types that the worker knows; it gets jobs of these types only. None: every type.
    types: frozenset[str] | None = None
    # A random number that the engine draws at each registration. A server compares it to learn that
    # a worker has connected to another server.
    link: int = 0
    # The name of the caller that registered the worker, set by the face. Until the worker is
    # OFFLINE, no other caller may use its id. Empty: the server does not authenticate callers.
    owner: str = IN_PROCESS


@dataclass(slots=True, kw_only=True)
class Worker:
    """The store's record of a worker."""

    info: WorkerInfo
    status: WorkerStatus
    registered_at: float
    last_seen: float
    running: int = 0  # jobs held: ASSIGNED or RUNNING
    overrun: int = 0  # slots in which the function of an attempt that is over still runs
    partition: int | None = None  # of its hints in Kafka; None: the worker has a link to a server
    withheld: int = 0  # slots of a worker with a partition that are not free, without any lease
    queues_left_out: int = 0  # names omitted from ``info.queues`` to shorten a list of workers
    types_left_out: int = 0  # names omitted from ``info.types`` for the same reason
    breakers: tuple[OpenBreaker, ...] = ()  # of types that it has paused (core/breaker.py)


@dataclass(slots=True)
class Held:
    """A lease in force, with its job and its worker."""

    seq: int
    lease: int
    worker_id: str
    state: State
    cancel_requested: bool = False


@dataclass(slots=True)
class Pulse:
    """The store's answer to a worker's heartbeat."""

    known: bool  # False: the worker must register again
    status: WorkerStatus = WorkerStatus.ONLINE
    cancelled: list[int] = field(default_factory=list)  # leases to stop: cancel was requested
    lost: list[int] = field(default_factory=list)  # listed leases that are not in force
    unlisted: list[Held] = field(default_factory=list)  # leases in force that were not listed


@dataclass(slots=True, kw_only=True)
class JobConditions:
    """Conditions by which jobs are selected; a condition that is not given selects every job."""

    queue: str | None = None
    type: str | None = None
    reasons: tuple[Reason, ...] = ()  # of the latest transition
    error: str = ""  # a part of the error text, with equal case
    since: float | None = None  # jobs that ended at this time or later
    until: float | None = None  # jobs that ended before this time

    def conditions(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(JobConditions)}


@dataclass(slots=True, kw_only=True)
class JobQuery(JobConditions):
    """A query for a page of jobs, newest first."""

    states: tuple[State, ...] = ()
    limit: int = 20
    page_token: str = ""


@dataclass(slots=True, kw_only=True)
class RetryQuery(JobConditions):
    """Selects dead letters to retry, delete or group.

    By default these are the dead letters with a reason in ``FAILURES``.
    """

    reasons: tuple[Reason, ...] = tuple(sorted(FAILURES))
    page_token: str = ""
    dry_run: bool = False  # only count


@dataclass(slots=True)
class NotRetried:
    """A dead letter that matched the query but could not be retried, with the reason."""

    job_id: str
    message: str


@dataclass(slots=True)
class Retried:
    """The result of one ``retry_dead_letters`` call, which reads a bounded number of jobs."""

    looked_at: int
    matched: int
    retried: int  # 0 in a dry run
    refused: list[NotRetried] = field(default_factory=list)
    next_page_token: str = ""  # empty: there are no more


@dataclass(slots=True)
class NotDeleted:
    """A dead letter that matched the query but could not be deleted, with the reason."""

    job_id: str
    message: str


@dataclass(slots=True)
class Deleted:
    """The result of one ``delete_dead_letters`` call, which reads a bounded number of jobs."""

    looked_at: int
    matched: int
    deleted: int  # 0 in a dry run
    refused: list[NotDeleted] = field(default_factory=list)
    next_page_token: str = ""  # empty: there are no more


MAX_ERROR_HEAD = 400  # characters of an error in a DeadLetterCause


@dataclass(slots=True, kw_only=True)
class DeadLetterCause:
    """The cause of a dead letter, without the payload and the result of the job."""

    seq: int
    version: int
    id: str
    queue: str
    type: str
    reason: Reason
    error: str  # at most the first MAX_ERROR_HEAD characters
    at: float  # when the job was given up


@dataclass(slots=True, kw_only=True)
class TimeQuery:
    """A query for a page of jobs that are sorted by the millisecond of their creation.

    The page begins after ``offset`` jobs.
    """

    queue: str
    type: str
    states: tuple[State, ...] = ()  # none: all
    cancelled: bool | None = None  # True: only cancelled dead letters; False: only the others
    ascending: bool = False
    offset: int = 0
    limit: int = 20

    def matches(self, state: State, reason: Reason) -> bool:
        """Return True if the query selects jobs in that state with that reason."""
        if self.states and state not in self.states:
            return False
        if self.cancelled is None or state is not State.DEAD_LETTERED:
            return True
        return (reason is Reason.CANCELLED) is self.cancelled


@dataclass(slots=True)
class Page:
    """One page of jobs. The token of the last page is empty."""

    jobs: list[Job]
    next_page_token: str = ""


@dataclass(slots=True)
class Cancellation:
    """The result of a request to cancel a job."""

    state: State
    requested: bool  # True: the job runs, and its worker gets a request to stop the attempt
    already_terminal: bool = False


@dataclass(slots=True)
class ComponentHealth:
    """Describes the health of one part of the system."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(slots=True)
class Health:
    """Describes the health of a server and of each of its parts."""

    ok: bool
    version: str
    components: list[ComponentHealth]

    @property
    def status(self) -> str:
        """Return ``ok``, ``degraded`` (the server works, but slower) or ``failing``."""
        if not self.ok:
            return "failing"
        return "ok" if all(part.ok for part in self.components) else "degraded"
