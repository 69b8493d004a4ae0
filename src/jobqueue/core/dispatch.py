"""Workers that learn of their jobs by Kafka: the hints, and the additional calls of a store.

The store alone decides. A hint only says that a look at the store is worth while. Hints may be
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
    """The event that a hint tells of. The value is its name in Kafka."""

    JOB_CREATED = "JobCreated"
    JOB_REQUEUED = "JobRequeued"
    JOB_ASSIGNED = "JobAssigned"
    JOB_STARTED = "JobStarted"
    JOB_COMPLETED = "JobCompleted"
    JOB_FAILED = "JobFailed"
    WORKER_REGISTERED = "WorkerRegistered"
    WORKER_DEAD = "WorkerDead"


ENDS = frozenset({HintKind.JOB_COMPLETED, HintKind.JOB_FAILED})
"""The hints after which an attempt's slot is free."""


@dataclass(slots=True)
class Hint:
    """A message about an event of a job or a worker."""

    kind: HintKind
    event_id: str
    at: float
    job_id: str = ""
    queue: str = ""
    attempt: int = 0
    worker_id: str = ""
    incarnation: int = 0
    final: bool = False  # of a failure: the job is given up


class HintSource(Protocol):
    """Delivers hints from its start on. They may be late, repeated or missing."""

    def start(
        self, heard: Callable[[Sequence[Hint]], None], wanted: Callable[[], bool] | None = None
    ) -> None:
        """Call ``heard`` on the loop with new hints, while ``wanted`` (from any thread) is True."""

    async def stop(self) -> None:
        """Stop delivering, in bounded time."""


class DispatchJobs(JobStore, Protocol):
    """The write path, for a leader that claims for all workers."""

    async def claim(
        self, claims: Sequence[Claim], *, term: Term | None = None, tell: bool = False
    ) -> list[Assignment]:
        """Claim as ``JobStore.claim`` does; under a term that is over, raise TermEnded.

        With ``tell`` the store itself notifies its workers (``Change.ASSIGNED``).
        """

    async def standing(
        self, job_ids: Sequence[str] | None, worker_id: str, incarnation: int | None = None
    ) -> list[Assignment]:
        """Return those of these jobs (None: of all) that are ASSIGNED to the worker now.

        With an incarnation: none, unless it is the registered one.
        """

    async def repeat_assignments(self, older_than: float, limit: int, term: Term) -> int:
        """Repeat the hints of assignments not started for ``older_than`` seconds; count them.

        While there is a stream, ``changes_after`` gives each as an ``AssignmentRepeated``, at most
        once in ``older_than`` seconds, for workers with a partition. Fenced by the term.
        """


class DispatchWorkers(WorkerStore, Protocol):
    """The workers, with the additions for those that learn of their jobs by Kafka."""

    async def partition_of(self, worker_id: str, incarnation: int) -> int | None:
        """Return the partition that this incarnation got when it registered; None: it has none."""

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

        ``withheld`` slots are not free although no lease is held for them; None: as many as before.
        """

    async def set_status(
        self, worker_id: str, status: WorkerStatus, *, incarnation: int | None = None
    ) -> bool:
        """Set the status as ``WorkerStore.set_status`` does, if that incarnation is registered."""


@dataclass(frozen=True, slots=True)
class DispatchStore:
    """The parts of a store whose workers learn of their jobs by Kafka."""

    jobs: DispatchJobs
    workers: DispatchWorkers


def dispatch_of(store: Store) -> DispatchStore:
    """Return these parts of a store; InvalidArgument if it cannot have such workers."""
    if store.dispatch is None:
        raise InvalidArgument("kafka.dispatch", f"needs a store in Redis, not {store.location}")
    return store.dispatch
