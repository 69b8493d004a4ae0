"""Run batch handlers: collect jobs of one task, and call the handler once for all of them.

A batch is open while it collects jobs. It closes when it is full, or when ``batch_wait`` has passed
since its first job. Each job of a batch stays a job of its own: it has its slot, its lease, its
start and its end. ``async def`` handlers run on the event loop, ``def`` handlers in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jobqueue.core.attempt import enter_attempt
from jobqueue.core.errors import InvalidArgument
from jobqueue.tasks.context import Context
from jobqueue.tasks.task import TaskDefinition
from jobqueue.worker.execution import (
    Endings,
    Execution,
    Executor,
    Host,
    describe,
    kinds,
    retry_after,
)

_CLOSE_SECONDS = 1.0
_NO_FIELDS: Mapping[str, Any] = {}


class Batch:
    """The jobs of one call of a batch handler. Implements ``RunningAttempt`` for the handler."""

    def __init__(self, definition: TaskDefinition) -> None:
        self.definition = definition
        self.jobs: dict[int, Execution] = {}  # by lease; only the jobs that take part
        self.stopped: set[int] = set()  # leases of the jobs whose outcome no longer counts
        self.timeout: float | None = None
        self.timer: asyncio.TimerHandle | None = None  # while the batch is open
        self.task: asyncio.Task[None] | None = None
        self.ended = False

    @property
    def size(self) -> int:
        """Return the number of jobs that take part."""
        return len(self.jobs)

    def log_fields(self) -> Mapping[str, Any]:
        """Return the fields of the handler's log lines: those of its job if the batch has one."""
        first = next(iter(self.jobs.values()), None)
        if first is None:
            return _NO_FIELDS
        if len(self.jobs) == 1:
            return first.log_fields()
        return {"type": first.assignment.type, "batch": len(self.jobs)}

    @contextlib.contextmanager
    def waiting_for(self, queue: str | None) -> Iterator[None]:
        """Record, while the block runs, that the slots of all jobs wait for a job of ``queue``."""
        with contextlib.ExitStack() as waits:
            for execution in list(self.jobs.values()):
                waits.enter_context(execution.waiting_for(queue))
            yield


class BatchExecutor(Executor):
    """Runs the jobs of batch tasks. A batch has at most ``limit`` jobs, the worker's slots.

    A handler stops early only if nobody needs its results any more: every job of the batch was
    cancelled, timed out or lost. Until then a stopped job is flagged in its context.
    """

    shares_fate = True
    may_overlook_cancel = True

    def __init__(self, host: Host, endings: Endings, limit: int) -> None:
        self._host = host
        self._endings = endings
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # every handler gets a copy
        self._open: dict[TaskDefinition, Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_threads: set[asyncio.Task[None]] = set()

    def submit(self, execution: Execution) -> None:
        definition = execution.definition
        assert definition is not None
        if execution.announced:  # it may kill the worker, so it runs alone
            batch = execution.batch = Batch(definition)
            batch.jobs[execution.assignment.lease] = execution
            self._start(batch)
            return
        batch = self._open.get(definition) or self._begin(definition)
        batch.jobs[execution.assignment.lease] = execution
        execution.batch = batch
        if len(batch.jobs) >= min(definition.options.batch or 1, self._limit):
            self._close_batch(definition)

    def withdraw(self, execution: Execution) -> bool:
        batch = execution.batch
        if isinstance(batch, Batch):
            batch.jobs.pop(execution.assignment.lease, None)
            if not batch.jobs and self._open.get(batch.definition) is batch:
                self._close_batch(batch.definition)
        return True

    def interrupt(self, execution: Execution) -> None:
        """Cancel the handler's task if no other job of the batch needs the handler any more."""
        batch = execution.batch
        if not isinstance(batch, Batch) or batch.task is None:
            return
        batch.stopped.add(execution.assignment.lease)
        if batch.stopped.issuperset(batch.jobs):
            for member in batch.jobs.values():
                self._context_of(member).request_cancel(noticed=True)
            batch.task.cancel()

    def flush(self) -> None:
        """Start all open batches now, because no further jobs will come."""
        for definition in list(self._open):
            self._close_batch(definition)

    def collected(self) -> list[Execution]:
        """Return the jobs of all open batches, which have not begun."""
        return [execution for batch in self._open.values() for execution in batch.jobs.values()]

    async def close(self) -> None:
        """Stop waiting for handlers in threads. A thread ends when its handler returns."""
        for task in self._in_threads:
            task.cancel()
        if self._in_threads:
            await asyncio.wait(self._in_threads, timeout=_CLOSE_SECONDS)

    # -- a batch -----------------------------------------------------------------------------

    def _begin(self, definition: TaskDefinition) -> Batch:
        batch = self._open[definition] = Batch(definition)
        wait = definition.batch_wait
        batch.timer = self._loop.call_later(wait, self._close_batch, definition)
        return batch

    def _close_batch(self, definition: TaskDefinition) -> None:
        batch = self._open.pop(definition)
        if batch.timer is not None:
            batch.timer.cancel()
        if batch.jobs:
            self._start(batch)

    def _start(self, batch: Batch) -> None:
        task = self._loop.create_task(self._run(batch), context=self._context.copy())
        owner = self._tasks if batch.definition.is_async else self._in_threads
        owner.add(task)
        task.add_done_callback(owner.discard)

    async def _run(self, batch: Batch) -> None:
        arguments = self._begun(batch)
        if not batch.jobs:
            return
        if batch.definition.is_async:
            batch.task = asyncio.current_task()
            for execution in batch.jobs.values():
                execution.handle = batch.task
        enter_attempt(batch)
        outcome = await self._call(batch, arguments)
        batch.ended = True
        self._settle(batch, outcome)
        for execution in batch.jobs.values():
            execution.handle = execution.batch = None  # break the reference cycles
        batch.task = None

    def _begun(self, batch: Batch) -> dict[str, list[Any]]:
        """Begin the jobs of a batch, and return their arguments as lists.

        Jobs that must not begin any more, and jobs whose payload cannot be decoded, leave the
        batch. Such a payload fails its own job only.
        """
        definition, now = batch.definition, time.monotonic()
        limits = [
            limit
            for execution in batch.jobs.values()
            if (limit := execution.own_timeout) is not None and not execution.expired(now)
        ]
        batch.timeout = min(limits, default=None)
        arguments: dict[str, list[Any]] = {}
        for lease, execution in list(batch.jobs.items()):
            if not self._host.begin(execution):
                batch.jobs.pop(lease, None)
                continue
            try:
                values = definition.decode(execution.assignment.payload)
            except Exception as error:
                del batch.jobs[lease]
                self._host.ended(execution, self._endings.raised(execution, error))
                continue
            if definition.context_parameter is not None:
                values[definition.context_parameter] = self._context_of(execution)
            for name, value in values.items():
                arguments.setdefault(name, []).append(value)
        return arguments

    def _context_of(self, execution: Execution) -> Context:
        return execution.context or execution.make_context(self._host.advanced)

    async def _call(
        self, batch: Batch, arguments: Mapping[str, list[Any]]
    ) -> Sequence[Any] | BaseException:
        """Call the handler. Return a result for each job, or the error that fails all jobs."""
        fn, size = batch.definition.fn, batch.size
        try:
            if batch.definition.is_async:
                return _results(await fn(**arguments), size)
            return await self._in_thread(fn, arguments, size)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            return error

    async def _in_thread(
        self, fn: Callable[..., Any], arguments: Mapping[str, list[Any]], size: int
    ) -> Sequence[Any] | BaseException:
        """Call a ``def`` handler in a new daemon thread, which keeps no process alive."""
        ended: asyncio.Future[Sequence[Any] | BaseException] = self._loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            outcome = context.run(outcome_of, fn, arguments, size)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_resolve, ended, outcome)

        threading.Thread(target=work, name="worker-batch", daemon=True).start()
        return await ended

    # -- its end -----------------------------------------------------------------------------

    def _settle(self, batch: Batch, outcome: Sequence[Any] | BaseException) -> None:
        if isinstance(outcome, BaseException):
            self._all_failed(batch, outcome)
        else:
            self._each_ended(batch, outcome)

    def _all_failed(self, batch: Batch, error: BaseException) -> None:
        text, names, wait = describe(error), kinds(error), retry_after(error)
        for place, execution in enumerate(batch.jobs.values()):
            execution.error, execution.logs_trace = error, place == 0
            report = self._endings.reported(execution, text, names, wait)
            self._host.ended(execution, report)

    def _each_ended(self, batch: Batch, results: Sequence[Any]) -> None:
        for execution, value in zip(batch.jobs.values(), results, strict=True):
            if not isinstance(value, BaseException):
                self._host.ended(execution, self._endings.returned(execution, value))
                continue
            trace = value.__traceback__
            try:
                raise value  # as a handler of one job would: this frame is first in its traceback
            except BaseException as error:
                self._host.ended(execution, self._endings.raised(execution, error))
            value.__traceback__ = trace  # the list may have the same exception again


def outcome_of(
    fn: Callable[..., Any], arguments: Mapping[str, list[Any]], size: int
) -> Sequence[Any] | BaseException:
    """Call a ``def`` handler. Return its results, or the exception that it raises."""
    try:
        return _results(fn(**arguments), size)
    except BaseException as error:
        return error


def _resolve(
    future: asyncio.Future[Sequence[Any] | BaseException], outcome: Sequence[Any] | BaseException
) -> None:
    if not future.done():
        future.set_result(outcome)


def _results(value: Any, size: int) -> Sequence[Any]:
    """Return the results of ``size`` jobs; None stands for None as the result of each job."""
    if value is None:
        return [None] * size
    if not isinstance(value, list | tuple):
        raise InvalidArgument(
            "result",
            f"a batch handler must return a list with {size} results, one for each job in order, or"
            f" None; it returned `{type(value).__qualname__}`",
        )
    if len(value) != size:
        raise InvalidArgument(
            "result",
            f"a batch handler must return one result or exception for each job, in order; it"
            f" returned {len(value)} for {size} jobs",
        )
    return value
