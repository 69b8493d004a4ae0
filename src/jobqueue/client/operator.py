"""What operators do, for scripts: ``await app.operator.list_queues()``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Unpack

from jobqueue.client.handle import Port
from jobqueue.core.job import Health, Job, JobQuery, Page, RetryQuery, Worker
from jobqueue.core.lifecycle import State, parse_deaths
from jobqueue.core.queue import Queue, QueueSpec, QueueStats, QueueUpdate, SettingsSaid


class Operator:
    """Queues, workers, dead letters."""

    def __init__(self, port: Callable[[], Port]) -> None:
        self._port = port

    async def create_queue(self, queue: QueueSpec) -> Queue:
        """Create a queue; AlreadyExists if the name is taken."""
        return await self._port().call(lambda backend: backend.create_queue(queue))

    async def update_queue(self, name: str, **settings: Unpack[SettingsSaid]) -> Queue:
        """Change what is given, and nothing else; ``None`` puts a setting back to the default.

        Jobs that were submitted before keep the retries, TTL and timeout that they got.
        """
        update = QueueUpdate(**settings)
        return await self._port().call(lambda backend: backend.update_queue(name, update))

    async def delete_queue(self, name: str, *, force: bool = False) -> int:
        """Delete an empty queue; by force, dead-letter its unfinished jobs (returns how many)."""
        return await self._port().call(lambda backend: backend.delete_queue(name, force=force))

    async def pause_queue(self, name: str) -> None:
        """Hand out no more of its jobs."""
        await self._port().call(lambda backend: backend.pause_queue(name))

    async def resume_queue(self, name: str) -> None:
        """Hand out its jobs again."""
        await self._port().call(lambda backend: backend.resume_queue(name))

    async def queue_stats(self, name: str) -> QueueStats:
        """Figures of one queue."""
        return await self._port().call(lambda backend: backend.queue_stats(name))

    async def list_queues(self) -> list[QueueStats]:
        """Figures of all queues, by name."""
        return await self._port().call(lambda backend: backend.list_queues())

    async def list_workers(self) -> list[Worker]:
        """Every worker known."""
        return await self._port().call(lambda backend: backend.list_workers())

    async def drain_worker(self, worker_id: str) -> None:
        """The worker finishes what it runs and gets no more."""
        await self._port().call(lambda backend: backend.drain_worker(worker_id))

    async def undrain_worker(self, worker_id: str) -> None:
        """A DRAINING worker takes jobs again; Conflict if it is STOPPING or OFFLINE."""
        await self._port().call(lambda backend: backend.undrain_worker(worker_id))

    async def shutdown_worker(self, worker_id: str) -> None:
        """The worker drains, then exits."""
        await self._port().call(lambda backend: backend.shutdown_worker(worker_id))

    async def list_jobs(self, query: JobQuery | None = None) -> Page:
        """List jobs, newest first.

        Large jobs make a page shorter than asked for; only an empty token says that it is the last.
        """
        wanted = query or JobQuery()
        return await self._port().call(lambda backend: backend.list_jobs(wanted))

    async def dead_letters(
        self, queue: str | None = None, *, limit: int = 20, page_token: str = ""
    ) -> Page:
        """List the jobs that were given up, newest first."""
        return await self.list_jobs(
            JobQuery(queue=queue, states=(State.DEAD_LETTERED,), limit=limit, page_token=page_token)
        )

    async def retry(self, job_id: str) -> Job:
        """Send a FAILED or DEAD_LETTERED job back to PENDING with its counter reset."""
        return await self._port().call(lambda backend: backend.retry(job_id))

    async def retry_dead_letters(
        self,
        queue: str | None = None,
        *,
        type: str | None = None,
        reasons: Sequence[str] = ("FAILURES",),
        error: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> int:
        """Send the dead letters that match back to PENDING; returns how many.

        By default those that failed, not those that were cancelled, expired or dropped with
        their queue: ``reasons`` may name these, or ALL. ``error`` is part of the error text;
        ``since`` and ``until`` bound the time of death. What is sent back stays so when a later
        page raises: call it again to go on.
        """
        query = RetryQuery(
            queue=queue,
            type=type,
            reasons=parse_deaths(reasons, "reasons"),
            error=error,
            since=None if since is None else since.timestamp(),
            until=None if until is None else until.timestamp(),
        )
        count = 0
        while True:
            page = await self._port().call(lambda backend: backend.retry_dead_letters(query))
            count += page.retried
            query.page_token = page.next_page_token
            if not page.next_page_token:
                return count

    async def delete_job(self, job_id: str) -> None:
        """Remove a terminal job for good."""
        await self._port().call(lambda backend: backend.delete_job(job_id))

    async def health(self) -> Health:
        """Whether the system can do its work."""
        return await self._port().call(lambda backend: backend.health())
