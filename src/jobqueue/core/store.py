"""The storage seam. Batch-first, in domain words; every call is atomic per job, and durable
(where the store is) when it returns.

After ``submit`` and ``claim``, ``apply`` is the only write path of a job's state: it checks the
lifecycle table, the version and the fence, writes the row and its event together, and says for
each item whether it applied. Not for implementing outside this package: it may change shape.
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
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.queue import Queue, QueueStats, WaitingType

if TYPE_CHECKING:
    from jobqueue.core.identity import Identity
    from jobqueue.core.restore import Restored, Told
    from jobqueue.core.stream import Changes

ALL_QUEUES = "*"
"""In a claim: every queue there is."""

ANY_VERSION = 0
"""Where a version is asked for: whichever a job has. Theirs begin at 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The time limits and thresholds a store applies."""

    assignment_timeout: float = 60.0
    key_ttl: float = 86_400.0
    poison_after: int = 3  # worker deaths, the last one while it ran; 0 = they are not counted
    watchdog_grace: float = 5.0  # what a worker gets beyond the run timeout to report it itself
    workers_per_owner: int = 10_000  # registrations of one caller at a time; 0 = no limit
    hand_backs: int = 1_000  # of a job that cost no retry; each one after them is a failed attempt


@dataclass(slots=True)
class Claim:
    """Free slots that may take jobs of these queues: the i-th job goes to the i-th slot."""

    queues: tuple[str, ...]
    slots: Sequence[str]  # worker ids, one for each free slot, least loaded first
    without: frozenset[str] = frozenset()  # queues that are not meant although ``*`` is
    types: frozenset[str] | None = None  # of the jobs that are meant; None: all


@dataclass(slots=True)
class Submission:
    """Results in the order of the batch, and what was claimed in the same write."""

    results: list[SubmitResult]
    assigned: list[Assignment] = field(default_factory=list)


@dataclass(slots=True)
class Application:
    """Outcomes in the order of the batch, and what was claimed in the same write."""

    outcomes: list[Outcome]
    assigned: list[Assignment] = field(default_factory=list)


@dataclass(slots=True)
class Overdue:
    """Jobs whose time has come, as moves to apply, and when to look again."""

    transitions: list[Transition]
    promoted: int  # delayed jobs that became claimable
    next_at: float | None


@dataclass(slots=True)
class JobFilter:
    """Which jobs to read, newest first."""

    queue: str | None = None
    states: tuple[State, ...] = ()
    type: str | None = None
    before_seq: int | None = None
    limit: int = 20
    reasons: tuple[Reason, ...] = ()  # of the latest transition; none: all
    error: str = ""  # is part of the job's error text, letter by letter
    since: float | None = None  # it ended at this time or later
    until: float | None = None  # it ended before this time


@dataclass(slots=True)
class DeadLetters:
    """What a bounded look at dead letters found."""

    found: list[tuple[int, int]]  # number and version of those that match, newest first
    looked_at: int
    before_seq: int | None  # where the next look begins; None: there are no more


class Change(enum.Flag):
    """What another process may have changed."""

    WORK = 1  # jobs may be claimable
    ENDED = 2  # jobs moved on: whoever waits for one should look
    ASSIGNED = 8  # workers that hear of their jobs by the stream should look: it stands still
    # Cancel flags, leases that ended without their worker, a worker's status or registration,
    # a lead that was given up.
    CONTROL = 4


@dataclass(frozen=True, slots=True)
class Term:
    """A leadership: who holds it, and the how-manieth it is.

    It stands until its time to live has passed by the store's clock, unless it is renewed before,
    or until it is resigned. The holder is drawn at random by each process.
    """

    holder: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, for people."""

    name: str  # empty: it did not say
    epoch: int
    since: float  # when its term began; 0: it did not say


class StoreAway(Unavailable):
    """The store's server cannot be reached, or is starting: it may be back by itself."""


class TermEnded(Exception):
    """The term that a call was made under does not stand any more; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the event stream is behind the store."""

    events: int  # not yet published
    seconds: float  # the age of the oldest of them; 0 if there is none
    refused: int  # records that were given up, since the stream began


@dataclass(frozen=True, slots=True)
class DoneJobs:
    """Which DONE jobs to remove: those of these ``queues`` alone, or of all ``others``.

    What ended before ``completed_after`` is not looked at: the caller knows that nothing is left
    there.
    """

    queues: Sequence[str] = ()
    others: bool = True
    completed_after: float = -math.inf


ANY_QUEUE = DoneJobs()


class Store(Protocol):
    """Where jobs live."""

    @property
    def name(self) -> str:
        """What kind of store this is, for people."""
        ...

    @property
    def durable(self) -> bool:
        """Whether an accepted job survives the process."""
        ...

    @property
    def parallel(self) -> bool:
        """Whether writes run beside each other.

        Where they do, two batches may be in flight, and a claim is better made on its own than
        with another write: the next write need not wait for it.
        """
        ...

    async def open(self) -> None:
        """Make ready; creates what is missing."""
        ...

    async def close(self) -> None:
        """Release everything. May be called twice, or before open."""
        ...

    def on_change(self, heard: Callable[[Change], None]) -> None:
        """Call ``heard`` on the loop when another process may have changed the store.

        A hint: it may come late, for nothing, or for several changes at once.
        """
        ...

    @property
    def location(self) -> str:
        """What keeps the jobs, and where: ``PostgreSQL at db:5432``."""
        ...

    async def ping(self, patience: float | None = None) -> None:
        """Prove that the store answers and can be written; raise Unavailable otherwise.

        A server that is away is asked again for ``patience`` seconds; None: as by any other call.
        """
        ...

    def components(self) -> list[ComponentHealth]:
        """Other parts that the store leans on. Without them it is slower, never wrong."""
        ...

    # -- leadership ------------------------------------------------------------------------

    async def lead(self, holder: int, ttl: float, name: str = "") -> Term | None:
        """Take the lead, or renew it, for ``ttl`` seconds; None while somebody else has it.

        ``name`` is what ``leader`` tells of the holder.
        The epoch grows with every new holder, and after a resignation. A holder whose term ran
        out may renew it as long as nobody else took the lead.
        """
        ...

    async def leader(self) -> Leader | None:
        """Who leads now; None: nobody."""
        ...

    async def resign(self, term: Term) -> None:
        """Give up the lead, so that another may take it at once. An old term changes nothing."""
        ...

    # -- jobs: the write path --------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob], claims: Sequence[Claim] = ()) -> Submission:
        """Accept jobs, each on its own: a refused one leaves no trace and harms no other."""
        ...

    async def claim(self, claims: Sequence[Claim]) -> list[Assignment]:
        """Move the next claimable jobs to ASSIGNED: priority first, then FIFO.

        Jobs of types that a claim does not mean neither delay it nor make it dearer, however many
        stand in front.
        """
        ...

    async def apply(
        self, transitions: Sequence[Transition], claims: Sequence[Claim] = ()
    ) -> Application:
        """Make moves, in order, each fenced; then fill the claims, all in one write.

        A move that names a worker counts only if that worker holds the lease.
        """
        ...

    async def request_cancel(self, seq: int) -> Held | None:
        """Flag a RUNNING job; None if it is not running. No transition, no version."""
        ...

    async def due(self, limit: int) -> Overdue:
        """Promote delayed jobs, and find retries, expiries and timeouts that are due."""
        ...

    # -- jobs: reads and removal -----------------------------------------------------------

    async def get(self, job_id: str) -> Job | None:
        """Read one job."""
        ...

    async def seq_of(self, job_id: str) -> int | None:
        """A job's number; None if there is no such job. Reads little."""
        ...

    async def moved_on(self, seen: Mapping[int, int]) -> list[int]:
        """Of these jobs, by number, those that are over or at another version than was seen.

        A job is over when it has ended or is gone; nothing else counts for ``ANY_VERSION``.
        Reads little, and all at once: the caller asks for a bounded number of jobs.
        """
        ...

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """Read a page of jobs, newest first."""
        ...

    async def dead_letters(self, wanted: JobFilter) -> DeadLetters:
        """Look at the next dead letters, about ``limit`` of them, and name those that match.

        ``states`` is not looked at. A call is bounded by what it looks at, not by what matches,
        so that a rare match among a million is found in many short calls.
        """
        ...

    async def list_by_time(self, wanted: TimeQuery) -> list[Job]:
        """Read a page of jobs by their time of creation. Results are left out: they are large."""
        ...

    async def history(self, job_id: str, before: int | None = None) -> list[Event]:
        """Read a job's newest MAX_HISTORY events, in order; with ``before``, of those that are
        older than that version. Empty if there are none, or no such job."""
        ...

    async def events_after(self, position: int, limit: int) -> list[tuple[int, Event]]:
        """Read events as they were committed, from a position on: none is skipped, none comes
        twice, and each job's come in their order. Jobs of one page may come in any."""
        ...

    async def delete_job(self, job_id: str, *, version: int | None = None) -> State | None:
        """Remove a terminal job with its history and key; with a version, only at that one.

        Returns the state the job had (unless it is terminal, nothing was done), or None. Raises
        Conflict while there is a stream that has not got all of its events.
        """
        ...

    async def prune_done(
        self, completed_before: float, limit: int, term: Term, where: DoneJobs = ANY_QUEUE
    ) -> int:
        """Remove DONE jobs that ended before a time; returns how many. Keys stay to their TTL.

        While there is a stream, only jobs that it has got all events of.

        Raises TermEnded when the term does not stand: it is checked in the same transaction.
        """
        ...

    # -- the event stream ------------------------------------------------------------------

    async def begin_stream(self, term: Term) -> int:
        """Where the stream has come to: the mark. The first call makes it, at the beginning.

        From then on changes of queues, removals and cancel flags are kept until the mark has
        passed them, and so are jobs; every queue there is counts as just created. TermEnded as
        ``prune_done``.
        """
        ...

    async def end_stream(self, term: Term) -> None:
        """Forget the mark: nothing is kept for a stream any more. TermEnded as ``prune_done``."""
        ...

    async def changes_after(self, position: int, limit: int, size: int) -> Changes:
        """Read what was committed, from a position on, with all that a rebuild needs.

        Like ``events_after``: none is skipped, each job's come in their order. A queue's creation
        comes before its jobs. At most about ``size`` bytes, but always one.
        """
        ...

    async def move_mark(self, position: int, term: Term, refused: int = 0) -> None:
        """Everything up to there is in the stream (but ``refused`` records that cannot be).

        TermEnded as ``prune_done``.
        """
        ...

    async def stream_lag(self) -> Lag | None:
        """How far the mark is behind; None: there is no stream."""
        ...

    async def identity(self) -> Identity:
        """Which store this is, for readers of its records. Drawn when the store is made."""
        ...

    async def restore(self, state: Restored, told: Told) -> None:
        """Write a store's whole content, rebuilt from a stream, into this one, which is empty.

        Empty: no jobs, no keys, no queue but an unused default one, and nobody leads; otherwise
        Conflict, and nothing was written. Jobs, events and queues are as they were; new jobs and
        changes of queues get numbers after the old ones. ``state`` says who the store is from
        then on. Interrupted, it leaves nothing, or a
        store that cannot be opened and says why.
        """
        ...

    # -- queues ----------------------------------------------------------------------------

    async def create_queue(self, queue: Queue) -> bool:
        """Create a queue; False if the name exists already."""
        ...

    async def update_queue(self, name: str, values: Mapping[str, Any]) -> Queue | None:
        """Give a queue new values of these settings (``core.job.SETTINGS``), checked already.

        Returns the queue as it is then; None if there is none of that name. Jobs that were
        submitted before keep the retries, TTL and timeout that they got.
        """
        ...

    async def pause_queue(self, name: str, paused: bool) -> bool:
        """Stop or resume claims from a queue; False if there is none of that name."""
        ...

    async def delete_queue(self, name: str) -> int | None:
        """Remove an empty queue; returns the unfinished jobs that forbid it, None if unknown."""
        ...

    async def unfinished(self, queue: str, limit: int) -> list[int]:
        """The seqs of a queue's unfinished jobs."""
        ...

    async def stats(self, queue: str | None = None) -> list[QueueStats]:
        """Figures of one queue or of all, by name."""
        ...

    async def waiting_types(self, count_to: int, queue: str | None = None) -> list[WaitingType]:
        """The types of the jobs that can be claimed, of one queue or of all, by queue and type.

        Of each type so many jobs are counted at most: the cost grows with the number of types,
        not with the number of jobs. A paused queue's are among them.
        """
        ...

    # -- workers ---------------------------------------------------------------------------

    async def register_worker(self, info: WorkerInfo) -> list[Held]:
        """Record a worker; returns the leases of its earlier incarnation, which are lost.

        PermissionDenied while the id is registered by another owner (``owner_allows``) and not
        OFFLINE; what a former owner held is lost, too. RateLimited beyond
        ``Rules.workers_per_owner``: those of the owner that are OFFLINE and hold nothing make room.
        """
        ...

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
        """Record a heartbeat that lists the leases held, and which of them are being executed.

        ``owner`` is who speaks for the worker; PermissionDenied, without effect, if its
        registration belongs to another one, whatever the incarnation.

        The assignment timeout of those begins anew: only the report of their start is late.

        ``progress`` has the news by lease. Of a lease that this worker holds it is kept, with the
        store's time, and shown with the job while the job is RUNNING under that lease. It is no
        transition, and it may be lost with the server that keeps it.

        ``overrun`` counts slots of attempts that are over, and whose function still runs; None: as
        many as before. A registration sets it to 0.

        Blocking, and callable from any thread: heartbeats must survive a blocked loop. ``lost``
        names listed leases that do not stand, ``unlisted`` leases that stand but were not listed.
        """
        ...

    async def held(self, worker_id: str | None = None) -> list[Held]:
        """The leases in force, of one worker or of all."""
        ...

    async def set_worker_status(self, worker_id: str, status: WorkerStatus) -> bool:
        """Drain, take back, stop or retire a worker; False if it is unknown, or stops already.

        One that is STOPPING or OFFLINE becomes neither ONLINE nor DRAINING.
        """
        ...

    async def workers(self) -> list[Worker]:
        """Every worker known, by id."""
        ...

    async def retire_silent(self, silent_for: float, term: Term) -> list[str]:
        """Mark OFFLINE whoever was silent for longer, by the store's clock; returns them.

        Raises TermEnded when the term does not stand: it is checked in the same transaction.
        """
        ...

    async def retire_worker(self, worker_id: str, incarnation: int, *, owner: str = "") -> bool:
        """Remove a worker that says goodbye, if it is that incarnation and holds nothing.

        ``owner`` as with ``pulse``.
        """
        ...

    async def forget_worker(self, worker_id: str) -> bool:
        """Remove an OFFLINE worker's row."""
        ...
