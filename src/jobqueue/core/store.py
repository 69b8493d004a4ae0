"""The storage seam: batch-first, in domain words.

Every call is atomic per job, and durable when it returns, if the store is. A store has a few parts,
each for its own callers: ``jobs`` for the engine's write path, ``stream`` for the relay, and so on.
After ``jobs.submit`` and ``jobs.claim``, ``jobs.apply`` is the only write path of a job's state: it
checks the lifecycle table, the version and the fence, writes the row and its event together, and
answers for each item whether it applied.

Calls that take a ``term`` are fenced: they check it in their own transaction and raise TermEnded,
without effect, if it is over.

Do not implement these Protocols outside this package: they may change shape.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from jobqueue.core.errors import Unavailable
from jobqueue.core.job import (
    Assignment,
    ComponentHealth,
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
from jobqueue.core.queue import Queue, QueueStats, WaitingType

if TYPE_CHECKING:
    from jobqueue.core.dispatch import DispatchStore
    from jobqueue.core.identity import Identity
    from jobqueue.core.rebuild import Restored, Told
    from jobqueue.core.stream import Changes

ALL_QUEUES = "*"
"""Stands for every queue in a claim."""

Position = str
"""A place in a store's events, readable by that store alone."""

BEGINNING: Position = ""
"""The place before the first event, in every store."""

ANY_VERSION = 0
"""Stands for any version of a job; versions begin at 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The time limits and thresholds that a store applies."""

    assignment_timeout: float = 60.0
    key_ttl: float = 86_400.0
    poison_after: int = 3  # worker deaths, the last one while it ran; 0 = not counted
    watchdog_grace: float = 5.0  # beyond the run timeout, for the worker to report it itself
    workers_per_owner: int = 10_000  # registrations of one caller at a time; 0 = no limit
    hand_backs: int = 1_000  # of a job without a retry; each later one is a failed attempt


@dataclass(slots=True)
class Claim:
    """Free slots for jobs of these queues: the i-th job goes to the i-th slot."""

    queues: tuple[str, ...]
    slots: Sequence[str]  # worker ids, one for each free slot, least loaded first
    without: frozenset[str] = frozenset()  # queues to leave out, with ``*``
    types: frozenset[str] | None = None  # job types to claim; None: all


@dataclass(slots=True)
class Submission:
    """Results in the order of the batch, and the jobs claimed in the same write."""

    results: list[SubmitResult]
    assigned: list[Assignment] = field(default_factory=list)


@dataclass(slots=True)
class Application:
    """Outcomes in the order of the batch, and the jobs claimed in the same write."""

    outcomes: list[Outcome]
    assigned: list[Assignment] = field(default_factory=list)


@dataclass(slots=True)
class Overdue:
    """The moves of jobs that are due, and the time of the next look."""

    transitions: list[Transition]
    promoted: int  # delayed jobs that became claimable
    next_at: float | None


@dataclass(slots=True, kw_only=True)
class JobFilter(JobConditions):
    """A selection of jobs, newest first."""

    states: tuple[State, ...] = ()
    before_seq: int | None = None
    limit: int = 20


@dataclass(slots=True)
class DeadLetters:
    """The result of a bounded look at dead letters."""

    found: list[tuple[int, int]]  # number and version of those that match, newest first
    looked_at: int
    before_seq: int | None  # the beginning of the next look; None: there are no more


class Change(enum.Flag):
    """The kinds of changes that other processes are told of."""

    WORK = 1  # jobs may be claimable
    ENDED = 2  # jobs moved on: callers that wait for one look again
    # Cancel flags, leases that ended without their worker, a worker's status or registration,
    # the resignation of a leader.
    CONTROL = 4
    ASSIGNED = 8  # the stream stands still: workers that learn of their jobs by it look themselves


@dataclass(frozen=True, slots=True)
class Term:
    """One leadership of one process.

    It ends when its time to live has passed by the store's clock without a renewal, or when it is
    resigned. Each process draws its ``holder`` number at random; each new term has a new epoch.
    """

    holder: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Leader:
    """The process that leads, for people."""

    name: str  # empty: not known
    epoch: int
    since: float  # the beginning of its term; 0: not known


class StoreAway(Unavailable):
    """The store's server cannot be reached, or is starting. It may come back by itself."""


class TermEnded(Exception):
    """The term of a call is over; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of the event stream behind the store."""

    events: int  # not yet published
    seconds: float  # the age of the oldest of them; 0 if there is none
    refused: int  # records that could not be published, since the stream began


@dataclass(frozen=True, slots=True)
class DoneJobs:
    """DONE jobs to remove: those of these ``queues``, or with ``others`` those of all other queues.

    Jobs that ended before ``completed_after`` are not searched: the caller has removed them.
    """

    queues: Sequence[str] = ()
    others: bool = True
    completed_after: float = -math.inf


ANY_QUEUE = DoneJobs()


class JobStore(Protocol):
    """The write path: jobs are submitted, claimed and moved on."""

    async def submit(self, jobs: Sequence[NewJob], claims: Sequence[Claim] = ()) -> Submission:
        """Accept jobs, each on its own: a refused one leaves no trace and harms no other."""

    async def claim(self, claims: Sequence[Claim]) -> list[Assignment]:
        """Move the next claimable jobs to ASSIGNED: by priority, then first in, first out.

        Jobs of other types neither delay a claim nor cost it more, however many are ahead.
        """

    async def apply(
        self, transitions: Sequence[Transition], claims: Sequence[Claim] = ()
    ) -> Application:
        """Make moves, in order, each fenced; then fill the claims, all in one write.

        A move that names a worker counts only if that worker holds the lease.
        """

    async def request_cancel(self, seq: int) -> Held | None:
        """Flag a RUNNING job, without a transition; None if it is not running."""


class JobReads(Protocol):
    """Reads of jobs. They change nothing."""

    async def get(self, job_id: str) -> Job | None:
        """Read one job."""

    async def seq_of(self, job_id: str) -> int | None:
        """Return a job's number; None if there is no such job. Reads little."""

    async def moved_on(self, seen: Mapping[int, int]) -> list[int]:
        """Return those of these jobs that ended, are gone, or left the version that was seen.

        ``seen`` has versions by job number; with ``ANY_VERSION`` only the end counts. Reads
        little, and all at once: the caller asks for a bounded number of jobs.
        """

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """Read a page of jobs, newest first."""

    async def dead_letters(self, wanted: JobFilter) -> DeadLetters:
        """Look at about ``limit`` of the next dead letters, and return those that match.

        A call is bounded by the number it looks at, not by the number of matches, so that a rare
        match among a million is found in many short calls. ``states`` has no effect.
        """

    async def list_by_time(self, wanted: TimeQuery) -> list[Job]:
        """Read a page of jobs by their time of creation, without their results."""

    async def history(self, job_id: str, before: int | None = None) -> list[Event]:
        """Read a job's newest MAX_HISTORY events, or the newest before a version, in order."""


class Upkeep(Protocol):
    """Work that is due with time: promotion, retries, timeouts, removal."""

    async def due(self, limit: int) -> Overdue:
        """Promote delayed jobs, and return retries, expiries and timeouts that are due."""

    async def delete_job(self, job_id: str, *, version: int | None = None) -> State | None:
        """Remove a terminal job with its history and key; with a version, only at that version.

        Returns the job's state (nothing was done unless it is terminal), or None if there is no
        such job. Conflict while there is a stream to which not all of its events are published.
        """

    async def prune_done(
        self, completed_before: float, limit: int, term: Term, where: DoneJobs = ANY_QUEUE
    ) -> int:
        """Remove DONE jobs that ended before a time; returns their number.

        The limit bounds a call: a store that keeps the ends of many jobs together may go beyond it
        to remove them together. Their keys stay until their TTL ends. While there is a stream, jobs
        of which not all events are published stay. Fenced by the term.
        """


class QueueStore(Protocol):
    """Queues with their settings and figures."""

    async def create(self, queue: Queue) -> bool:
        """Create a queue; False if the name exists already."""

    async def update(self, name: str, values: Mapping[str, Any]) -> Queue | None:
        """Write checked values of these settings (``core.queue.SETTINGS``).

        Returns the queue after the change; None if there is none of that name. Jobs submitted
        before keep their retries, TTL and timeout.
        """

    async def pause(self, name: str, paused: bool) -> bool:
        """Stop or resume claims from a queue; False if there is none of that name."""

    async def delete(self, name: str) -> int | None:
        """Remove an empty queue; returns the number of unfinished jobs that prevent it, or None."""

    async def unfinished(self, queue: str, limit: int) -> list[int]:
        """Return the numbers of a queue's unfinished jobs."""

    async def stats(self, queue: str | None = None) -> list[QueueStats]:
        """Return the figures of one queue or of all, by name."""

    async def waiting_types(self, count_to: int, queue: str | None = None) -> list[WaitingType]:
        """Return the types of the jobs that can be claimed, by queue and type.

        At most ``count_to`` jobs of each type are counted, so the cost grows with the number of
        types only. Jobs of paused queues are included.
        """


class WorkerStore(Protocol):
    """Workers and their leases."""

    async def register(self, info: WorkerInfo) -> list[Held]:
        """Record a worker; returns the leases of its earlier incarnation, which are lost.

        PermissionDenied while another owner has the id registered (``owner_allows``) and it is not
        OFFLINE; the leases of a former owner are lost, too. RateLimited beyond
        ``Rules.workers_per_owner``; the owner's OFFLINE workers without leases make room.
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
        """Record a heartbeat. Blocking, from any thread: it must survive a blocked loop.

        ``leases`` are held; of the ``begun`` ones among them the assignment timeout begins anew.
        The answer's ``lost`` are listed leases that are not in force, its ``unlisted`` leases in
        force that are not listed.

        ``owner`` is the caller; PermissionDenied, without effect, if another owner has registered
        the worker, whatever the incarnation.

        ``progress``: by lease, the news of attempts. The store keeps that of leases that the worker
        holds, with its own time, and shows it while the job is RUNNING under that lease. It is no
        transition, and may be lost with the server that keeps it.

        ``overrun`` counts slots in which the function of an attempt that is over still runs;
        None: as many as before. A registration sets it to 0.
        """

    async def held(self, worker_id: str | None = None) -> list[Held]:
        """Return the leases in force, of one worker or of all."""

    async def set_status(self, worker_id: str, status: WorkerStatus) -> bool:
        """Set the status of a worker; False if it is unknown or ``may_become`` forbids it."""

    async def all(self) -> list[Worker]:
        """Return every worker known, by id."""

    async def retire_silent(self, silent_for: float, term: Term) -> list[str]:
        """Mark workers OFFLINE that were silent for longer; returns their ids. Fenced by term."""

    async def retire(self, worker_id: str, incarnation: int, *, owner: str = "") -> bool:
        """Remove a worker that deregisters, if it is that incarnation and holds no lease."""

    async def forget(self, worker_id: str) -> bool:
        """Remove the record of an OFFLINE worker."""


class LeaderStore(Protocol):
    """The election of the process for the work that only one may do."""

    async def lead(self, holder: int, ttl: float, name: str = "") -> Term | None:
        """Take the lead, or renew it, for ``ttl`` seconds; None while another process has it.

        ``leader`` shows ``name``. The epoch grows with every new holder, and after a resignation.
        A holder whose term ran out may renew it as long as no other process took the lead.
        """

    async def leader(self) -> Leader | None:
        """Return the current leader; None: there is none."""

    async def resign(self, term: Term) -> None:
        """Give up the lead, so that another process may take it. An old term has no effect."""


class EventStream(Protocol):
    """The events in the order of their commits, and the *mark*: how far they are published."""

    async def events_after(self, position: Position, limit: int) -> list[tuple[Position, Event]]:
        """Read events from a position on, each with the position after it.

        None is skipped or repeated, and each job's events are in order; the jobs of one page are in
        any order.
        """

    async def begin(self, term: Term) -> Position:
        """Return the mark; the first call sets it, at the beginning. Fenced by the term.

        From then on jobs, changes of queues, removals and cancel flags are kept until the mark has
        passed them. Every queue counts as created by the first call.
        """

    async def end(self, term: Term) -> None:
        """Remove the mark: nothing is kept for a stream any more. Fenced by the term."""

    async def changes_after(self, position: Position, limit: int, size: int) -> Changes:
        """Read all changes from a position on, in the order of ``events_after``.

        They hold everything that a rebuild needs. A queue's creation comes before its jobs. A page
        has at most about ``size`` bytes, but at least one change.
        """

    async def move_mark(self, position: Position, term: Term, refused: int = 0) -> None:
        """Note that all changes up to there are published or ``refused``. Fenced by the term."""

    async def lag(self) -> Lag | None:
        """Return the lag of the mark; None: there is no stream."""

    async def identity(self) -> Identity:
        """Return the identity that was drawn when the store was created."""


class Store(Protocol):
    """A store of jobs: its parts, and their common start and stop."""

    @property
    def jobs(self) -> JobStore:
        """The write path of jobs."""

    @property
    def reads(self) -> JobReads:
        """The reads of jobs."""

    @property
    def upkeep(self) -> Upkeep:
        """The timers and the removal of jobs."""

    @property
    def queues(self) -> QueueStore:
        """The queues."""

    @property
    def workers(self) -> WorkerStore:
        """The workers."""

    @property
    def leadership(self) -> LeaderStore:
        """The election of a leader."""

    @property
    def stream(self) -> EventStream:
        """The event stream."""

    @property
    def dispatch(self) -> DispatchStore | None:
        """The parts for workers that learn of their jobs by Kafka; None: it has no such workers."""

    @property
    def name(self) -> str:
        """The kind of store, for people."""

    @property
    def durable(self) -> bool:
        """True if an accepted job survives the process."""

    @property
    def parallel(self) -> bool:
        """True if writes run beside each other.

        Then two batches may be in flight, and a claim is better made on its own than with another
        write: the next write need not wait for it.
        """

    @property
    def location(self) -> str:
        """The kind of store and its address: ``PostgreSQL at db:5432``."""

    async def open(self) -> None:
        """Make the store ready; create missing tables and the like."""

    async def close(self) -> None:
        """Release everything. May be called twice, or before open."""

    def on_change(self, heard: Callable[[Change], None]) -> None:
        """Call ``heard`` on the loop when another process may have changed the store.

        The call may come late, without a change, or once for several changes.
        """

    async def ping(self, patience: float | None = None) -> None:
        """Prove that the store can be written; else raise Unavailable.

        A server that is away is asked again for ``patience`` seconds; None: as by other calls.
        """

    def components(self) -> list[ComponentHealth]:
        """Return the health of parts without which the store is slower, but never wrong."""

    async def restore(self, state: Restored, told: Told) -> None:
        """Write the whole content of a store, rebuilt from a stream, into this empty one.

        Empty: no jobs, no keys, no queue but an unused default one, and no leader; otherwise
        Conflict, without effect. Jobs, events and queues are as they were, and later numbers go on
        from theirs. The store takes the identity in ``state``. An interrupted call leaves nothing,
        or a store that refuses to be opened and says why.
        """


class Locks(Protocol):
    """Locks per job that advise dispatch: they keep servers out of each other's way.

    A claim reads candidates, takes their locks, and writes the assignments of those it won. That
    write alone decides: a lock that is lost, doubled or missing costs time, never a job. No call
    raises because the lock server is away.
    """

    async def open(self) -> None:
        """Connect if that is possible now; otherwise go on trying in the background."""

    async def close(self) -> None:
        """Release everything. May be called twice, or before open. Held locks run out."""

    async def take(self, names: Sequence[str], wanted: int) -> list[int] | None:
        """Lock names in order until ``wanted`` are won; returns the positions of those won.

        None: no answer in time, go on without. A name has no white space and is used once, like a
        job's id with the number of its next attempt: no lock is given back, it runs out. The holder
        of a lock wins it again, so that a write that failed can be repeated.
        """

    def health(self) -> ComponentHealth:
        """Return the health of the locks; the detail names the consequence of a failure."""
