"""Define the calls of an operator for scripts, like ``await app.operator.list_queues()``."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from jobqueue.client.handle import Port
from jobqueue.client.options import Seconds, seconds
from jobqueue.client.tasks import OverlapName, times
from jobqueue.core.api import Backend, OperatorApi, ScheduleApi
from jobqueue.core.job import JobQuery, JobSpec, Page, RetryQuery
from jobqueue.core.lifecycle import State, parse_deaths
from jobqueue.core.queue import Queue, QueueSpec, QueueUpdate, SettingsSaid
from jobqueue.core.schedule import Schedule, ScheduleSpec

P = ParamSpec("P")
R = TypeVar("R")


def _of_backend(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[Operator, P], Coroutine[Any, Any, R]]:
    """Create a method that calls the backend's method of the same name."""
    name = method.__name__

    @functools.wraps(method)
    async def call(operator: Operator, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await operator._call(lambda backend: getattr(backend, name)(*args, **kwargs))

    return call


class Operator:
    """Manages queues, workers, schedules and dead letters through an app's backend."""

    def __init__(self, port: Callable[[], Port]) -> None:
        self._port = port

    async def _call(self, op: Callable[[Backend], Awaitable[R]]) -> R:
        return await self._port().call(op)

    delete_queue = _of_backend(OperatorApi.delete_queue)
    pause_queue = _of_backend(OperatorApi.pause_queue)
    resume_queue = _of_backend(OperatorApi.resume_queue)
    queue_stats = _of_backend(OperatorApi.queue_stats)
    list_queues = _of_backend(OperatorApi.list_queues)
    list_workers = _of_backend(OperatorApi.list_workers)
    drain_worker = _of_backend(OperatorApi.drain_worker)
    undrain_worker = _of_backend(OperatorApi.undrain_worker)
    shutdown_worker = _of_backend(OperatorApi.shutdown_worker)
    retry = _of_backend(OperatorApi.retry)
    delete_job = _of_backend(OperatorApi.delete_job)
    health = _of_backend(OperatorApi.health)
    get_schedule = _of_backend(ScheduleApi.get_schedule)
    list_schedules = _of_backend(ScheduleApi.list_schedules)
    pause_schedule = _of_backend(ScheduleApi.pause_schedule)
    resume_schedule = _of_backend(ScheduleApi.resume_schedule)
    run_schedule = _of_backend(ScheduleApi.run_schedule)
    remove_schedule = _of_backend(ScheduleApi.remove_schedule)

    async def create_schedule(
        self,
        name: str,
        job: JobSpec,
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str | None = None,
        overlap: OverlapName | None = None,
        catch_up: Seconds | None = None,
    ) -> Schedule:
        """Create a schedule that submits a copy of ``job``, like ``task.spec("daily")``.

        Raises AlreadyExists if the name is taken. For a schedule that belongs to the code, use
        ``app.periodic`` or ``@app.task(cron=...)``.
        """
        chosen = times(cron, every, timezone, overlap)
        spec = ScheduleSpec(
            name=name,
            job=job,
            cron=chosen.cron,
            every=chosen.every,
            timezone=chosen.timezone,
            overlap=chosen.overlap,
            catch_up=seconds("catch_up", catch_up),
        )
        return await self._call(lambda backend: backend.create_schedule(spec))

    async def create_queue(self, queue: QueueSpec) -> Queue:
        """Create a queue. Raises AlreadyExists if the name is taken."""
        return await self._call(lambda backend: backend.create_queue(queue))

    async def update_queue(self, name: str, **settings: Unpack[SettingsSaid]) -> Queue:
        """Change the given settings of a queue; ``None`` resets a setting to its default.

        Jobs that were submitted before keep their retries, TTL and timeout.
        """
        update = QueueUpdate(**settings)
        return await self._call(lambda backend: backend.update_queue(name, update))

    async def list_jobs(self, query: JobQuery | None = None) -> Page:
        """Return a page of jobs, newest first.

        A page of large jobs may have fewer jobs than the limit; only the last page has an empty
        token.
        """
        wanted = query or JobQuery()
        return await self._call(lambda backend: backend.list_jobs(wanted))

    async def dead_letters(
        self, queue: str | None = None, *, limit: int = 20, page_token: str = ""
    ) -> Page:
        """Return a page of dead letters, newest first."""
        return await self.list_jobs(
            JobQuery(queue=queue, states=(State.DEAD_LETTERED,), limit=limit, page_token=page_token)
        )

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
        """Move all matching dead letters back to PENDING, and return their number.

        By default, only jobs that failed are retried, not jobs that were cancelled, expired or
        deleted with their queue; ``reasons`` may name these reasons, or ALL. ``error`` is a part of
        the error text. ``since`` and ``until`` bound the time at which a job became a dead letter.
        If the call raises, some jobs may have been retried already; call it again for the rest.
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
            page = await self._call(lambda backend: backend.retry_dead_letters(query))
            count += page.retried
            query.page_token = page.next_page_token
            if not page.next_page_token:
                return count
