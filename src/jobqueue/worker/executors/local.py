"""Run handlers in the worker's process: ``async def`` on the event loop, ``def`` in threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
import time
from collections import deque

from jobqueue.core.attempt import enter_attempt
from jobqueue.core.job import Transition
from jobqueue.worker.execution import Endings, Execution, Executor, Host


class CoroutineExecutor(Executor):
    """Runs each ``async def`` handler in an asyncio task with its own context variables."""

    shares_fate = True

    def __init__(self, host: Host, endings: Endings) -> None:
        self._host = host
        self._endings = endings
        self._create_task = asyncio.get_running_loop().create_task
        # Every handler starts with these context variables. ``submit`` may be called from another
        # handler, which has just submitted a job, and whose variables must not be inherited.
        self._context = contextvars.copy_context()

    def submit(self, execution: Execution) -> None:
        work = self._run(execution)
        execution.handle = self._create_task(work, context=self._context.copy())

    async def _run(self, execution: Execution) -> None:
        if not self._host.begin(execution):
            return
        definition = execution.definition
        assert definition is not None
        enter_attempt(execution)
        try:
            arguments = definition.decode(execution.assignment.payload)
            if definition.context_parameter is not None:
                context = execution.make_context(self._host.advanced)
                arguments[definition.context_parameter] = context
            value = await definition.fn(**arguments)
            report = self._endings.returned(execution, value)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            report = self._endings.raised(execution, error)
        self._host.ended(execution, report)
        execution.handle = None  # the task refers to the execution: break the reference cycle

    def interrupt(self, execution: Execution) -> None:
        """Cancel the asyncio task. A handler that ignores the cancel goes on and keeps its slot."""
        execution.handle.cancel()


class ThreadExecutor(Executor):
    """Runs ``def`` handlers in at most ``limit`` threads, which are started on demand and reused.

    A thread cannot be stopped. At a timeout or a cancel, the executor sets the flag
    ``ctx.cancelled``, and the job keeps its slot until the handler returns. The threads are
    daemons, so that a handler that never returns does not keep the process alive.
    """

    shares_fate = True
    may_overlook_cancel = True

    def __init__(self, host: Host, endings: Endings, limit: int) -> None:
        self._host = host
        self._endings = endings
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # every handler gets a copy
        self._jobs: queue.SimpleQueue[Execution | None] = queue.SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        self._closed = False
        # Messages from the threads: an execution that has begun (None), or its report.
        self._messages: deque[tuple[Execution, Transition | None]] = deque()
        self._told = False

    def submit(self, execution: Execution) -> None:
        execution.handle = [None]  # a thread pops it and runs the job, or ``withdraw`` pops it
        self._unfinished += 1
        if self._threads < self._limit and self._threads < self._unfinished:
            self._threads += 1
            name = f"worker-thread-{self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        self._jobs.put(execution)

    def withdraw(self, execution: Execution) -> bool:
        if self._taken(execution):
            return False
        self._unfinished -= 1
        return True

    def interrupt(self, execution: Execution) -> None:
        """Set the flag ``ctx.cancelled`` of the handler, because a thread cannot be stopped."""
        if execution.context is not None:
            execution.context.request_cancel()

    async def close(self) -> None:
        """End the idle threads. A busy thread ends when its handler returns."""
        if not self._closed:
            self._closed = True
            for _ in range(self._threads):
                self._jobs.put(None)

    # -- in a thread -------------------------------------------------------------------------

    def _work(self) -> None:
        while (execution := self._jobs.get()) is not None:
            if self._taken(execution):
                continue
            now = time.monotonic()
            job = execution.assignment
            if execution.expired(now):
                self._tell(execution, Transition.handed_back(job.seq, job.lease))
                continue
            execution.begun = now
            self._tell(execution, None)
            self._tell(execution, self._context.copy().run(self._run, execution))

    def _run(self, execution: Execution) -> Transition:
        definition = execution.definition
        assert definition is not None
        enter_attempt(execution)
        try:
            arguments = definition.decode(execution.assignment.payload)
            if definition.context_parameter is not None:
                context = execution.make_context(self._host.advanced)
                arguments[definition.context_parameter] = context
            return self._endings.returned(execution, definition.fn(**arguments))
        except BaseException as error:
            return self._endings.raised(execution, error)

    @staticmethod
    def _taken(execution: Execution) -> bool:
        try:
            execution.handle.pop()  # atomic
        except IndexError:
            return True
        return False

    def _tell(self, execution: Execution, report: Transition | None) -> None:
        self._messages.append((execution, report))
        if not self._told:  # waking the loop is expensive: wake it once until it reads
            self._told = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._listen)

    # -- on the loop -------------------------------------------------------------------------

    def _listen(self) -> None:
        self._told = False  # first, so that a later message wakes the loop again
        while self._messages:
            execution, report = self._messages.popleft()
            if report is None:
                self._host.begun(execution)
            else:
                self._unfinished -= 1
                self._host.ended(execution, report)
