"""Define the Protocols of a store. Their calls take and return batches of domain objects.

Every call is atomic per job, and durable when it returns if the store is durable. A store has
several parts, each for other callers: ``jobs`` for the engine's write path, ``stream`` for the
relay, and so on. Besides ``jobs.submit`` and ``jobs.claim``, only ``jobs.apply`` writes a job's
state. It checks the lifecycle table, the version and the fence, writes the row and the event
together, and returns for each item whether the move was applied.

Calls with a ``term`` argument are fenced: in their own transaction they check that the term is
still valid, and otherwise raise TermEnded without effect.

Do not implement these Protocols outside this package: they may change.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.errors import Unavailable
from jobqueue.core.job import (
    MAX_HISTORY,
    Assignment,
    ComponentHealth,
    DeadLetterCause,
    Event,
    Held,
    Job,
    JobConditions,
    NewJob,
    Outcome,
    Pulse,
    SubmitResult,
    TimeQuery,
    Transition,
    Worker,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.lifecycle import State
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.queue import KeyState, LimitState, Queue, QueueStats, WaitingType

if TYPE_CHECKING:
    from jobqueue.core.dispatch import DispatchStore
    from jobqueue.core.identity import Identity
    from jobqueue.core.rebuild import Restored, Told
    from jobqueue.core.schedule import Schedule
    from jobqueue.core.stream import Changes

ALL_QUEUES = "*"
"""The name that stands for every queue in a claim."""

Position = str
"""A position in the sequence of a store's events. Only that store can interpret it."""

BEGINNING: Position = ""
"""The position before the first event, in every store."""

ANY_VERSION = 0
"""The number that stands for any version of a job; versions begin at 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Holds the time limits and thresholds that a store applies."""

    assignment_timeout: float = 60.0
    key_ttl: float = 86_400.0
    # Worker deaths after which a job is poison, the last death while the job ran; 0 = not counted.
    poison_after: int = 3
    # Seconds after the run timeout in which the worker can still report the timeout itself.
    watchdog_grace: float = 5.0
    workers_per_owner: int = 10_000  # registered workers of one caller; 0 = no limit
    # Hand-backs of a job without a retry; each later hand-back counts as a failed attempt.
    hand_backs: int = 1_000


@dataclass(slots=True)
class Claim:
    """A request to fill free slots with jobs of these queues. Slot i gets the i-th job."""

    queues: tuple[str, ...]
    slots: Sequence[str]  # worker ids, one for each free slot, least loaded first
    without: frozenset[str] = frozenset()  # queues to leave out, with ``*``
    types: frozenset[str] | None = None  # job types to claim; None: all


NOT_HELD_BACK: Mapping[str, float] = MappingProxyType({})


class Claimed(list[Assignment]):
    """The jobs that a claim assigned.

    ``held_back`` names the queues whose limits may have kept jobs from the claim's free slots. The
    value is the number of seconds after which a rate limit allows the next start. It is infinite
    if a held job must end first.
    """

    __slots__ = ("held_back",)

    def __init__(
        self, jobs: Iterable[Assignment] = (), held_back: Mapping[str, float] = NOT_HELD_BACK
    ) -> None:
        super().__init__(jobs)
        self.held_back = held_back

    @property
    def opens_in(self) -> float:
        """Return the seconds after which a rate limit allows the next start; it may be infinite."""
        return min(self.held_back.values(), default=math.inf)


@dataclass(slots=True)
class Submission:
    """The results of a submit, in the batch's order, and the jobs claimed in the same write.

    ``superseded`` has the outcomes of waiting jobs whose place a new job has taken.
    """

    results: list[SubmitResult]
    assigned: list[Assignment] = field(default_factory=list)
    superseded: list[Outcome] = field(default_factory=list)


@dataclass(slots=True)
class Application:
    """The outcomes of moves, in the order of the batch, and the jobs claimed in the same write.

    ``freed`` names the queues with a limit of running jobs in which a lease ended.
    """

    outcomes: list[Outcome]
    assigned: list[Assignment] = field(default_factory=list)
    freed: Collection[str] = ()


@dataclass(slots=True)
class Overdue:
    """The moves of jobs whose ``due`` time has passed, and the time of the next sweep."""

    transitions: list[Transition]
    promoted: int  # delayed jobs that became claimable
    next_at: float | None


@dataclass(slots=True, kw_only=True)
class JobFilter(JobConditions):
    """Conditions and limits for a page of jobs, newest first."""

    states: tuple[State, ...] = ()
    before_seq: int | None = None
    limit: int = 20


@dataclass(slots=True)
class DeadLetters:
    """The result of a search that reads a bounded number of dead letters."""

    found: list[tuple[int, int]]  # the number and version of each match, newest first
    looked_at: int
    before_seq: int | None  # where the next search begins; None: all dead letters were read


class Change(enum.Flag):
    """The kinds of changes that other processes are notified of."""

    WORK = 1  # jobs may be claimable
    ENDED = 2  # jobs ended: callers that wait for a job read it again
    # A cancel was requested, a lease ended without a report of its worker, a worker registered or
    # changed its status, or a leader resigned.
    CONTROL = 4
    # Jobs were assigned while no hints are published: the workers read their jobs from the store.
    ASSIGNED = 8
    SCHEDULES = 16  # a schedule was created, changed or removed


@dataclass(frozen=True, slots=True)
class Term:
    """The mandate of one process as the leader.

    A term ends when it was not renewed within its time to live, measured by the store's clock, or
    when the leader resigns. Each process draws its ``holder`` number at random. Each new term has a
    new epoch.
    """

    holder: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Leader:
    """Describes the current leader for operators."""

    name: str  # empty: not known
    epoch: int
    since: float  # the beginning of its term; 0: not known


class StoreAway(Unavailable):
    """Reports that the store's server cannot be reached or is starting.

    The server may become available again without an operator's help.
    """


class TermEnded(Exception):
    """Reports that the term of a call is over, and that nothing was changed."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of the event stream behind the store."""

    events: int  # not yet published
    seconds: float  # the age of the oldest unpublished event; 0 if all are published
    refused: int  # records that could not be published, since the stream began


@dataclass(frozen=True, slots=True)
class DoneJobs:
    """Selects DONE jobs to remove, by queue.

    Without ``others``, jobs of the named ``queues`` are selected; with ``others``, jobs of all
    other queues. Jobs that ended before ``completed_after`` are not searched, because the caller
    has removed them already.
    """

    queues: Sequence[str] = ()
    others: bool = True
    completed_after: float = -math.inf


ANY_QUEUE = DoneJobs()


class JobStore(Protocol):
    """Writes the state of jobs: submits, claims and moves jobs."""

    async def submit(self, jobs: Sequence[NewJob], claims: Sequence[Claim] = ()) -> Submission:
        """Accept or refuse each job on its own, then fill the claims, all in one write.

        A refused job is not stored, and has no effect on the other jobs. KeyHeld means that an open
        transaction of another program holds the job's key; the job may be submitted again.
        """

    async def claim(self, claims: Sequence[Claim]) -> list[Assignment]:
        """Move the next claimable jobs to ASSIGNED: by priority, then first in, first out.

        Waiting jobs of types that a claim excludes do not make the claim slower. Limits of a queue
        (``core.limits``) hold for all claims, of this call and of others. If they may have held
        jobs back, the answer is a ``Claimed``, and so are the ``assigned`` jobs of other writes.
        """

    async def apply(
        self, transitions: Sequence[Transition], claims: Sequence[Claim] = ()
    ) -> Application:
        """Make moves in order, each checked by its fence, then fill the claims, all in one write.

        A move that names a worker is refused unless that worker holds the lease.
        """

    async def request_cancel(self, seq: int) -> Held | None:
        """Set the cancel flag of a RUNNING job, without a transition, and return its lease.

        Return None if the job is not running.
        """


class JobReads(Protocol):
    """Reads jobs. The calls change nothing."""

    async def get(self, job_id: str) -> Job | None:
        """Return a job, or None if no job has this id."""

    async def seq_of(self, job_id: str) -> int | None:
        """Return a job's number, or None if no job has this id. The read is cheap."""

    async def moved_on(self, seen: Mapping[int, int]) -> list[int]:
        """Return the numbers of the jobs that ended, were removed, or have a new version.

        ``seen`` has the version of each job that the caller saw, by job number. With
        ``ANY_VERSION``, a new version does not count. The call reads all these jobs at once, so the
        caller must bound their number.
        """

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """Return a page of jobs, newest first."""

    async def dead_letters(self, wanted: JobFilter) -> DeadLetters:
        """Read about ``limit`` of the next dead letters, and return the matches among them.

        The limit bounds the dead letters that are read, not the matches. So a rare match among a
        million dead letters is found by many short calls. ``wanted.states`` has no effect.
        """

    async def describe(self, numbers: Sequence[int]) -> list[DeadLetterCause]:
        """Return the dead letters with these numbers, newest first.

        Jobs that are no dead letters are left out. The call reads all of them at once, without
        their payloads, so the caller must bound their number.
        """

    async def list_by_time(self, wanted: TimeQuery) -> list[Job]:
        """Return a page of jobs by their time of creation, without their results."""

    async def history(
        self, job_id: str, before: int | None = None, limit: int = MAX_HISTORY
    ) -> list[Event]:
        """Return the newest events of a job, at most ``limit``, oldest first.

        With ``before``, only events before that version are returned.
        """


class Upkeep(Protocol):
    """Finds the jobs that are due, and removes old jobs."""

    async def due(self, limit: int) -> Overdue:
        """Make delayed jobs claimable, and return the retries, expiries and timeouts now due."""

    async def delete_job(self, job_id: str, *, version: int | None = None) -> State | None:
        """Remove a terminal job with its history and key, and return the job's state.

        Nothing is removed if the returned state is not terminal, or if ``version`` is given and is
        not the job's version. Return None if no job has this id. Raises Conflict while the event
        stream is in use and some events of the job are not published.
        """

    async def prune_done(
        self, completed_before: float, limit: int, term: Term, where: DoneJobs = ANY_QUEUE
    ) -> int:
        """Remove DONE jobs that ended before ``completed_before``, and return their number.

        A call removes at most ``limit`` jobs; but a store that keeps many jobs in one record
        removes the record as a whole. The idempotency keys of removed jobs stay until their TTL
        ends. While the event stream is in use, jobs with unpublished events stay. The call is
        fenced by the term.
        """


class QueueStore(Protocol):
    """Stores queues with their settings and counters."""

    async def create(self, queue: Queue) -> bool:
        """Create a queue; return False if the name exists already."""

    async def update(self, name: str, values: Mapping[str, Any]) -> Queue | None:
        """Change settings of a queue. ``values`` has the new values by name, already checked.

        Return the queue after the change, or None if no queue has this name. Jobs submitted before
        keep their retries, TTL and timeout.
        """

    async def pause(self, name: str, paused: bool) -> bool:
        """Stop or resume claims from a queue; return False if no queue has this name."""

    async def delete(self, name: str) -> int | None:
        """Remove a queue without unfinished jobs.

        Return 0 if the queue was removed, and None if no queue has this name. Otherwise return the
        number of unfinished jobs, which prevent the removal.
        """

    async def unfinished(self, queue: str, limit: int) -> list[int]:
        """Return the numbers of at most ``limit`` unfinished jobs of a queue."""

    async def stats(self, queue: str | None = None) -> list[QueueStats]:
        """Return the settings and counters of one queue, or of all queues sorted by name."""

    async def waiting_types(self, count_to: int, queue: str | None = None) -> list[WaitingType]:
        """Return the number of claimable jobs for each queue and type.

        At most ``count_to`` jobs of each type are counted, so the cost grows only with the number
        of types. Jobs of paused queues are included.
        """

    async def limit_states(self, queue: str | None = None) -> list[LimitState]:
        """Return the state of the limits of each queue that has limits, or of one such queue."""

    async def key_states(self, queue: str, count_to: int, key: str | None = None) -> list[KeyState]:
        """Return the state of the limits of keys that have claimable jobs in a queue.

        At most ``core.limits.MOST_KEYS`` keys are returned, sorted; with ``key``, only this key. At
        most ``count_to`` jobs of each key are counted.
        """


class WorkerStore(Protocol):
    """Stores workers and their leases."""

    async def register(self, info: WorkerInfo) -> list[Held]:
        """Record a worker, and return the lost leases of its earlier incarnation.

        If the worker with this id belongs to another owner (see ``owner_allows``), it is replaced
        if it is OFFLINE, and its leases are lost; otherwise the call raises PermissionDenied.
        Raises RateLimited if the owner has ``Rules.workers_per_owner`` other workers. The owner's
        OFFLINE workers without a lease do not count: at the limit they are removed.
        """

    def pulse(
        self,
        worker_id: str,
        incarnation: int,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
        *,
        owner: str = "",
    ) -> Pulse:
        """Record a heartbeat, and compare the worker's ``leases`` with its leases in force.

        The call blocks, and may be made from any thread, so that heartbeats go on while the event
        loop is blocked. In the answer, ``lost`` are listed leases that are not in force, and
        ``unlisted`` are leases in force that were not listed. The assignment timeout of the leases
        in ``begun`` starts again.

        ``owner`` is the caller. Raises PermissionDenied, without effect, if another owner
        registered the worker, even with another incarnation.

        ``progress`` has the progress of attempts, by lease. The store keeps it with the time of the
        store's clock, for leases that the worker holds, and shows it while the job is RUNNING under
        that lease. Progress is not a transition, and may be lost if the server that keeps it stops.

        ``overrun`` counts slots in which the function of an ended attempt still runs; None means as
        many as before. A registration sets the number to 0.
        """

    async def set_breakers(
        self, worker_id: str, incarnation: int, breakers: Sequence[OpenBreaker]
    ) -> None:
        """Record the open breakers of a worker, in place of those recorded before.

        Nothing happens if this incarnation is not registered. A registration removes the breakers.
        """

    async def held(self, worker_id: str | None = None) -> list[Held]:
        """Return the leases in force of one worker, or of all workers."""

    async def set_status(self, worker_id: str, status: WorkerStatus) -> bool:
        """Set the status of a worker.

        Return False if the worker is not known, or if ``may_become`` forbids the status.
        """

    async def all(self, *, names: bool = True) -> list[Worker]:
        """Return every known worker, sorted by id.

        Workers may name millions of queues and types. With ``names`` False these are left out:
        ``info.queues`` is empty, and ``info.types`` is None.
        """

    async def infos(self, worker_ids: Sequence[str]) -> list[WorkerInfo]:
        """Return the registrations of these workers in any order, without unknown workers."""

    async def status(self, worker_id: str) -> WorkerStatus | None:
        """Return the status of a worker, or None if the worker is not known."""

    async def retire_silent(self, silent_for: float, term: Term) -> list[str]:
        """Set workers OFFLINE that sent no heartbeat for ``silent_for`` seconds.

        Return the ids of these workers. The call is fenced by the term.
        """

    async def retire(self, worker_id: str, incarnation: int, *, owner: str = "") -> bool:
        """Remove a worker that deregisters. Return True if the worker was removed.

        A worker is removed only if ``incarnation`` is registered and the worker holds no lease.
        """

    async def forget(self, worker_id: str) -> bool:
        """Remove the record of an OFFLINE worker; return False if nothing was removed."""


class LeaderStore(Protocol):
    """Elects the leader: the process that does the work that only one process may do."""

    async def lead(self, holder: int, ttl: float, name: str = "") -> Term | None:
        """Become the leader, or renew the term, for ``ttl`` seconds.

        Return None while another process leads. ``name`` is shown to operators. The epoch grows
        with every new holder, and after a resignation. A holder whose term ran out may renew the
        term until another process becomes the leader.
        """

    async def leader(self) -> Leader | None:
        """Return the current leader, or None if no process leads."""

    async def resign(self, term: Term) -> None:
        """End the term, so that another process can lead. Do nothing if the term is over."""


@dataclass(frozen=True, slots=True)
class DueSchedules:
    """The schedules that the leader must look at now, and when the next one follows."""

    names: tuple[str, ...]
    next_at: float | None  # later than now; None: no other schedule has a next tick


class ScheduleStore(Protocol):
    """Stores schedules. ``core.schedule`` has their rules."""

    async def due(self, now: float) -> DueSchedules:
        """Return the names of the schedules whose ``due_at`` is not later than ``now``."""

    async def get(self, names: Sequence[str]) -> list[Schedule]:
        """Return the schedules with these names, sorted by name. Unknown names are left out."""

    async def page(self, after: str, limit: int) -> list[Schedule]:
        """Return schedules whose names follow ``after``, sorted by name, without their payloads."""

    async def count(self) -> int:
        """Return the number of schedules."""

    async def create(self, schedule: Schedule) -> bool:
        """Store a new schedule; return False if the name is taken."""

    async def change(self, schedule: Schedule) -> bool:
        """Replace a schedule by its next revision.

        Return False, without effect, if the store does not have the revision before.
        """

    async def advance(self, schedules: Sequence[Schedule], term: Term | None = None) -> list[bool]:
        """Replace the states of schedules by those of the next revisions, each on its own.

        The definitions stay. Return for each schedule whether the store had the revision before;
        otherwise it is not changed. With ``term``, the call is fenced by the term.
        """

    async def remove(self, name: str) -> bool:
        """Remove a schedule; return False if there is none with this name."""


class EventStream(Protocol):
    """Reads a store's events in the order of their commits.

    The store also keeps a *mark*: the position up to which the events are published.
    """

    async def events_after(self, position: Position, limit: int) -> list[tuple[Position, Event]]:
        """Return the next events after a position, each with the position that follows it.

        No event is skipped or repeated. The events of one job are in order; different jobs of one
        page may be in any order.
        """

    async def begin(self, term: Term) -> Position:
        """Return the mark: the position up to which the events are published.

        The first call creates the mark, at the beginning of the events, and writes a creation event
        for every existing queue and schedule. From then on, the store keeps jobs, changes of queues
        and schedules, removals and cancel flags until the mark has passed them. The call is fenced
        by the term.
        """

    async def end(self, term: Term) -> None:
        """Remove the mark: the position up to which the events are published.

        Afterwards the store keeps nothing for publication. The call is fenced by the term.
        """

    async def changes_after(self, position: Position, limit: int, size: int) -> Changes:
        """Return the next changes after a position, in the order of ``events_after``.

        The changes have all data that a rebuild needs. A queue's creation comes before the queue's
        jobs. A page has at least one change, and about ``size`` bytes at most.
        """

    async def move_mark(self, position: Position, term: Term, refused: int = 0) -> None:
        """Record that all changes before ``position`` are published or refused.

        The mark of the event stream moves to ``position``. ``refused`` is the number of changes
        that could not be published. The call is fenced by the term.
        """

    async def lag(self) -> Lag | None:
        """Return the lag of the event stream, or None if the store keeps no event stream."""

    async def identity(self) -> Identity:
        """Return the identity of the store in the event stream."""


class Store(Protocol):
    """A store of jobs. Its properties are parts, each with the calls for one kind of work."""

    @property
    def jobs(self) -> JobStore:
        """Return the part that writes jobs."""

    @property
    def reads(self) -> JobReads:
        """Return the part that reads jobs."""

    @property
    def upkeep(self) -> Upkeep:
        """Return the part that finds due jobs and removes old jobs."""

    @property
    def queues(self) -> QueueStore:
        """Return the part that stores queues."""

    @property
    def workers(self) -> WorkerStore:
        """Return the part that stores workers and leases."""

    @property
    def leadership(self) -> LeaderStore:
        """Return the part that elects the leader."""

    @property
    def schedules(self) -> ScheduleStore:
        """Return the part that stores schedules."""

    @property
    def stream(self) -> EventStream:
        """Return the part that reads events for publication."""

    @property
    def dispatch(self) -> DispatchStore | None:
        """Return the parts for workers that learn of their jobs through Kafka.

        None means that the store does not support such workers.
        """

    @property
    def name(self) -> str:
        """Return the kind of store, as a text for people."""

    @property
    def durable(self) -> bool:
        """Return True if accepted jobs survive the end of the process."""

    @property
    def parallel(self) -> bool:
        """Return True if the store can run several writes at the same time.

        Then the engine may have two batches in flight, and makes claims in separate writes, so that
        the next batch does not wait for a claim.
        """

    @property
    def location(self) -> str:
        """Return the kind of store and its address, like ``PostgreSQL at db:5432``."""

    async def open(self) -> None:
        """Make the store ready for use; create missing tables."""

    async def close(self) -> None:
        """Close all connections and files. The call may be repeated, or made before ``open``."""

    def on_change(self, heard: Callable[[Change], None]) -> None:
        """Register ``heard``, to be called on the loop after other processes' changes.

        A call may be late, may happen without a change, or may stand for several changes.
        """

    async def ping(self, patience: float | None = None) -> None:
        """Verify that the store can be written; raise Unavailable if it cannot.

        While the store's server cannot be reached, the call retries for ``patience`` seconds; None
        means as long as other calls of the store retry.
        """

    def components(self) -> list[ComponentHealth]:
        """Return the health of optional parts, without which the store is slower but correct."""

    async def restore(self, state: Restored, told: Told) -> None:
        """Write the complete content of a store, rebuilt from the event stream, into this store.

        This store must be empty: without jobs, keys, schedules and a leader, and with no other
        queue than an unused default queue. Otherwise Conflict is raised, without effect. Jobs,
        events and queues keep their numbers, and new ones get higher numbers. The store adopts the
        identity in ``state``. An interrupted call leaves an empty store, or a store that cannot be
        opened and whose error says why. ``told`` is called with the number of jobs written so far.
        """


class Locks(Protocol):
    """Advisory locks per job, with which several servers avoid claiming the same jobs.

    A claim reads candidates, locks them, and writes the assignments of the jobs whose locks it got.
    The write alone is decisive: a lock that is lost, missing or held twice costs time, but never a
    job. No call raises an error because the lock server is unreachable.
    """

    async def open(self) -> None:
        """Connect to the lock server; if that fails, retry in the background."""

    async def close(self) -> None:
        """Close the connections. The call may be repeated, or made before ``open``.

        Locks that are held are not released; they expire.
        """

    async def take(self, names: Sequence[str], wanted: int) -> list[int] | None:
        """Lock names in order until ``wanted`` names are locked. Return the positions in ``names``.

        Return None if the lock server does not answer in time; the caller then goes on without
        locks. A name has no white space and is used only once, like a job's id with the number of
        its next attempt. So locks are never released; they expire. The holder of a lock gets the
        same lock again, so that a failed write can be repeated.
        """

    def health(self) -> ComponentHealth:
        """Return the health of the locks; the detail says what a failure causes."""
