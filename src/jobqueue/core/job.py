"""What travels between the parts: jobs, specs, assignments, transitions, events."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeVar

from jobqueue.core.errors import InvalidArgument, JobQueueError, KeyConflict, without_trace
from jobqueue.core.key_owner import stored_key
from jobqueue.core.lifecycle import FAILURES, REPORTABLE, Move, Reason, State, Step
from jobqueue.core.progress import Progress
from jobqueue.core.queue import QueueSettings

T = TypeVar("T")

DEFAULT_QUEUE = "default"
MAX_PAGE = 1_000  # jobs in one answer, on every face
MAX_HISTORY = 500  # transitions of a job in one answer, on every face
MAX_VERSION = 2**31 - 1  # of a job: its transitions are numbered from 1
MAX_ERROR_BYTES = 8 * 1024  # of the text that an attempt ended with
NO_LABELS: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True, kw_only=True)
class JobSpec:
    """A job as a client asks for it. ``None`` means: what the queue says."""

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
    key_owner: str = ""  # a caller's name; empty: the key is everybody's

    @property
    def stored_key(self) -> str | None:
        """The key as stores keep it."""
        return None if self.key is None else stored_key(self.key_owner, self.key)

    @property
    def shared_key(self) -> str | None:
        """Of a key with an owner: the equal key that is everybody's. If it is taken, it counts."""
        return stored_key("", self.key) if self.key_owner and self.key is not None else None

    def accepted(self, queue: QueueSettings, now: float) -> JobSpec:
        """The spec with what its queue says where it does not, and with a time for a delay."""
        accepted = JobSpec(  # one by one: this is done for every job
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
        for name in MORE:
            setattr(accepted, name, getattr(self, name))
        return accepted

    def more(self) -> dict[str, Any]:
        """The fields of ``MORE``, by name."""
        return {name: getattr(self, name) for name in MORE}

    def fingerprint(self) -> bytes:
        """What must be equal for two submits with one key to be the same request."""
        digest = hashlib.blake2b(self.payload, digest_size=16)
        digest.update(b"\0" + self.type.encode())
        return digest.digest()


COMMON = (
    "payload", "queue", "type", "priority", "max_retries", "ttl", "delay", "run_at", "timeout",
    "key", "labels", "key_owner",
)  # fmt: skip
"""The fields that are searched, or that every job has: columns in SQL, and named one by one where
every job passes."""
MORE = tuple(one.name for one in fields(JobSpec) if one.name not in COMMON)
"""All others, where a new one goes. Stores, messages and documents carry these by this list."""


@dataclass(slots=True)
class NewJob:
    """A validated spec under the id it will have."""

    id: str
    spec: JobSpec


class SubmitStatus(enum.Enum):
    """What became of one submitted spec."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # same key, same payload: job_id is the original
    REFUSED = "refused"  # error says why; nothing was written


@dataclass(slots=True)
class SubmitResult:
    """The answer to one submitted spec."""

    status: SubmitStatus
    job_id: str = ""
    error: JobQueueError | None = None

    def unwrap(self) -> str:
        """Return the job's id, or raise why there is none."""
        if self.error is not None:
            raise self.error
        return self.job_id

    @classmethod
    def accepted(cls, job_id: str) -> SubmitResult:
        """The job was written."""
        return cls(SubmitStatus.ACCEPTED, job_id)

    @classmethod
    def duplicate(cls, job_id: str) -> SubmitResult:
        """An equal job exists under this key."""
        return cls(SubmitStatus.DUPLICATE, job_id)

    @classmethod
    def conflict(cls, job_id: str, key: str) -> SubmitResult:
        """Another payload exists under this key."""
        message = f"idempotency_key: {key!r} was used for job {job_id} with another payload or type"
        return cls(SubmitStatus.REFUSED, job_id, KeyConflict(message, job_id))

    @classmethod
    def refused(cls, error: JobQueueError) -> SubmitResult:
        """Nothing was written."""
        return cls(SubmitStatus.REFUSED, "", without_trace(error))


class _OfSpec:
    """What people ask most of a job's spec, without naming it."""

    __slots__ = ()
    spec: JobSpec

    @property
    def queue(self) -> str:
        """Its queue."""
        return self.spec.queue

    @property
    def type(self) -> str:
        """The task's name."""
        return self.spec.type

    @property
    def payload(self) -> bytes:
        """What it works on."""
        return self.spec.payload

    @property
    def priority(self) -> int:
        """0 to 9, 9 first."""
        return self.spec.priority

    @property
    def max_retries(self) -> int:
        """Retries at most: its own, or those of its queue when it was accepted."""
        return self.spec.max_retries or 0

    @property
    def timeout(self) -> float | None:
        """Seconds that one attempt may run."""
        return self.spec.timeout

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        return self.spec.labels


@dataclass(slots=True, kw_only=True)
class Job(_OfSpec):
    """The whole record of a job, as ``get`` and ``list`` show it. Times are epoch seconds."""

    id: str
    seq: int  # the store's own number: FIFO order, and what transitions name
    # As it was accepted (``JobSpec.accepted``); a retry by hand takes ``run_at`` away.
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
    # Why it does not go on, for people: set by the engine when a single job is read.
    hint: str = ""
    progress: Progress | None = None  # of the attempt that runs; None: it said nothing yet

    def __post_init__(self) -> None:
        self.set_start(self.started_at)

    @property
    def run_at(self) -> float | None:
        """When it may start."""
        return self.spec.run_at

    @property
    def ttl(self) -> float | None:
        """Seconds after its submit in which it must start."""
        return self.spec.ttl

    @property
    def key(self) -> str | None:
        """Its idempotency key."""
        return self.spec.key

    def set_start(self, at: float | None) -> None:
        """Note when the attempt began.

        A start is counted back from its end by what the worker says that it took. No job began
        before it was there, whatever a worker says.
        """
        self.started_at = at if at is None else max(at, self.created_at)


@dataclass(slots=True)
class Assignment(_OfSpec):
    """One attempt at a job, handed to a worker."""

    seq: int
    id: str
    spec: JobSpec  # as it was accepted; a worker is not told everything
    attempt: int
    lease: int
    worker_id: str
    retry_count: int
    created_at: float
    expires_in: float | None = None  # seconds until the TTL ends, counted from delivery
    deaths: int = 0  # workers that died while they held the job


@dataclass(slots=True)
class Event:
    """One transition, as it happened. ``(job_id, version)`` is its identity."""

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
    """How many transitions of a job are older than these: they are numbered from 1."""
    return events[0].version - 1 if events else 0


def check_before_version(version: int | None) -> None:
    """Refuse what can be no transition's number."""
    if version is not None and not 1 <= version <= MAX_VERSION:
        raise InvalidArgument("before_version", f"must be 1 to {MAX_VERSION}")


def bounded(text: str, limit: int = MAX_ERROR_BYTES) -> str:
    """Cut a text to so many bytes; what cannot be encoded is replaced."""
    if len(text) <= limit and text.isascii():
        return text
    raw = text[: limit + 1].encode(errors="replace")  # a letter takes a byte or more
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - 3].decode(errors="ignore") + "…"


@dataclass(slots=True)
class Transition:
    """A move asked of the store. Use the named constructors."""

    seq: int
    move: Move
    lease: int | None = None  # fenced moves
    version: int | None = None  # only if nothing happened since somebody looked
    result: bytes | None = None
    error: str = ""
    retryable: bool = True
    retry_after: float | None = None  # overrides the backoff
    ran_for: float | None = None  # seconds, by the worker's monotonic clock
    worker_id: str | None = None  # of a report: who must hold the lease

    def __post_init__(self) -> None:
        # A lone surrogate (an undecodable file name in an exception) and a NUL cannot be stored
        # everywhere, and a report must not fail for its text. Whoever made it, it is kept with
        # each attempt, so it is cut here.
        if self.error:
            self.error = bounded(self.error.replace("\0", "\ufffd"))

    @property
    def by_others(self) -> bool:
        """Whether, if it ends a lease, that may be news to the worker that holds it."""
        return self.move not in REPORTABLE or self.version is not None

    @classmethod
    def started(cls, seq: int, lease: int) -> Transition:
        """The worker began to execute."""
        return cls(seq, Move.START, lease)

    @classmethod
    def succeeded(
        cls, seq: int, lease: int, result: bytes | None, ran_for: float | None = None
    ) -> Transition:
        """The handler returned."""
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
        """The handler raised."""
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
        """The attempt ran longer than its timeout."""
        return cls(
            seq,
            Move.TIME_OUT,
            lease,
            error=error or "timed out",
            retry_after=retry_after,
            ran_for=ran_for,
        )

    @classmethod
    def cancel_acknowledged(cls, seq: int, lease: int, ran_for: float | None = None) -> Transition:
        """The handler stopped because the job was cancelled."""
        return cls(seq, Move.ACKNOWLEDGE_CANCEL, lease, error="cancelled", ran_for=ran_for)

    @classmethod
    def handed_back(cls, seq: int, lease: int) -> Transition:
        """The worker returns a job that it has not started."""
        return cls(seq, Move.HAND_BACK, lease)

    @classmethod
    def worker_lost(cls, seq: int, lease: int, error: str) -> Transition:
        """The worker that held the lease is gone."""
        return cls(seq, Move.LOSE_WORKER, lease, error=error)

    @classmethod
    def cancelled(cls, seq: int) -> Transition:
        """A client or operator cancels a job that is not running."""
        return cls(seq, Move.CANCEL)

    @classmethod
    def retried_by_hand(cls, seq: int, version: int | None = None) -> Transition:
        """An operator sends a failed or dead-lettered job back, with its counter reset."""
        return cls(seq, Move.RETRY_BY_HAND, version=version)

    @classmethod
    def dropped_with_queue(cls, seq: int) -> Transition:
        """The job's queue is deleted by force."""
        return cls(seq, Move.DROP_WITH_QUEUE)


class Refusal(enum.Enum):
    """Why a transition did not apply."""

    NO_SUCH_JOB = "no such job"
    WRONG_STATE = "the job's state does not allow it"
    STALE_LEASE = "the lease does not stand any more"
    STALE_VERSION = "the job has moved on"
    NO_QUEUE = "its queue is deleted"


@dataclass(slots=True)
class Outcome:
    """What became of one transition. ``state`` is the state after the call, applied or not."""

    refusal: Refusal | None
    state: State | None = None
    reason: Reason | None = None
    job_id: str = ""
    queue: str = ""
    lease: int | None = None  # the lease that the transition ended, if any
    worker_id: str | None = None
    ran_for: float | None = None
    due: float | None = None  # of a FAILED job: when it is retried
    steps: tuple[Step, ...] = ()  # every state that was entered, in order

    @property
    def applied(self) -> bool:
        """Whether the transition was written."""
        return self.refusal is None


class WorkerStatus(enum.StrEnum):
    """What an operator sees of a worker."""

    ONLINE = "ONLINE"
    DRAINING = "DRAINING"  # finishes what it runs, gets no more
    STOPPING = "STOPPING"  # drains, then exits
    OFFLINE = "OFFLINE"  # silent beyond the timeout, or gone

    def may_become(self, status: WorkerStatus) -> bool:
        """Whether an operator's word can bring it there: a stop is not taken back."""
        return status in (WorkerStatus.STOPPING, WorkerStatus.OFFLINE) or self in (
            WorkerStatus.ONLINE,
            WorkerStatus.DRAINING,
        )


IN_PROCESS = "\tin process"
"""The owner of a worker that has the store open itself. The names of callers are printable, so that
none of them is called that."""


def owner_allows(owner: str, asking: str) -> bool:
    """Whether a caller may use a worker's registration, by the owner that the store remembers.

    A caller without a name is one of a server where nobody has to say who they are. Who has the
    store open itself may do everything: no caller can keep a server's own pool from starting.
    Without an owner the worker was registered by one of those without a name, or by an older
    version: it belongs to whoever comes next.
    """
    return asking in ("", IN_PROCESS) or owner in ("", asking)


def shown_owner(owner: str) -> str:
    """The owner as operators see it: the name of a caller, or nothing."""
    return "" if owner == IN_PROCESS else owner


def is_limited(owner: str) -> bool:
    """Whether the workers of this owner are counted: it is a caller that has a name."""
    return bool(shown_owner(owner))


@dataclass(slots=True, kw_only=True)
class WorkerInfo:
    """A worker as it registers. ``incarnation`` is random per process."""

    id: str
    incarnation: int
    hostname: str
    pid: int
    concurrency: int
    queues: tuple[str, ...]
    version: str = ""
    # A server's own pool without the user's tasks: it leaves a queue alone that another worker
    # connected to that server takes from, since that one may mean something else by the same name.
    fallback: bool = False
    # The task types that it knows: it gets no other jobs. None: every type.
    types: frozenset[str] | None = None
    # Drawn by the engine at each registration: the latest one tells which server the worker is
    # connected to, so that a server that has not noticed the loss of its link learns of it.
    link: int = 0
    # The name of the caller that registered it: others may not use its id until it is OFFLINE.
    # Empty: nobody had to say who they are. Set by the face, never by the worker.
    owner: str = IN_PROCESS


@dataclass(slots=True, kw_only=True)
class Worker:
    """A worker as the store knows it."""

    info: WorkerInfo
    status: WorkerStatus
    registered_at: float
    last_seen: float
    running: int = 0  # jobs held: ASSIGNED or RUNNING
    overrun: int = 0  # slots of attempts that are over, and whose function still runs
    partition: int | None = None  # where it hears of its jobs by Kafka; None: it is connected
    withheld: int = 0  # of such a worker: slots that get nothing, although no lease is held there
    queues_left_out: int = 0  # of ``info.queues``, in a list that would be too long with them
    types_left_out: int = 0  # the same of ``info.types``


@dataclass(slots=True)
class Held:
    """One lease in force."""

    seq: int
    lease: int
    worker_id: str
    state: State
    cancel_requested: bool = False


@dataclass(slots=True)
class Pulse:
    """The answer to a heartbeat."""

    known: bool  # False: register again
    status: WorkerStatus = WorkerStatus.ONLINE
    cancelled: list[int] = field(default_factory=list)  # leases to stop: cancel was requested
    lost: list[int] = field(default_factory=list)  # leases that do not stand any more
    unlisted: list[Held] = field(default_factory=list)  # leases that stand but were not listed

    @classmethod
    def answer(
        cls, status: WorkerStatus, listed: Sequence[int], standing: Mapping[int, Held]
    ) -> Pulse:
        """To a worker that lists its leases, by those that stand."""
        made = cls(True, status)
        unlisted = dict(standing)
        for lease in listed:
            one = unlisted.pop(lease, None)
            if one is None:
                made.lost.append(lease)
            elif one.cancel_requested:
                made.cancelled.append(lease)
        made.unlisted = list(unlisted.values())
        return made


@dataclass(slots=True, kw_only=True)
class JobQuery:
    """Which jobs to list, newest first."""

    queue: str | None = None
    states: tuple[State, ...] = ()
    type: str | None = None
    reasons: tuple[Reason, ...] = ()  # of the latest transition; none: all
    error: str = ""  # is part of the job's error text
    since: float | None = None  # it ended at this time or later
    until: float | None = None  # it ended before this time
    limit: int = 20
    page_token: str = ""


@dataclass(slots=True, kw_only=True)
class RetryQuery:
    """Which dead letters to send back. Only failures, unless other reasons are named."""

    queue: str | None = None
    type: str | None = None
    reasons: tuple[Reason, ...] = tuple(sorted(FAILURES))
    error: str = ""  # is part of the job's error text
    since: float | None = None  # it was dead-lettered at this time or later
    until: float | None = None  # it was dead-lettered before this time
    page_token: str = ""
    dry_run: bool = False  # only count


@dataclass(slots=True)
class NotRetried:
    """A dead letter that matched and could not be sent back."""

    job_id: str
    message: str


@dataclass(slots=True)
class Retried:
    """What one call did: it looks at a bounded number of dead letters, newest first."""

    looked_at: int
    matched: int
    retried: int  # 0 in a dry run
    refused: list[NotRetried] = field(default_factory=list)
    next_page_token: str = ""  # empty: there are no more


@dataclass(slots=True, kw_only=True)
class TimeQuery:
    """Which jobs to list by the millisecond of their creation; within one, by id, ascending.

    For readers that count what they have seen. Pages shift when jobs come or go in between.
    """

    queue: str
    type: str
    states: tuple[State, ...] = ()  # none: all
    cancelled: bool | None = None  # of dead letters: those that were cancelled, or the others
    ascending: bool = False
    offset: int = 0
    limit: int = 20


@dataclass(slots=True)
class Page:
    """One page of jobs; an empty token says it is the last."""

    jobs: list[Job]
    next_page_token: str = ""


@dataclass(slots=True)
class Cancellation:
    """The answer to a cancel."""

    state: State
    requested: bool  # True: it runs, and its worker was asked to stop
    already_terminal: bool = False


@dataclass(slots=True)
class ComponentHealth:
    """One part of the system, as ``status`` shows it."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(slots=True)
class Health:
    """Whether the server can do its work, part by part."""

    ok: bool
    version: str
    components: list[ComponentHealth]

    @property
    def status(self) -> str:
        """``ok``, ``degraded`` (it does its work, slower) or ``failing``."""
        if not self.ok:
            return "failing"
        return "ok" if all(part.ok for part in self.components) else "degraded"
