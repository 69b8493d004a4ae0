"""Workers that hear of their jobs by Kafka: what is said there, and what that asks of the store.

The store alone decides. A hint says only that it is worth a look: whoever loses one, gets it twice
or gets it late finds in the store what is so.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from jobqueue.core.job import Assignment, Pulse, WorkerStatus
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.store import Claim, Store, Term


class HintKind(enum.Enum):
    """What happened. The value is its name in Kafka."""

    JOB_CREATED = "JobCreated"
    JOB_REQUEUED = "JobRequeued"
    JOB_ASSIGNED = "JobAssigned"
    JOB_STARTED = "JobStarted"
    JOB_COMPLETED = "JobCompleted"
    JOB_FAILED = "JobFailed"
    WORKER_REGISTERED = "WorkerRegistered"
    WORKER_DEAD = "WorkerDead"


ENDS = frozenset({HintKind.JOB_COMPLETED, HintKind.JOB_FAILED})
"""After these an attempt's slot is free."""


@dataclass(frozen=True, slots=True)
class Hint:
    """Word of something that happened to a job or a worker."""

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
    """Brings hints from the moment that it is started. They may be late, doubled or missing."""

    def start(
        self,
        heard: Callable[[Sequence[Hint]], None],
        wanted: Callable[[], bool] | None = None,
    ) -> None:
        """Call ``heard`` on the loop with what comes, as long as it is wanted.

        ``wanted`` is asked from another thread.
        """
        ...

    async def stop(self) -> None:
        """Bring no more; returns in bounded time."""
        ...


class DispatchStore(Store, Protocol):
    """A store whose workers hear of their jobs by Kafka."""

    async def claim(
        self, claims: Sequence[Claim], *, term: Term | None = None, tell: bool = False
    ) -> list[Assignment]:
        """See ``Store.claim``. Under a term, only while it stands; else TermEnded.

        With ``tell`` the store itself gives its workers word (``Change.ASSIGNED``).
        """
        ...

    async def partition_of(self, worker_id: str, incarnation: int) -> int | None:
        """The partition that this life of the worker was allotted when it registered."""
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
        withheld: int | None = None,
    ) -> Pulse:
        """See ``Store.pulse``. ``withheld``: so many slots are not free although no lease is held
        for them; None: as many as at the last heartbeat."""
        ...

    async def standing(
        self, job_ids: Sequence[str] | None, worker_id: str, incarnation: int | None = None
    ) -> list[Assignment]:
        """Of these jobs (None: of all), those that are ASSIGNED to the worker now.

        With an incarnation: nothing, unless it is the one that is registered.
        """
        ...

    async def set_worker_status(
        self, worker_id: str, status: WorkerStatus, *, incarnation: int | None = None
    ) -> bool:
        """See ``Store.set_worker_status``. With an incarnation: of that one alone."""
        ...

    async def repeat_assignments(self, older_than: float, limit: int, term: Term) -> int:
        """Have the word of assignments that were not started for so long sent again.

        Returns how many. TermEnded as ``Store.prune_done``.
        """
        ...
