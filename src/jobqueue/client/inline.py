"""Run jobs inline, for users' tests: a job runs in the caller's thread before the submit returns.

Inline mode uses the same engine, memory store and executors as a server. The steps that a server
does in the background run here one after the other: claim a job, run it, apply its report, and move
the clock forward when no job is ready.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

from jobqueue._version import __version__
from jobqueue.client.tasks import Task
from jobqueue.core.api import Backend
from jobqueue.core.attempt import in_place
from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import Conflict
from jobqueue.core.ids import new_lease
from jobqueue.core.job import (
    Assignment,
    Cancellation,
    Event,
    Job,
    NewJob,
    Outcome,
    SubmitResult,
    Transition,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.lifecycle import HELD, TERMINAL, Move, State
from jobqueue.core.progress import Progress
from jobqueue.core.store import ALL_QUEUES, Claim, Claimed, Rules
from jobqueue.engine.batching import Answer, Batcher, Call
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.stores.memory import MemoryStore
from jobqueue.tasks.task import TaskDefinition
from jobqueue.worker.completing import encoded
from jobqueue.worker.execution import Endings, Execution, Executor, Stop
from jobqueue.worker.executors.batch import Batch, BatchExecutor, outcome_of
from jobqueue.worker.executors.local import CoroutineExecutor, ThreadExecutor
from jobqueue.worker.registry import Registry
from jobqueue.worker.settings import MAX_CONCURRENCY, WorkerSettings
from jobqueue.worker.slots import WaitingSlots

T = TypeVar("T")

_SETTINGS = WorkerSettings(id="inline", concurrency=MAX_CONCURRENCY)
_INSTANT = 1e-6  # the smallest step of the clock, which counts microseconds
_PAUSE = 0.005  # between two reads of a job that runs
# Exceptions of a handler that end only its attempt; others are raised to the caller, too.
_OWN = (Exception, SystemExit, asyncio.CancelledError)


class InlineAttempt:
    """Runs one attempt of a job in the caller's thread. Implements ``Host`` for its executor.

    The attempt of a batch task has several jobs, which its handler gets in one call.
    """

    def __init__(
        self,
        jobs: Sequence[Assignment],
        definition: TaskDefinition,
        advanced: Callable[[int, Progress], None],
    ) -> None:
        self.advanced = advanced  # gets a lease and its progress, from any thread
        self._endings = Endings(_SETTINGS.max_result_bytes)
        self._definition = definition
        self._executor = self._executor_of(definition)
        waiting, now = WaitingSlots(_SETTINGS), time.monotonic()
        self._executions = [
            Execution(job, definition, self._executor, now, waiting, completions=self)
            for job in jobs
        ]
        self._reports: dict[int, Transition] = {}  # by lease
        self._completed: dict[int, bytes | None] = {}  # by lease, the results of ``ctx.complete``
        self.given_up = False  # True if the event loop ended before the handler

    def _executor_of(self, definition: TaskDefinition) -> Executor:
        if definition.options.batch is not None:
            return _InPlaceBatches(self, self._endings, MAX_CONCURRENCY)
        if definition.is_async:
            return CoroutineExecutor(self, self._endings)
        return _InPlaceExecutor(self, self._endings, 1)

    async def run(self) -> list[Transition]:
        """Run the handler to its end, and return the report of each job."""
        for execution in self._executions:
            execution.begun = time.monotonic()  # set now: a cancel may come before the first step
            self._executor.submit(execution)
        task = self._task()
        if task is not None:
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                self.given_up = True
                task.cancel()
        return [self._end(execution, task) for execution in self._executions]

    def _task(self) -> asyncio.Task[None] | None:
        if isinstance(self._executor, _InPlaceBatches):
            return self._executor.start()
        handle: asyncio.Task[None] | None = self._executions[0].handle
        return handle

    def _end(self, execution: Execution, task: asyncio.Task[None] | None) -> Transition:
        report = self._reports.get(execution.assignment.lease)
        if report is None:  # the executor does not report a cancelled asyncio task
            assert task is not None
            error = task.exception() if task.done() and not task.cancelled() else None
            report = self._endings.raised(execution, error or asyncio.CancelledError())
        if execution.stop is Stop.TIMED_OUT:
            return self._endings.timed_out(execution)
        if execution.stop is Stop.CANCELLED:
            unaware = execution.executor.may_overlook_cancel
            return self._endings.cancelled(execution, report, unaware)
        return report

    async def complete(self, lease: int, result: Any, connection: object) -> None:
        self.complete_blocking(lease, result, connection)

    def complete_blocking(self, lease: int, result: Any, connection: object) -> None:
        """Use this result at the handler's end. The job is in memory: the connection is ignored."""
        self._completed[lease] = encoded(self._definition, result, _SETTINGS.max_result_bytes)

    async def completing(self, execution: Execution, needs_start: bool) -> None:
        raise AssertionError("no handler runs in a process here")

    def cancel(self, job_id: str) -> None:
        for execution in self._executions:
            if execution.assignment.id == job_id and execution.stop is None:
                execution.interrupt(Stop.CANCELLED)

    def errors(self) -> Iterator[tuple[str, BaseException | None]]:
        """Yield the id of each job and the exception of its handler, or None."""
        for execution in self._executions:
            yield execution.assignment.id, execution.error

    def begin(self, execution: Execution) -> bool:
        execution.begun = time.monotonic()
        self.begun(execution)
        return True

    def begun(self, execution: Execution) -> None:
        if execution.timeout is not None:
            execution.timer = asyncio.get_running_loop().call_later(
                execution.timeout, execution.interrupt, Stop.TIMED_OUT
            )

    def ended(self, execution: Execution, report: Transition) -> None:
        execution.ended = True
        if execution.timer is not None:
            execution.timer.cancel()
        lease = execution.assignment.lease
        if lease in self._completed and report.move is Move.SUCCEED:
            report = self._endings.succeeded(execution, self._completed[lease])
        self._reports[lease] = report


class _InPlaceExecutor(ThreadExecutor):
    """Runs ``def`` handlers in the caller's thread."""

    def submit(self, execution: Execution) -> None:
        self._host.begin(execution)
        report = self._context.copy().run(self._run, execution)
        _stop_if_late(execution)
        self._host.ended(execution, report)

    def _run(self, execution: Execution) -> Transition:
        in_place.set(True)
        return super()._run(execution)


class _InPlaceBatches(BatchExecutor):
    """Runs one batch; ``def`` handlers run in the caller's thread."""

    def start(self) -> asyncio.Task[None] | None:
        """Start the batch of the submitted jobs, if it was not full, and return its task."""
        self.flush()
        return next(iter(self._tasks | self._in_threads), None)

    async def _in_thread(
        self, fn: Callable[..., Any], arguments: Mapping[str, list[Any]], size: int
    ) -> Sequence[Any] | BaseException:
        in_place.set(True)
        return outcome_of(fn, arguments, size)

    def _settle(self, batch: Batch, outcome: Sequence[Any] | BaseException) -> None:
        if not batch.definition.is_async:
            for execution in batch.jobs.values():
                _stop_if_late(execution)
        super()._settle(batch, outcome)


def _stop_if_late(execution: Execution) -> None:
    """Mark an attempt as timed out if its handler blocked the event loop, and so the timer."""
    if execution.timeout is not None and execution.ran_for() >= execution.timeout:
        execution.stop = execution.stop or Stop.TIMED_OUT


class InlineBackend(Engine):
    """An engine that also runs its jobs, in the thread of the caller. Implements ``Port``."""

    def __init__(
        self,
        registry: Registry,
        settings: EngineSettings | None = None,
        rules: Rules | None = None,
    ) -> None:
        self._time = ManualClock(time.time())
        # The clock may leap while a handler runs. A real timer enforces the handler's timeout, and
        # the infinite limits prevent the sweep from failing the attempt.
        rules = dataclasses.replace(
            rules or Rules(), assignment_timeout=math.inf, watchdog_grace=math.inf
        )
        self._memory = MemoryStore(rules=rules, clock=self._time)
        super().__init__(self._memory, settings, clock=self._time)
        self._registry = registry
        self._created: set[str] = set()
        self._worker = WorkerInfo(
            id="inline",
            incarnation=new_lease(),
            hostname=socket.gethostname(),
            pid=os.getpid(),
            concurrency=1,
            queues=(ALL_QUEUES,),
            version=__version__,
        )
        self._running: dict[str, InlineAttempt] = {}
        self._raised: dict[str, BaseException] = {}
        self._attempts: set[asyncio.Task[None]] = set()
        # The blocking client runs each call on a loop of its own, in any thread, so changes of the
        # memory store need a lock. These changes never yield to the loop.
        self._turn = threading.Lock()

    async def call(self, op: Callable[[Backend], Awaitable[T]]) -> T:
        """Call ``op`` with this backend, run every job that is ready, and return the result."""
        await self._open()
        answer = await op(self)
        await self._run_ready()
        return answer

    def iterate(self, op: Callable[[Backend], AsyncIterator[T]]) -> AsyncIterator[T]:
        return _Listed(self, op)

    def raised(self, job_id: str) -> BaseException | None:
        return self._raised.get(job_id)

    # -- in place of the engine's background tasks -----------------------------------------

    async def prepare(self) -> None:
        await super().prepare()
        # With batches, a submit could wait for the event loop of another thread.
        self._submits = _Unbatched(self._flush_submits, limit=1, weigh=len)

    async def wait(self, job_id: str, timeout: float | None) -> Job:
        """Run ready jobs and wait until the job has ended, then return the job.

        Raises Conflict if the job is neither running nor ready, because nothing would run the job
        later.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            await self._run_ready()
            job = await self.get(job_id)
            if job.state in TERMINAL or (job.state in HELD and time.monotonic() >= deadline):
                return job
            if job.state not in HELD:
                break
            await asyncio.sleep(_PAUSE)  # another caller runs the job, perhaps in another thread
        if not await self._takes():
            why = f"the worker {self._worker.id!r} was drained"
        elif job.type not in self._registry.types():
            why = f"this app has no task {job.type!r}"
        elif (await self.queue_stats(job.queue)).queue.closed_until > self._time.now():
            why = f"its queue {job.queue!r} is paused"
        else:
            why = "the job is delayed; call `await jobs.run_delayed()`"
        raise Conflict(f"job {job_id} is {job.state.name} in inline mode: {why}")

    async def watch(self, job_id: str) -> AsyncIterator[Event]:
        await self.wait(job_id, None)
        async for event in super().watch(job_id):
            yield event

    async def cancel(self, job_id: str) -> Cancellation:
        answer = await super().cancel(job_id)
        if answer.requested and job_id in self._running:
            self._running[job_id].cancel(job_id)
        return answer

    # -- claim, run, apply, let time pass --------------------------------------------------

    def submitted(self) -> list[Job]:
        """Return every submitted job, in the order of submission."""
        return self._memory.reads.every_job()

    async def run_delayed(self) -> int:
        """Run the delayed jobs that were submitted so far, and return the number that ran.

        The clock moves forward to the times of the jobs.
        """
        await self._open()
        now = self._time.now()
        waiting = sorted(
            (job.run_at, job.id, math.inf if job.expires_at is None else job.expires_at)
            for job in self.submitted()
            if job.state is State.PENDING and job.run_at is not None and job.run_at > now
        )
        end = now
        for index, (at, _, _) in enumerate(waiting):
            # The handlers run at the latest of these times, so that jobs that the handlers delay
            # are not due yet. They run earlier if the TTL of a waiting job would end before.
            end = max(waiting[-1][0], self._time.now(), end)
            await self._pass_to(at)
            expiry = min(expires_at for _, _, expires_at in waiting[index:])
            self._set_time(max(min(end, expiry - 2 * _INSTANT), self._time.now()))
            await self._run_ready()
        self._set_time(max(end, self._time.now()))
        ran = {job.id for job in self.submitted() if job.attempt}
        return sum(job_id in ran for _, job_id, _ in waiting)

    async def _open(self) -> None:
        if not self._created:
            await self.prepare()
            self._created.add(self._settings.queue.name)
        for name, queue in self._registry.declared().items():
            if name not in self._created:
                self._created.add(name)
                await self.create_queue(queue)
        types = self._registry.types()
        if types != self._worker.types:
            self._worker = dataclasses.replace(self._worker, types=types)
            await self._memory.workers.register(self._worker)

    async def _takes(self) -> bool:
        """Return True unless an operator has drained the inline worker."""
        (worker,) = await self._memory.workers.all()
        return worker.status is WorkerStatus.ONLINE

    async def _run_ready(self) -> None:
        """Run all claimable jobs; for retries, move the clock forward instead of waiting."""
        while await self._takes():
            assigned = await self._claim()
            if assigned:
                # If the caller is cancelled, the job goes on, as with a real worker.
                attempt = asyncio.create_task(self._attempt(assigned))
                self._attempts.add(attempt)
                attempt.add_done_callback(self._attempts.discard)
                await asyncio.shield(attempt)
                continue
            opens_in = assigned.opens_in if isinstance(assigned, Claimed) else math.inf
            if any(queue.depth.get(State.FAILED) for queue in await self._memory.queues.stats()):
                # A delayed job whose time is before the retry runs first, before its TTL ends.
                at = min(self._times_to_come())
                await self._pass_to(min(at, self._time.now() + opens_in))
            elif opens_in < math.inf:
                await self._pass_to(self._time.now() + opens_in)  # a rate limit
            else:
                return

    async def _claim(self) -> list[Assignment]:
        """Claim the next job; for a batch task, also the further jobs for the same call."""
        own = self._worker
        with self._turn:
            assigned = await self._memory.jobs.claim(
                [Claim(own.queues, (own.id,), types=own.types)]
            )
            for job in assigned[:1]:
                definition = self._registry.get(job.type)
                if definition is not None and (more := (definition.options.batch or 1) - 1):
                    others = Claim((job.queue,), (own.id,) * more, types=frozenset({job.type}))
                    assigned += await self._memory.jobs.claim([others])
        return assigned

    def _times_to_come(self) -> Iterator[float]:
        now = self._time.now()
        for job in self.submitted():
            if job.state is State.FAILED:
                yield job.next_retry_at or 0.0
            elif job.state is State.PENDING and job.run_at is not None and job.run_at > now:
                yield job.run_at

    async def _attempt(self, claimed: Sequence[Assignment]) -> None:
        started = await self._told([Transition.started(job.seq, job.lease) for job in claimed])
        jobs = [job for job, applied in zip(claimed, started, strict=True) if applied]
        if not jobs:
            return  # cancelled between claim and start
        definition = self._registry.get(jobs[0].type)
        assert definition is not None  # the claim selects only types of this app
        attempt = InlineAttempt(jobs, definition, self._advanced)
        self._running.update((job.id, attempt) for job in jobs)
        reports = await attempt.run()
        raised = dict(attempt.errors())
        for job, report in zip(jobs, reports, strict=True):
            del self._running[job.id]
            self._raised.pop(job.id, None)
            error = raised[job.id]
            if report.move is Move.FAIL and error is not None:
                self._raised[job.id] = error
        await self._told(reports)
        if attempt.given_up:
            raise asyncio.CancelledError
        for error in raised.values():
            if error is not None and not isinstance(error, _OWN):
                raise error  # an interrupt, or a failed test

    def _advanced(self, lease: int, progress: Progress) -> None:
        own = self._worker
        self._memory.workers.pulse(own.id, own.incarnation, [lease], [lease], {lease: progress})

    async def _told(self, reports: Sequence[Transition]) -> list[bool]:
        """Apply a worker's reports; return False for each that is refused as too late."""
        outcomes = await self._write(reports, by_worker=True)
        return [outcome.applied for outcome in outcomes]

    async def _flush_submits(self, calls: Sequence[Sequence[NewJob]]) -> list[list[SubmitResult]]:
        with self._turn:
            return await super()._flush_submits(calls)

    async def _write(
        self, transitions: Sequence[Transition], *with_claims: Any, by_worker: bool = False
    ) -> list[Outcome]:
        with self._turn:
            return await super()._write(transitions, *with_claims, by_worker=by_worker)

    async def _pass_to(self, at: float) -> None:
        """Move the clock to ``at``, and apply the transitions that are due by then."""
        self._set_time(at)
        await self.sweep()

    def _set_time(self, at: float) -> None:
        self._time.advance(at - self._time.now() + _INSTANT)


class InlineJobs(Sequence[Job]):
    """The jobs submitted in an inline block, in order of submission, with their current state."""

    def __init__(self, backend: InlineBackend) -> None:
        self._backend = backend

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Job]: ...
    def __getitem__(self, index: int | slice) -> Job | Sequence[Job]:
        return self._backend.submitted()[index]

    def __len__(self) -> int:
        return len(self._backend.submitted())

    def __iter__(self) -> Iterator[Job]:
        return iter(self._backend.submitted())

    def of(self, task: Task[Any, Any] | str) -> list[Job]:
        """Return the submitted jobs of one task."""
        name = task if isinstance(task, str) else task.name
        return [job for job in self if job.type == name]

    async def run_delayed(self) -> int:
        """Move the clock past the times of the delayed jobs submitted so far, and run these jobs.

        The jobs run in the order of their times; jobs with the same time run by priority. Return
        the number of jobs that ran.
        """
        return await self._backend.run_delayed()


class InlineBlock:
    """The block ``with app.inline() as jobs:`` or ``async with``. Blocks may be nested."""

    def __init__(self, backend: InlineBackend, stack: list[InlineBackend]) -> None:
        self._backend = backend
        self._stack = stack

    def __enter__(self) -> InlineJobs:
        self._stack.append(self._backend)
        return InlineJobs(self._backend)

    def __exit__(self, *_: object) -> None:
        self._stack.remove(self._backend)

    async def __aenter__(self) -> InlineJobs:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()


class _Unbatched(Batcher[Call, Answer]):
    """A batcher that writes each call at once, in a batch of its own."""

    async def add(self, call: Call) -> Answer:
        (answer,) = await self._flush([call])
        return answer


class _Listed(AsyncIterator[T]):
    """An iterator that reads all items when the first one is requested.

    Later items may be requested on another event loop, so no open iterator may remain.
    """

    def __init__(self, backend: InlineBackend, op: Callable[[Backend], AsyncIterator[T]]) -> None:
        self._backend = backend
        self._op = op
        self._items: Iterator[T] | None = None

    async def __anext__(self) -> T:
        if self._items is None:
            self._items = iter(await self._backend.call(self._read))
        for item in self._items:
            return item
        raise StopAsyncIteration

    async def _read(self, backend: Backend) -> list[T]:
        return [item async for item in self._op(backend)]
