"""Inline mode, for the tests of those who use jobqueue: a submitted job runs before the submit
returns, in the caller's own thread, through the same encoding and decoding as a real one."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar, overload

from jobqueue.client.handle import Served
from jobqueue.client.tasks import Task
from jobqueue.core.errors import Conflict, InvalidArgument, NotFound
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import (
    DEFAULT_MAX_RETRIES,
    Cancellation,
    Event,
    Job,
    JobQuery,
    JobSpec,
    Page,
    SubmitResult,
)
from jobqueue.core.lifecycle import TERMINAL, TRANSITIONS, GiveUp, Reason, State, after_failure
from jobqueue.engine.admission import check_spec
from jobqueue.engine.settings import EngineSettings
from jobqueue.worker.context import Context
from jobqueue.worker.execution import describe, retryable
from jobqueue.worker.outcomes import JobCancelled
from jobqueue.worker.registry import Registry, TaskDefinition

T = TypeVar("T")

WORKER_ID = "inline"
#: Set while a handler runs inline, so that the blocking client may be used inside it.
in_handler: contextvars.ContextVar[bool] = contextvars.ContextVar("in_handler", default=False)


class InlineBackend:
    """Runs jobs at once, and keeps their records for as long as somebody holds on to it."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.jobs: dict[str, Job] = {}
        self._history: dict[str, list[Event]] = {}
        self._keys: dict[str, tuple[str, bytes]] = {}
        self._raised: dict[str, Exception] = {}

    # -- the port: handles reach it directly -----------------------------------------------

    async def call(self, op: Callable[[Served], Awaitable[T]]) -> T:
        """Run ``op`` here."""
        return await op(self)

    def iterate(self, op: Callable[[Served], AsyncIterator[T]]) -> AsyncIterator[T]:
        """Iterate here."""
        return op(self)

    def raised(self, job_id: str) -> BaseException | None:
        """What the job's handler raised last."""
        return self._raised.get(job_id)

    # -- the client API --------------------------------------------------------------------

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        """Accept each job and run it, unless it is delayed."""
        return [await self._accept(spec) for spec in specs]

    async def get(self, job_id: str) -> Job:
        """Read a job."""
        try:
            return self.jobs[job_id]
        except KeyError:
            raise NotFound(f"there is no job {job_id}") from None

    async def wait(self, job_id: str, timeout: float | None) -> Job:
        """Read a job; one that has not ended by now never would."""
        job = await self.get(job_id)
        if job.state in TERMINAL:
            return job
        if self._registry.get(job.type) is None:
            why = f"there is no task {job.type!r} in this app"
        else:
            why = "it is delayed; call `await jobs.run_delayed()`"
        raise Conflict(f"job {job_id} is {job.state.name} in inline mode: {why}")

    async def cancel(self, job_id: str) -> Cancellation:
        """Cancel a delayed job; any other has ended already."""
        job = await self.get(job_id)
        if job.state in TERMINAL:
            return Cancellation(job.state, requested=False, already_terminal=True)
        if job.state is State.RUNNING:
            job.cancel_requested = True
            return Cancellation(job.state, requested=True)
        self._move(job, State.DEAD_LETTERED, Reason.CANCELLED)
        return Cancellation(job.state, requested=False)

    async def list_jobs(self, query: JobQuery) -> Page:
        """List jobs, newest first, on one page."""
        found = [
            job
            for job in reversed(self.jobs.values())
            if query.queue in (None, job.queue)
            and query.type in (None, job.type)
            and (not query.states or job.state in query.states)
            and (not query.reasons or job.reason in query.reasons)
            and query.error in job.error
            and _ended_within(job, query)
        ]
        return Page(found[: query.limit])

    async def history(self, job_id: str) -> list[Event]:
        """A job's transitions."""
        await self.get(job_id)
        return list(self._history[job_id])

    async def watch(self, job_id: str) -> AsyncIterator[Event]:
        """A job's transitions."""
        for event in await self.history(job_id):
            yield event

    async def retry(self, job_id: str) -> Job:
        """Run a dead letter again."""
        job = await self.get(job_id)
        if job.state is not State.DEAD_LETTERED:
            raise Conflict(f"job {job_id} is {job.state.name}; only a dead letter can be retried")
        job.retry_count, job.cancel_requested = 0, False
        self._move(job, State.PENDING, Reason.MANUAL_RETRY)
        await self.run(job)
        return job

    # -- running ---------------------------------------------------------------------------

    async def run(self, job: Job) -> None:
        """Attempt a job until it has ended; retries follow at once.

        A job of a task that lives elsewhere stays as it is: recorded.
        """
        definition = self._registry.get(job.type)
        while definition is not None and job.state not in TERMINAL:
            job.attempt += 1
            job.worker_id = WORKER_ID
            self._move(job, State.ASSIGNED, Reason.ASSIGNED)
            job.started_at = time.time()
            self._move(job, State.RUNNING, Reason.STARTED)
            try:
                job.result = await self._attempt(job, definition)
            except _TimedOut as error:
                self._failed(job, Reason.TIMED_OUT, error, str(error))
            except JobCancelled as error:
                self._failed(job, Reason.CANCELLED, error, str(error))
            except Exception as error:
                self._raised[job.id] = error
                self._failed(job, Reason.HANDLER_FAILED, error, describe(error))
            else:
                self._raised.pop(job.id, None)
                self._move(job, State.DONE, Reason.SUCCEEDED)

    async def _attempt(self, job: Job, definition: TaskDefinition) -> bytes | None:
        arguments = definition.decode(job.payload)
        timeout = definition.options.timeout if job.timeout is None else job.timeout
        if definition.context_parameter is not None:
            arguments[definition.context_parameter] = Context(
                job_id=job.id,
                queue=job.queue,
                type=job.type,
                attempt=job.attempt,
                retry_count=job.retry_count,
                max_retries=job.max_retries,
                labels=job.labels,
                payload=job.payload,
                deadline=None if timeout is None else time.monotonic() + timeout,
            )
        token = in_handler.set(True)
        try:
            value: Any = definition.fn(**arguments)
            if definition.is_async:
                value = await self._bounded(value, timeout)
        finally:
            in_handler.reset(token)
        return definition.encode_result(value)

    async def _bounded(self, running: Awaitable[Any], timeout: float | None) -> Any:
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await running
        except TimeoutError:
            if not limit.expired():
                raise  # the handler's own
            raise _TimedOut(f"timed out after {timeout:g} s") from None

    def _failed(self, job: Job, reason: Reason, error: Exception, text: str) -> None:
        job.error = text
        self._move(job, State.FAILED, reason, job.error)
        then = after_failure(
            reason,
            retry_count=job.retry_count,
            max_retries=job.max_retries,
            worker_deaths=0,
            poison_after=0,
            cancel_requested=job.cancel_requested,
            retryable=retryable(error),
        )
        if isinstance(then, GiveUp):
            self._move(job, State.DEAD_LETTERED, then.reason)
        else:
            job.retry_count += 1
            self._move(job, State.PENDING, Reason.RETRY_DUE)

    async def _accept(self, spec: JobSpec) -> SubmitResult:
        try:
            check_spec(spec, EngineSettings().max_payload_bytes, time.time())
        except InvalidArgument as error:
            return SubmitResult.refused(error)
        if spec.key is not None and spec.key in self._keys:
            job_id, fingerprint = self._keys[spec.key]
            if fingerprint == spec.fingerprint():
                return SubmitResult.duplicate(job_id)
            return SubmitResult.conflict(job_id, spec.key)
        job = self._record(spec)
        if spec.delay is None and spec.run_at is None:
            await self.run(job)
        return SubmitResult.accepted(job.id)

    def _record(self, spec: JobSpec) -> Job:
        now = time.time()
        job = Job(
            id=new_job_ids(1)[0],
            seq=len(self.jobs) + 1,
            queue=spec.queue,
            type=spec.type,
            payload=spec.payload,
            priority=spec.priority,
            max_retries=DEFAULT_MAX_RETRIES if spec.max_retries is None else spec.max_retries,
            state=State.PENDING,
            version=1,
            attempt=0,
            retry_count=0,
            created_at=now,
            updated_at=now,
            run_at=spec.run_at if spec.delay is None else now + spec.delay,
            ttl=spec.ttl,
            timeout=spec.timeout,
            key=spec.key,
            labels=spec.labels,
        )
        self.jobs[job.id] = job
        if spec.key is not None:
            self._keys[spec.key] = (job.id, spec.fingerprint())
        self._history[job.id] = [
            Event(job.id, 1, None, State.PENDING, Reason.SUBMITTED, now, 0, queue=job.queue)
        ]
        return job

    def _move(self, job: Job, state: State, reason: Reason, detail: str = "") -> None:
        assert reason in TRANSITIONS[job.state, state]
        event = Event(
            job.id,
            job.version + 1,
            job.state,
            state,
            reason,
            time.time(),
            job.attempt,
            job.worker_id,
            detail,
            job.queue,
        )
        job.version, job.state, job.reason = event.version, state, reason
        job.updated_at = event.at
        job.completed_at = event.at if state in TERMINAL else None
        self._history[job.id].append(event)


class _TimedOut(Exception):
    """The attempt ran longer than its timeout."""


class InlineJobs(Sequence[Job]):
    """What was submitted in an inline block, in order."""

    def __init__(self, backend: InlineBackend) -> None:
        self._backend = backend

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Job]: ...
    def __getitem__(self, index: int | slice) -> Job | Sequence[Job]:
        return list(self._backend.jobs.values())[index]

    def __len__(self) -> int:
        return len(self._backend.jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._backend.jobs.values()))

    def of(self, task: Task[Any, Any] | str) -> list[Job]:
        """The jobs of one task."""
        name = task if isinstance(task, str) else task.name
        return [job for job in self if job.type == name]

    async def run_delayed(self) -> int:
        """Run the delayed jobs submitted so far, without waiting for their time; how many."""
        waiting = [job for job in self if job.state is State.PENDING and job.run_at is not None]
        for job in sorted(waiting, key=lambda job: job.run_at or 0.0):
            await self._backend.run(job)
        return len(waiting)


class InlineBlock:
    """``with app.inline() as jobs:`` or ``async with``; blocks may be nested."""

    def __init__(self, registry: Registry, stack: list[InlineBackend]) -> None:
        self._stack = stack
        self._backend = InlineBackend(registry)

    def __enter__(self) -> InlineJobs:
        self._stack.append(self._backend)
        return InlineJobs(self._backend)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.remove(self._backend)

    async def __aenter__(self) -> InlineJobs:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)


def _ended_within(job: Job, query: JobQuery) -> bool:
    if query.since is None and query.until is None:
        return True
    at = job.completed_at
    return (
        at is not None
        and (query.since is None or at >= query.since)
        and (query.until is None or at < query.until)
    )
