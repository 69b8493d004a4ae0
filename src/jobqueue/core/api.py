"""The APIs that faces, the SDK and workers call.

``Engine`` implements them all. Remote clients implement them over gRPC, so that a caller cannot
tell the two apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

from jobqueue.core.errors import DeadlineExceeded, OutcomeUnknown, Unavailable
from jobqueue.core.job import (
    Assignment,
    Cancellation,
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

T = TypeVar("T")
_FAILING_STORE_TIMEOUT = 0.3  # seconds; a failing store may still be read (a full disk), or hang


class ClientApi(Protocol):
    """The calls of producers of jobs."""

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        """Submit jobs; returns a result for each, in order, when they are durable."""

    async def get(self, job_id: str) -> Job:
        """Read a job; NotFound if there is none."""

    async def wait(self, job_id: str, timeout: float | None) -> Job:
        """Return the job once it is terminal, or as it is when the time is up."""

    async def cancel(self, job_id: str) -> Cancellation:
        """Cancel a job at once; if it is running, ask its worker to stop."""

    async def list_jobs(self, query: JobQuery) -> Page:
        """List jobs, newest first. The last page has an empty token; others may be short."""

    async def history(self, job_id: str, before_version: int | None = None) -> list[Event]:
        """Return a job's newest transitions, at most MAX_HISTORY, in order; NotFound if there is
        no such job.

        With ``before_version``: the newest of those before that version. Versions begin at 1, so
        the first one of an answer tells the number of older ones.
        """

    def watch(self, job_id: str) -> AsyncIterator[Event]:
        """Yield a job's past transitions, then new ones as they happen, until it is terminal."""


class TimelineApi(Protocol):
    """The call of a face whose pages count from the first job. Only a server implements it."""

    async def list_by_time(self, query: TimeQuery) -> list[Job]:
        """Return jobs by their time of creation, without their results."""


class Inbox(Protocol):
    """The worker's side of a link. Called on the loop; it must not block or raise."""

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Execute these jobs; there are never more than slots were granted."""

    def cancel(self, leases: Sequence[int]) -> None:
        """Stop these attempts: a cancel was requested, or the lease is not in force any more."""

    def set_status(self, status: WorkerStatus) -> None:
        """Drain or stop the worker, or undo a drain, as an operator asks."""

    def holds(self) -> Sequence[int] | None:
        """Return the leases that arrived and whose end is not acknowledged; None: not known."""

    def moved(self) -> None:
        """Expect nothing more: the worker's latest registration is at another server.

        A worker that still listens here connects again.
        """


@runtime_checkable
class BoundedInbox(Inbox, Protocol):
    """An inbox with room for a number of jobs. It is asked before jobs are claimed for it."""

    def reserve(self, slots: int) -> int:
        """Reserve room for at most ``slots`` jobs; returns the number reserved.

        When more room comes free, the inbox offers its slots again.
        """

    def release(self, slots: int) -> None:
        """Give reserved room back, after the jobs that came for it were assigned."""


class Link(Protocol):
    """A registered worker's connection."""

    def grant(self, slots: int) -> None:
        """Offer so many more free slots; 0 offers the free ones again."""

    async def report(self, reports: Sequence[Transition], freed: int = 0) -> list[bool]:
        """Report on leases held; returns, when durable, for each whether it was accepted.

        ``freed`` slots are offered again in the same write. Unavailable: it did not happen;
        OutcomeUnknown: it may have. Repeat it in both cases: a repeated report is refused as
        stale. No slot is freed when it raises.
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
        """Send a heartbeat. Blocking, from any thread.

        ``begun``: leases that are being executed or wait their turn, the start reported or not;
        their assignment does not time out. ``complete=False``: the loop has not looked at all
        deliveries, so a lease that is missing from the list proves nothing. ``fresh``: the list
        was made after this link began, so no delivery from before is still under way.
        ``progress``: by lease, the news since the last heartbeat that was answered.
        """

    async def drain(self, *, pause: bool = False) -> None:
        """Withdraw every free slot; no job is delivered after this returns, until a grant.

        ``pause``: the worker will offer slots again.
        """

    async def close(self) -> None:
        """Deregister the worker."""


class DispatchApi(Protocol):
    """The call by which workers get their jobs."""

    async def connect(self, info: WorkerInfo, inbox: Inbox) -> Link:
        """Register a worker, without slots at first."""


class AttendanceApi(Protocol):
    """The calls that a worker may make to any server, not only the one it is connected to."""

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
        """Send a heartbeat, like ``Link.pulse``. Blocking, from any thread.

        ``owner`` is the name of the caller; PermissionDenied if another one registered the worker.
        A remote server knows its caller by the credential.
        """

    async def leave(self, worker_id: str, incarnation: int, *, owner: str = "") -> None:
        """Deregister a worker; no error if it is gone, or stays because it still holds jobs."""

    async def missing_queues(self, names: Sequence[str]) -> list[str]:
        """Return those of these queues that do not exist, in the order given."""


class OperatorApi(Protocol):
    async def create_queue(self, spec: QueueSpec) -> Queue:
        """Create a queue; AlreadyExists if the name is taken."""

    async def update_queue(self, name: str, update: QueueUpdate) -> Queue:
        """Change the settings that the update names; NotFound if there is no such queue.

        Jobs submitted before keep their retries, TTL and timeout. The waits of failed jobs,
        capacity and weights are always those of the queue at the moment.
        """

    async def delete_queue(self, name: str, *, force: bool = False) -> int:
        """Delete an empty queue; Conflict if it is not empty.

        With ``force``, dead-letter its unfinished jobs first; returns their number.
        """

    async def pause_queue(self, name: str) -> None:
        """Stop handing out the jobs of a queue."""

    async def resume_queue(self, name: str) -> None:
        """Hand out the jobs of a paused queue again."""

    async def queue_stats(self, name: str) -> QueueStats:
        """Return the figures of one queue."""

    async def list_queues(self) -> list[QueueStats]:
        """Return the figures of all queues, by name."""

    async def list_workers(self) -> list[Worker]:
        """Return every worker known."""

    async def drain_worker(self, worker_id: str) -> None:
        """Let a worker finish its jobs and give it no more."""

    async def undrain_worker(self, worker_id: str) -> None:
        """Give a DRAINING worker jobs again; Conflict if it is STOPPING or OFFLINE."""

    async def shutdown_worker(self, worker_id: str) -> None:
        """Let a worker finish its jobs, then exit."""

    async def retry(self, job_id: str) -> Job:
        """Send a FAILED or DEAD_LETTERED job back to PENDING with its counter reset."""

    async def retry_dead_letters(self, query: RetryQuery) -> Retried:
        """Send the next dead letters that match back to PENDING, with their counters reset.

        One call reads a bounded number of them, newest first. Repeat it with the token that it
        returns until that is empty. A job that is dead-lettered again meanwhile is not read twice.
        """

    async def delete_job(self, job_id: str) -> None:
        """Remove a terminal job for ever."""

    async def health(self) -> Health:
        """Return the health of the system, part by part."""


class Backend(ClientApi, OperatorApi, DispatchApi, AttendanceApi, Protocol):
    """All of these APIs, with a start and a stop."""

    async def start(self) -> None:
        """Connect, or open the store and start the background tasks."""

    async def stop(self) -> None:
        """Stop cleanly. May be called twice, or before ``start``."""


@dataclass(slots=True)
class Overview:
    """The health of a system, and its queues and workers if they could be read."""

    health: Health
    queues: list[QueueStats] | None = None
    workers: list[Worker] | None = None
    missing: dict[str, str] = field(default_factory=dict)  # errors by the name of the list


async def overview(api: OperatorApi, timeout: float) -> Overview:
    """Read the health first, then the lists, for at most ``timeout`` seconds."""
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
