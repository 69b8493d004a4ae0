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
from jobqueue.core.retry import RetryPolicy, policy_of

T = TypeVar("T")

DEFAULT_QUEUE = "default"
DEFAULT_MAX_RETRIES = 3
MAX_PRIORITY = 9
MAX_RETRIES = 1_000
MAX_CAPACITY = 1_000_000_000_000
MAX_WEIGHT = 1_000_000  # of a priority
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

    def fingerprint(self) -> bytes:
        """What must be equal for two submits with one key to be the same request."""
        digest = hashlib.blake2b(self.payload, digest_size=16)
        digest.update(b"\0" + self.type.encode())
        return digest.digest()


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


@dataclass(slots=True, kw_only=True)
class Job:
    """The whole record of a job, as ``get`` and ``list`` show it. Times are epoch seconds."""

    id: str
    seq: int  # the store's own number: FIFO order, and what transitions name
    queue: str
    type: str
    payload: bytes
    priority: int
    max_retries: int
    state: State
    version: int
    attempt: int
    retry_count: int
    created_at: float
    updated_at: float  # when the latest transition was written
    run_at: float | None = None
    expires_at: float | None = None
    ttl: float | None = None
    timeout: float | None = None
    key: str | None = None
    key_owner: str = ""  # shown by no face
    labels: Mapping[str, str] = field(default_factory=dict)
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
    def stored_key(self) -> str | None:
        """The key as stores keep it."""
        return None if self.key is None else stored_key(self.key_owner, self.key)

    def set_start(self, at: float | None) -> None:
        """Note when the attempt began.

        A start is counted back from its end by what the worker says that it took. No job began
        before it was there, whatever a worker says.
        """
        self.started_at = at if at is None else max(at, self.created_at)


@dataclass(slots=True)
class Assignment:
    """One attempt at a job, handed to a worker."""

    seq: int
    id: str
    queue: str
    type: str
    payload: bytes
    attempt: int
    lease: int
    worker_id: str
    priority: int
    retry_count: int
    max_retries: int
    created_at: float
    timeout: float | None = None
    expires_in: float | None = None  # seconds until the TTL ends, counted from delivery
    labels: Mapping[str, str] = field(default_factory=dict)
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


@dataclass(slots=True, kw_only=True)
class Queue:
    """A named queue and its defaults."""

    name: str
    max_retries: int = DEFAULT_MAX_RETRIES
    ttl: float | None = None
    timeout: float | None = None
    capacity: int = 0  # PENDING jobs at most; 0 = unbounded
    retry_profile: str = "default"
    retry_base: float | None = None  # these three: None = what the profile says
    retry_max: float | None = None
    retry_jitter: float | None = None
    priority_weights: Mapping[int, int] | None = None
    retention: float | None = (
        None  # seconds DONE jobs are kept; 0: for ever; None: as the server says
    )
    dead_letter_retention: float | None = None  # the same of dead letters
    paused: bool = False
    created_at: float = 0.0

    @property
    def retry_policy(self) -> RetryPolicy:
        """How long its failed jobs wait."""
        return policy_of(self.retry_profile, self.retry_base, self.retry_max, self.retry_jitter)


@dataclass(slots=True, kw_only=True)
class QueueSpec:
    """A queue as an operator asks for it. ``None`` means: what the server is configured to.

    ``retry_base``, ``retry_max`` (seconds) and ``retry_jitter`` (a share, 0 to 1) stand in place
    of the profile's: the first wait, the longest, and how much of a wait is random. ``retention``
    is how many seconds DONE jobs are kept, ``dead_letter_retention`` the same of dead letters; 0
    is for ever, and a queue without them follows the server's settings.
    """

    name: str
    max_retries: int | None = None
    ttl: float | None = None
    timeout: float | None = None
    capacity: int | None = None
    retry_profile: str | None = None
    retry_base: float | None = None
    retry_max: float | None = None
    retry_jitter: float | None = None
    priority_weights: Mapping[int, int] | None = None
    retention: float | None = None
    dead_letter_retention: float | None = None
    paused: bool = False

    def __post_init__(self) -> None:
        _check_kinds({field.name: getattr(self, field.name) for field in fields(self)})

    def resolve(self, defaults: Queue) -> Queue:
        """Fill in what was not said."""
        profile = _or(self.retry_profile, defaults.retry_profile)
        figures = retry_figures(profile, defaults)
        return Queue(
            name=self.name,
            max_retries=_or(self.max_retries, defaults.max_retries),
            ttl=_or(self.ttl, defaults.ttl),
            timeout=_or(self.timeout, defaults.timeout),
            capacity=_or(self.capacity, defaults.capacity),
            retry_profile=profile,
            retry_base=_or(self.retry_base, figures["retry_base"]),
            retry_max=_or(self.retry_max, figures["retry_max"]),
            retry_jitter=_or(self.retry_jitter, figures["retry_jitter"]),
            priority_weights=_or(self.priority_weights, defaults.priority_weights),
            retention=self.retention,
            dead_letter_retention=self.dead_letter_retention,
            paused=self.paused,
        )


def retry_figures(profile: str, defaults: Queue) -> dict[str, float | None]:
    """The server's own figures go with the server's profile; another profile has its own."""
    own = profile == defaults.retry_profile
    names = ("retry_base", "retry_max", "retry_jitter")
    return {name: getattr(defaults, name) if own else None for name in names}


class Keep(enum.Enum):
    """In an update: this setting stays as it is."""

    KEEP = "keep"


KEEP = Keep.KEEP


@dataclass(slots=True, kw_only=True)
class QueueUpdate:
    """What an operator changes of a queue. ``None`` means: what the server is configured to."""

    max_retries: int | Keep | None = KEEP
    ttl: float | Keep | None = KEEP
    timeout: float | Keep | None = KEEP
    capacity: int | Keep | None = KEEP
    retry_profile: str | Keep | None = KEEP
    retry_base: float | Keep | None = KEEP
    retry_max: float | Keep | None = KEEP
    retry_jitter: float | Keep | None = KEEP
    priority_weights: Mapping[int, int] | Keep | None = KEEP
    retention: float | Keep | None = KEEP
    dead_letter_retention: float | Keep | None = KEEP

    def __post_init__(self) -> None:
        _check_kinds(self.named())

    def named(self) -> dict[str, Any]:
        """The settings that it changes, by name."""
        said = {name: getattr(self, name) for name in UPDATABLE}
        return {name: value for name, value in said.items() if value is not KEEP}

    def resolve(self, queue: Queue, defaults: Queue) -> dict[str, Any]:
        """The new values, by name, for the queue as it stands."""
        values = self.named()
        if values.get("retry_profile", KEEP) is None:
            values["retry_profile"] = defaults.retry_profile
        figures = retry_figures(values.get("retry_profile", queue.retry_profile), defaults)
        for name, value in values.items():
            if value is None:
                values[name] = figures[name] if name in figures else getattr(defaults, name)
        if "priority_weights" in values:
            values["priority_weights"] = values["priority_weights"] or None  # none: strict
        return values


UPDATABLE = tuple(field.name for field in fields(QueueUpdate))
"""The settings of a queue that can be changed while it stands."""

_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "name": ((str,), "a text"),
    "max_retries": ((int,), "a whole number"),
    "ttl": ((int, float), "a number of seconds"),
    "timeout": ((int, float), "a number of seconds"),
    "capacity": ((int,), "a whole number"),
    "retry_profile": ((str,), "the name of a profile"),
    "retry_base": ((int, float), "a number of seconds"),
    "retry_max": ((int, float), "a number of seconds"),
    "retry_jitter": ((int, float), "a number from 0 to 1"),
    "priority_weights": ((Mapping,), "weights by priority, as {9: 5, 0: 1}"),
    "retention": ((int, float), "a number of seconds"),
    "dead_letter_retention": ((int, float), "a number of seconds"),
    "paused": ((bool,), "True or False"),
}


def _check_kinds(said: Mapping[str, Any]) -> None:
    """Refuse what a program says of a queue in another type: a store would keep it, or break."""
    for name, value in said.items():
        kinds, expected = _KINDS[name]
        if value is None and name not in ("name", "paused"):
            continue
        fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        if fits and isinstance(value, Mapping):
            fits = all(type(figure) is int for pair in value.items() for figure in pair)
        if not fits:
            raise InvalidArgument(name, f"expected {expected}, got {value!r:.80}")


def _or(said: T | None, default: T) -> T:
    return default if said is None else said


COUNTED_TO = 10_000
"""As many claimable jobs of one type are counted, for people."""


@dataclass(frozen=True, slots=True)
class WaitingType:
    """Claimable jobs of one type in one queue."""

    queue: str
    type: str
    jobs: int  # counted up to a limit

    @property
    def count(self) -> str:
        """How many, for people."""
        return f"{self.jobs}+" if self.jobs >= COUNTED_TO else str(self.jobs)


@dataclass(slots=True, kw_only=True)
class QueueStats:
    """A queue with its figures."""

    queue: Queue
    depth: Mapping[State, int]
    processed: int = 0  # attempts that ended, well or not
    succeeded: int = 0
    failed: int = 0
    run_seconds: float = 0.0
    timed: int = 0  # attempts that run_seconds sums over
    # Claimable jobs that no connected worker takes, by type, the most first: set by the engine.
    unserved: tuple[WaitingType, ...] = ()

    @property
    def average_seconds(self) -> float:
        """Mean processing time of an attempt."""
        return self.run_seconds / self.timed if self.timed else 0.0

    @property
    def error_rate(self) -> float:
        """Share of ended attempts that failed."""
        return self.failed / self.processed if self.processed else 0.0

    @property
    def unfinished(self) -> int:
        """Jobs that are neither DONE nor DEAD_LETTERED."""
        return sum(
            count
            for state, count in self.depth.items()
            if state not in (State.DONE, State.DEAD_LETTERED)
        )


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
