"""An attempt without a worker around it: made in the thread of whoever awaits it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from jobqueue.core.attempt import in_place
from jobqueue.core.job import Assignment, Transition
from jobqueue.core.progress import Progress
from jobqueue.worker.execution import Endings, Execution, Stop
from jobqueue.worker.executors.coroutine import CoroutineExecutor
from jobqueue.worker.executors.thread import ThreadExecutor
from jobqueue.worker.settings import MAX_CONCURRENCY, WorkerSettings
from jobqueue.worker.task import TaskDefinition
from jobqueue.worker.waiting import WaitingSlots

SETTINGS = WorkerSettings(id="inline", concurrency=MAX_CONCURRENCY)


class Attempt:
    """One attempt at a job. Implements ``Host`` for its executor."""

    def __init__(
        self,
        job: Assignment,
        definition: TaskDefinition,
        advanced: Callable[[int, Progress], None],
    ) -> None:
        self.advanced = advanced  # told a lease and its progress, from any thread
        self._endings = Endings(SETTINGS.max_result_bytes)
        executor = (
            CoroutineExecutor(self, self._endings)
            if definition.is_async
            else InPlaceExecutor(self, self._endings, 1)
        )
        waiting = WaitingSlots(SETTINGS)
        self._execution = Execution(job, definition, executor, time.monotonic(), waiting)
        self._report: Transition | None = None
        self.given_up = False  # its event loop ended before the handler

    async def run(self) -> Transition:
        """Run the handler to its end; returns the report of it."""
        execution = self._execution
        execution.begun = time.monotonic()  # it may be cancelled before its first step
        execution.executor.submit(execution)
        task: asyncio.Task[None] | None = execution.handle
        if task is not None:
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                self.given_up = True
                task.cancel()
        report = self._report
        if report is None:  # no executor takes such an end for the handler's
            assert task is not None
            error = task.exception() if task.done() and not task.cancelled() else None
            report = self._endings.raised(execution, error or asyncio.CancelledError())
        if execution.stop is Stop.TIMED_OUT:
            return self._endings.timed_out(execution)
        if execution.stop is Stop.CANCELLED:
            unaware = isinstance(execution.executor, InPlaceExecutor)
            return self._endings.cancelled(execution, report, unaware)
        return report

    def cancel(self) -> None:
        """Ask the handler to stop."""
        if self._execution.stop is None:
            self._execution.interrupt(Stop.CANCELLED)

    @property
    def error(self) -> BaseException | None:
        """What the handler raised."""
        return self._execution.error

    def begin(self, execution: Execution) -> bool:
        """The handler is about to run: its time counts."""
        execution.begun = time.monotonic()
        self.begun(execution)
        return True

    def begun(self, execution: Execution) -> None:
        """The handler runs."""
        if execution.timeout is not None:
            execution.timer = asyncio.get_running_loop().call_later(
                execution.timeout, execution.interrupt, Stop.TIMED_OUT
            )

    def ended(self, execution: Execution, report: Transition) -> None:
        """The handler has ended."""
        execution.ended = True
        if execution.timer is not None:
            execution.timer.cancel()
        self._report = report


class InPlaceExecutor(ThreadExecutor):
    """``def`` handlers, in this very thread."""

    def submit(self, execution: Execution) -> None:
        """Run it now."""
        self._host.begin(execution)
        report = self._context.copy().run(self._run, execution)
        if execution.timeout is not None and execution.ran_for() >= execution.timeout:
            execution.stop = execution.stop or Stop.TIMED_OUT  # no timer could go off meanwhile
        self._host.ended(execution, report)

    def _run(self, execution: Execution) -> Transition:
        in_place.set(True)
        return super()._run(execution)
