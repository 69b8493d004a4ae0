"""Define the hints and the store calls for workers that learn of their jobs through Kafka.

The store is authoritative. A hint only says that the reader should query the store. Hints may be
lost, late or repeated.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import Assignment, Pulse, WorkerStatus
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.store import Claim, JobStore, Store, Term, WorkerStore


class HintKind(enum.Enum):
    """The kind of event that a hint is about. The value is the event's name in Kafka."""

    JOB_CREATED = "JobCreated"
    JOB_REQUEUED = "JobRequeued"
    JOB_ASSIGNED = "JobAssigned"
    JOB_STARTED = "JobStarted"
    JOB_COMPLETED = "JobCompleted"
    JOB_FAILED = "JobFailed"
    WORKER_REGISTERED = "WorkerRegistered"
    WORKER_DEAD = "WorkerDead"


ENDS = frozenset({HintKind.JOB_COMPLETED, HintKind.JOB_FAILED})
"""The kinds of hints that announce the end of an attempt, which frees a slot."""


@dataclass(slots=True)
class Hint:
    """A Kafka message about an event of a job or a worker."""

    kind: HintKind
    event_id: str
    at: float
    job_id: str = ""
    queue: str = ""
    attempt: int = 0
    worker_id: str = ""
    incarnation: int = 0
    final: bool = False  # of JOB_FAILED: True if the job became a dead letter


class HintSource(Protocol):
    """Delivers the hints that arrive after its start. Hints may be late, repeated or missing."""

    def start(
        self, heard: Callable[[Sequence[Hint]], None], wanted: Callable[[], bool] | None = None
    ) -> None:
        """Start to call ``heard`` with new hints, on the event loop, while ``wanted()`` is True.

        ``wanted`` may be called from any thread; None means that hints are always wanted.
        """

    async def stop(self) -> None:
        """Stop the delivery of hints, in bounded time."""


class DispatchJobs(JobStore, Protocol):
    """Extends the write path of jobs for a leader that claims jobs for all workers."""

    async def claim(
        self, claims: Sequence[Claim], *, term: Term | None = None, tell: bool = False
    ) -> list[Assignment]:
        """Claim jobs as ``JobStore.claim`` does. Raises TermEnded if ``term`` is over.

        With ``tell``, the store also notifies the workers itself (``Change.ASSIGNED``).
        """

    async def standing(
        self, job_ids: Sequence[str] | None, worker_id: str, incarnation: int | None = None
    ) -> list[Assignment]:
        """Return the jobs that are ASSIGNED to the worker now.

        ``job_ids`` limits the result to these jobs; None means all jobs. If ``incarnation`` is
        given and is not the registered incarnation, the result is empty.
        """

    async def repeat_assignments(self, older_than: float, limit: int, term: Term) -> int:
        """Repeat the hints of jobs not started ``older_than`` seconds after their assignment.

        Return the number of hints.

        While the event stream is in use, ``changes_after`` returns an ``AssignmentRepeated`` for
        each assignment of a worker with a partition, at most once in ``older_than`` seconds. The
        call is fenced by the term.
        """


class DispatchWorkers(WorkerStore, Protocol):
    """Extends the store of workers for workers that learn of their jobs through Kafka."""

    async def partition_of(self, worker_id: str, incarnation: int) -> int | None:
        """Return the Kafka partition that this incarnation got at its registration, or None."""

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
        withheld: int | None = None,
    ) -> Pulse:
        """Record a heartbeat as ``WorkerStore.pulse`` does.

        ``withheld`` counts slots that the worker neither offers nor uses for a lease; None means as
        many as before.
        """

    async def set_status(
        self, worker_id: str, status: WorkerStatus, *, incarnation: int | None = None
    ) -> bool:
        """Set the status as ``WorkerStore.set_status`` does.

        If ``incarnation`` is given and is not the registered incarnation, nothing changes.
        """


@dataclass(frozen=True, slots=True)
class DispatchStore:
    """Holds the parts of a store for workers that learn of their jobs through Kafka."""

    jobs: DispatchJobs
    workers: DispatchWorkers


def dispatch_of(store: Store) -> DispatchStore:
    """Return the parts of a store for workers that learn of their jobs through Kafka.

    Raises InvalidArgument if the store does not support such workers.
    """
    if store.dispatch is None:
        raise InvalidArgument("kafka.dispatch", f"needs a store in Redis, not {store.location}")
    return store.dispatch
