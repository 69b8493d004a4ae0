"""The APIs that faces, the SDK and workers call. ``Engine`` implements all of them; remote
clients implement them over gRPC, so that a caller cannot tell the two apart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

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


class ClientApi(Protocol):
    """What producers of jobs call."""

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        """Submit jobs; one result each, in order. Durable when it returns."""
        ...

    async def get(self, job_id: str) -> Job:
        """Read a job; NotFound if there is none."""
        ...

    async def wait(self, job_id: str, timeout: float | None) -> Job:
        """Return the job once it is terminal, or as it is when the time is up."""
        ...

    async def cancel(self, job_id: str) -> Cancellation:
        """Cancel at once what is not running; ask a running job's worker to stop."""
        ...

    async def list_jobs(self, query: JobQuery) -> Page:
        """List jobs, newest first.

        Large jobs make a page shorter than asked for; only an empty token says that it is the last.
        """
        ...

    async def history(self, job_id: str, before_version: int | None = None) -> list[Event]:
        """A job's newest transitions, MAX_HISTORY at most, in their order; with
        ``before_version``, of those that are older than that one.

        The first one has version 1, so the first of an answer tells how many are older. NotFound
        if there is no such job.
        """
        ...

    def watch(self, job_id: str) -> AsyncIterator[Event]:
        """A job's transitions, past ones first, then as they happen, until it is terminal."""
        ...


class TimelineApi(Protocol):
    """What a face calls whose pages count from the first job; only a server has it."""

    async def list_by_time(self, query: TimeQuery) -> list[Job]:
        """Jobs by their time of creation, without their results."""
        ...


class Inbox(Protocol):
    """The worker's side of a link. Called on the loop; must not block or raise."""

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Jobs to execute; never more than the slots granted."""
        ...

    def cancel(self, leases: Sequence[int]) -> None:
        """Stop these attempts: cancel was requested, or the lease does not stand any more."""
        ...

    def set_status(self, status: WorkerStatus) -> None:
        """An operator drains or stops the worker, or takes a drain back."""
        ...

    def holds(self) -> Sequence[int] | None:
        """Every lease that has arrived and whose end was not answered; None: it cannot tell."""
        ...

    def moved(self) -> None:
        """The worker's latest registration is at another server: nothing more comes here.

        A worker that does listen here connects again.
        """
        ...


@runtime_checkable
class BoundedInbox(Inbox, Protocol):
    """An inbox that has room for so many jobs only: it is asked before any are claimed for it."""

    def reserve(self, slots: int) -> int:
        """Take room for jobs to come; returns for how many there is, at most ``slots``.

        When there is more, the inbox sees to it that its slots are offered again.
        """
        ...

    def release(self, slots: int) -> None:
        """Give back what was reserved for so many: what came of them was assigned before."""
        ...


class Link(Protocol):
    """A registered worker's connection."""

    def grant(self, slots: int) -> None:
        """Offer that many more free slots; none: those that are free are offered again."""
        ...

    async def report(self, reports: Sequence[Transition], freed: int = 0) -> list[bool]:
        """Report on leases held; returns, when durable, which were accepted.

        ``freed`` slots are offered again in the same write. Raises Unavailable when it did not
        happen, OutcomeUnknown when it may have: repeat it in both cases, a report is idempotent
        (a repeated one is refused as stale). Nothing is freed when it raises.
        """
        ...

    def pulse(
        self,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        complete: bool = True,
        fresh: bool = False,
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
    ) -> Pulse:
        """Heartbeat. Blocking, from any thread.

        ``begun`` are the leases whose execution has begun, told or not, or waits its turn: their
        assignment does not time out. ``complete=False``: the loop has not looked at everything
        delivered, so that a lease that is missing from the list proves nothing. ``fresh``: the list
        was made after this link was there, so that nothing from before can still be under way.
        ``progress`` has what is new since the last heartbeat that was answered, by lease.
        """
        ...

    async def drain(self, *, pause: bool = False) -> None:
        """Withdraw every free slot: nothing is delivered after this returns, until a grant.

        ``pause``: the worker will offer slots again by itself.
        """
        ...

    async def close(self) -> None:
        """Deregister."""
        ...


class DispatchApi(Protocol):
    """What workers call."""

    async def connect(self, info: WorkerInfo, inbox: Inbox) -> Link:
        """Register a worker. Grants no slots yet."""
        ...


class AttendanceApi(Protocol):
    """What a worker may ask of any server, whichever it is connected to."""

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
        """Heartbeat, like ``Link.pulse``. Blocking, from any thread.

        ``owner`` is the name of the caller; PermissionDenied if another one registered the worker.
        A remote server knows its caller by the credential.
        """
        ...

    async def leave(self, worker_id: str, incarnation: int, *, owner: str = "") -> None:
        """Deregister; one that is gone already, or still holds jobs, is no error.

        ``owner`` as with ``pulse``.
        """
        ...

    async def missing_queues(self, names: Sequence[str]) -> list[str]:
        """Those of these queues that do not exist, in the order given."""
        ...


class OperatorApi(Protocol):
    """What operators call."""

    async def create_queue(self, spec: QueueSpec) -> Queue:
        """Create a queue; AlreadyExists if the name is taken."""
        ...

    async def update_queue(self, name: str, update: QueueUpdate) -> Queue:
        """Change the settings that the update names; NotFound if there is no such queue.

        Jobs that were submitted before keep the retries, TTL and timeout that they got; how long
        a failed job waits, capacity and weights are those of the queue at that moment.
        """
        ...

    async def delete_queue(self, name: str, *, force: bool = False) -> int:
        """Delete an empty queue; by force, dead-letter its unfinished jobs (returns how many).

        Conflict if it is not empty and force is not given.
        """
        ...

    async def pause_queue(self, name: str) -> None:
        """Hand out no more of its jobs."""
        ...

    async def resume_queue(self, name: str) -> None:
        """Hand out its jobs again."""
        ...

    async def queue_stats(self, name: str) -> QueueStats:
        """Figures of one queue."""
        ...

    async def list_queues(self) -> list[QueueStats]:
        """Figures of all queues, by name."""
        ...

    async def list_workers(self) -> list[Worker]:
        """Every worker known."""
        ...

    async def drain_worker(self, worker_id: str) -> None:
        """The worker finishes what it runs and gets no more."""
        ...

    async def undrain_worker(self, worker_id: str) -> None:
        """A DRAINING worker takes jobs again; Conflict if it is STOPPING or OFFLINE."""
        ...

    async def shutdown_worker(self, worker_id: str) -> None:
        """The worker drains, then exits."""
        ...

    async def retry(self, job_id: str) -> Job:
        """Send a FAILED or DEAD_LETTERED job back to PENDING with its counter reset."""
        ...

    async def retry_dead_letters(self, query: RetryQuery) -> Retried:
        """Send the next dead letters that match back to PENDING, with their counters reset.

        One call looks at a bounded number of them, newest first; repeat it with the token that it
        returns until that is empty. A job that is dead-lettered again meanwhile is not met twice.
        """
        ...

    async def delete_job(self, job_id: str) -> None:
        """Remove a terminal job for good."""
        ...

    async def health(self) -> Health:
        """Whether the system can do its work."""
        ...


class Backend(ClientApi, OperatorApi, DispatchApi, AttendanceApi, Protocol):
    """All of them, with a life of its own."""

    async def start(self) -> None:
        """Connect, or open the store and start the background tasks."""
        ...

    async def stop(self) -> None:
        """Stop cleanly. May be called twice, or before start."""
        ...
