"""Define the APIs that faces, the SDK and workers call.

``Engine`` implements these APIs. Remote clients implement most of them over gRPC, so a caller does
not depend on whether the engine is local or remote.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.errors import DeadlineExceeded, JobQueueError, OutcomeUnknown, Unavailable
from jobqueue.core.explain import Explanation
from jobqueue.core.grouping import DeadLetterGroups
from jobqueue.core.job import (
    Assignment,
    Cancellation,
    Deleted,
    Event,
    Health,
    Job,
    JobQuery,
    JobSpec,
    Page,
    Pulse,
    Retried,
    RetryQuery,
    SubmitResult,
    TimeQuery,
    Transition,
    Worker,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.queue import Queue, QueueSpec, QueueStats, QueueUpdate
from jobqueue.core.schedule import Schedule, SchedulePage, ScheduleSpec

T = TypeVar("T")
# In seconds. A failing store may still return data (if its disk is full), or it may never return.
_FAILING_STORE_TIMEOUT = 0.3


class ClientApi(Protocol):
    """Declares the calls of a producer: submit, read, wait for, cancel and watch jobs."""

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        """Submit jobs. Return one result for each spec, in order, once the jobs are durable."""

    async def get(self, job_id: str) -> Job:
        """Return the job. Raises NotFound if no job has this id."""

    async def explain(self, job_id: str) -> Explanation:
        """Return why a job does not run. Raises NotFound if no job has this id."""

    async def wait(self, job_id: str, timeout: float | None) -> Job:
        """Wait until the job is terminal or ``timeout`` has passed, then return the job."""

    async def cancel(self, job_id: str) -> Cancellation:
        """Cancel a waiting job at once; for a running job, request that its worker stops it."""

    async def list_jobs(self, query: JobQuery) -> Page:
        """Return one page of the jobs that match the query, newest first.

        A page may have fewer jobs than the limit although more pages follow. Only the last page has
        an empty token.
        """

    async def history(self, job_id: str, before_version: int | None = None) -> list[Event]:
        """Return the newest transitions of a job, at most MAX_HISTORY, oldest first.

        With ``before_version``, only transitions before that version are returned. Versions begin
        at 1, so the version of the first returned event minus 1 is the number of older events.
        Raises NotFound if no job has this id.
        """

    def watch(self, job_id: str) -> AsyncIterator[Event]:
        """Yield a job's past transitions, then each new transition, until the job is terminal."""


class TimelineApi(Protocol):
    """Declares a listing of jobs by offset. ``Engine`` implements it; remote clients do not."""

    async def list_by_time(self, query: TimeQuery) -> list[Job]:
        """Return the jobs that match the query, by time of creation, without their results."""


class Inbox(Protocol):
    """Receives jobs and orders for a worker: the worker's side of a link.

    The methods are called on the event loop. They must not block or raise.
    """

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Execute the assigned jobs. The worker never gets more jobs than it granted slots."""

    def cancel(self, leases: Sequence[int]) -> None:
        """Stop the attempts of these leases.

        Either a cancel was requested for the job, or the lease is not in force any more.
        """

    def set_status(self, status: WorkerStatus) -> None:
        """Drain or stop the worker, or undo a drain, when an operator requests it."""

    def holds(self) -> Sequence[int] | None:
        """Return the leases that the worker holds, or None if they are not known.

        The worker holds a lease from its arrival until the server acknowledges the attempt's end.
        """

    def moved(self) -> None:
        """Connect again if the worker still uses this link, because it gets no more jobs here.

        The server stops, or the worker's latest registration is at another server.
        """


@runtime_checkable
class BoundedInbox(Inbox, Protocol):
    """An inbox with memory for a limited number of jobs.

    The scheduler calls ``reserve`` before it claims jobs for such an inbox.
    """

    def reserve(self, slots: int) -> int:
        """Reserve memory for at most ``slots`` jobs, and return how many of them fit.

        When memory for more jobs is free, the inbox offers its slots again.
        """

    def release(self, slots: int) -> None:
        """Release the reservation of ``slots`` jobs, after the claimed jobs were assigned."""


class Link(Protocol):
    """The connection of a registered worker, as the worker sees it."""

    def grant(self, slots: int) -> None:
        """Offer ``slots`` more free slots. With 0, offer the slots that are already free again."""

    async def report(self, reports: Sequence[Transition], freed: int = 0) -> list[bool]:
        """Send reports on leases that the worker holds.

        Return True or False for each report, once the write is durable: True if the report was
        accepted. The same write offers ``freed`` slots again. If the call raises, no slot is freed.
        After Unavailable (nothing was written) and OutcomeUnknown (the reports may have been
        written), repeat the call. A report that was written already is then refused.
        """

    def pulse(
        self,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        complete: bool = True,
        fresh: bool = False,
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
    ) -> Pulse:
        """Send a heartbeat. The call blocks, and may be made from any thread.

        ``leases`` are all leases that the worker holds. ``begun`` are the leases among them whose
        jobs run or wait for a thread; their assignment does not time out, even if the start is not
        reported yet. ``complete`` is False while the event loop has not read all deliveries: the
        worker may then have leases that are missing from ``leases``. ``fresh`` is True if
        ``leases`` was read after this link began: no delivery of an earlier link can follow.
        ``progress`` has, by lease, what was reported since the last answered heartbeat. ``overrun``
        counts slots in which the function of an ended attempt still runs; None means as many as
        before.
        """

    def set_breakers(self, breakers: Sequence[OpenBreaker]) -> None:
        """Tell the server which types this worker has paused.

        The server assigns it no jobs of these types, except one job for each new trial. The
        breakers replace those of the last call, and apply before the reports and free slots of
        later calls. A server of an earlier version ignores them.
        """

    async def drain(self, *, pause: bool = False) -> None:
        """Withdraw every free slot. After the return, no job is delivered until the next grant.

        ``pause`` is True if the worker will offer slots again.
        """

    async def close(self) -> None:
        """Deregister the worker."""


class DispatchApi(Protocol):
    """Declares the call by which a worker registers to get jobs."""

    async def connect(self, info: WorkerInfo, inbox: Inbox) -> Link:
        """Register a worker without free slots, and return its link."""


class AttendanceApi(Protocol):
    """Declares the calls that a worker may send to any server, even without a link to it."""

    def pulse(
        self,
        worker_id: str,
        incarnation: int,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        complete: bool = True,
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
        *,
        owner: str = "",
    ) -> Pulse:
        """Send a heartbeat, like ``Link.pulse``. The call blocks, and may be made from any thread.

        ``owner`` is the name of the caller; a remote server ignores it and uses the name in the
        caller's credential. Raises PermissionDenied if another caller registered the worker.
        """

    async def leave(self, worker_id: str, incarnation: int, *, owner: str = "") -> None:
        """Deregister a worker.

        The call does nothing if the worker is not registered, or still holds jobs.
        """

    async def missing_queues(self, names: Sequence[str]) -> list[str]:
        """Return the names for which no queue exists, in the order given."""

    async def declare_schedules(self, specs: Sequence[ScheduleSpec]) -> list[JobQueueError | None]:
        """Create the schedules that a worker's code defines, or change their definitions.

        The call may be repeated. A paused schedule stays paused. Return for each schedule None, or
        the error that refused it: InvalidArgument, or Conflict if an operator made a schedule with
        this name.
        """


class StatusApi(Protocol):
    """Declares the calls that show the state of a system: its parts, queues and workers."""

    async def list_queues(self) -> list[QueueStats]:
        """Return the settings and counters of all queues, sorted by name."""

    async def list_workers(self) -> list[Worker]:
        """Return every worker that the store knows."""

    async def health(self) -> Health:
        """Return the health of each part of the system."""


class OperatorApi(StatusApi, Protocol):
    """Declares the calls of an operator: manage queues, workers and dead letters."""

    async def create_queue(self, spec: QueueSpec) -> Queue:
        """Create a queue. Raises AlreadyExists if the name is taken."""

    async def update_queue(self, name: str, update: QueueUpdate) -> Queue:
        """Change the settings that the update names. Raises NotFound if no queue has this name.

        Jobs submitted before keep their retries, TTL and timeout. The new retry waits, capacity and
        weights apply to all jobs at once.
        """

    async def delete_queue(self, name: str, *, force: bool = False) -> int:
        """Delete a queue, and return the number of its jobs that were dead-lettered.

        Without ``force``, raises Conflict if the queue has unfinished jobs. With ``force``, the
        unfinished jobs are dead-lettered first.
        """

    async def pause_queue(self, name: str) -> None:
        """Stop handing out the jobs of a queue."""

    async def resume_queue(self, name: str) -> None:
        """Hand out the jobs of a paused queue again."""

    async def queue_stats(self, name: str) -> QueueStats:
        """Return the settings and counters of one queue."""

    async def drain_worker(self, worker_id: str) -> None:
        """Stop assigning jobs to a worker; the jobs that the worker holds go on."""

    async def undrain_worker(self, worker_id: str) -> None:
        """Assign jobs to a DRAINING worker again.

        Raises Conflict if the worker is STOPPING or OFFLINE.
        """

    async def shutdown_worker(self, worker_id: str) -> None:
        """Request that a worker finishes its jobs and exits."""

    async def retry(self, job_id: str) -> Job:
        """Move a FAILED or DEAD_LETTERED job back to PENDING, and reset its retry counter."""

    async def retry_dead_letters(self, query: RetryQuery) -> Retried:
        """Move matching dead letters back to PENDING, and reset their retry counters.

        Each call reads a bounded number of dead letters, newest first. Repeat the call with the
        returned token until the token is empty. A job that becomes a dead letter again between two
        calls is not read a second time.
        """

    async def group_dead_letters(self, query: RetryQuery) -> DeadLetterGroups:
        """Group matching dead letters by type, reason and error.

        At most the newest 10,000 dead letters are read. The page token and ``dry_run`` of the query
        have no effect.
        """

    async def delete_job(self, job_id: str) -> None:
        """Delete a terminal job permanently."""

    async def delete_dead_letters(self, query: RetryQuery) -> Deleted:
        """Delete matching dead letters permanently.

        Each call reads a bounded number of dead letters, newest first. Repeat the call with the
        returned token until the token is empty.
        """


class ScheduleApi(Protocol):
    """Declares the calls of an operator for schedules."""

    async def create_schedule(self, spec: ScheduleSpec) -> Schedule:
        """Create a schedule, whose first tick is the next one from now on.

        Raises AlreadyExists if the name is taken, and NotFound if there is no such queue.
        """

    async def get_schedule(self, name: str) -> Schedule:
        """Return a schedule. Raises NotFound if no schedule has this name."""

    async def list_schedules(self, limit: int = 100, page_token: str = "") -> SchedulePage:
        """Return a page of schedules, sorted by name, without their payloads.

        A page may have fewer schedules than the limit although more pages follow.
        """

    async def pause_schedule(self, name: str) -> Schedule:
        """Submit no more jobs of a schedule. Its ticks are skipped until it is resumed."""

    async def resume_schedule(self, name: str) -> Schedule:
        """Submit the jobs of a paused schedule again, from its next tick on."""

    async def run_schedule(self, name: str) -> str:
        """Submit the job of a schedule now, also of a paused one, and return the job's id."""

    async def remove_schedule(self, name: str) -> None:
        """Remove a schedule; its jobs stay. Raises NotFound if no schedule has this name.

        A schedule that code declares is created again when a worker with that code starts.
        """


class Backend(ClientApi, OperatorApi, ScheduleApi, DispatchApi, AttendanceApi, Protocol):
    """Combines the APIs of producers, operators and workers with ``start`` and ``stop``."""

    async def start(self) -> None:
        """Connect to the server, or open the store and start the background tasks."""

    async def stop(self) -> None:
        """Stop cleanly. The call may be repeated, or made before ``start``."""


@dataclass(slots=True)
class Overview:
    """Holds the health of a system, and its queues and workers if the store returned them."""

    health: Health
    queues: list[QueueStats] | None = None
    workers: list[Worker] | None = None
    missing: dict[str, str] = field(default_factory=dict)  # "queues" or "workers": the error


async def overview(api: StatusApi, timeout: float) -> Overview:
    """Read the health, then the lists of queues and workers.

    A list that takes longer than ``timeout`` seconds is None, and ``missing`` has its error. If the
    health is not ok, the lists get at most 0.3 seconds.
    """
    found = Overview(await api.health())
    timeout = timeout if found.health.ok else min(timeout, _FAILING_STORE_TIMEOUT)

    async def read(name: str, reading: Awaitable[T]) -> T | None:
        try:
            async with asyncio.timeout(timeout):
                return await reading
        except TimeoutError:
            found.missing[name] = f"no answer within {timeout:g} s"
        except (Unavailable, OutcomeUnknown, DeadlineExceeded) as error:
            found.missing[name] = error.message
        return None

    found.queues, found.workers = await asyncio.gather(
        read("queues", api.list_queues()), read("workers", api.list_workers())
    )
    return found
