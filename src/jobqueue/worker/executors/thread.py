"""``def`` handlers, in threads.

A thread cannot be stopped from outside: at a timeout or a cancel its context's flag is raised,
and the job keeps its slot until the handler returns. Threads are daemons, so that a handler that
never returns does not keep the process alive.
"""

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
from jobqueue.worker.execution import Endings, Execution, Host


class ThreadExecutor:
    """Threads started on demand, at most ``limit``, and reused."""

    def __init__(self, host: Host, endings: Endings, limit: int) -> None:
        self._host = host
        self._endings = endings
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # what every handler begins with
        self._jobs: queue.SimpleQueue[Execution | None] = queue.SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        self._closed = False
        # What threads have to tell: an execution that began, or its report.
        self._news: deque[tuple[Execution, Transition | None]] = deque()
        self._told = False

    def submit(self, execution: Execution) -> None:
        """Queue it for the next free thread."""
        execution.handle = [None]  # whoever pops it decides: the thread runs it, or nobody does
        self._unfinished += 1
        if self._threads < self._limit and self._threads < self._unfinished:
            self._threads += 1
            name = f"worker-thread-{self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        self._jobs.put(execution)

    def withdraw(self, execution: Execution) -> bool:
        """Take back a job that no thread has taken."""
        if self._taken(execution):
            return False
        self._unfinished -= 1
        return True

    def interrupt(self, execution: Execution) -> None:
        """The flag is all there is."""
        if execution.context is not None:
            execution.context.request_cancel()

    async def close(self) -> None:
        """Let idle threads end; a busy one ends when its handler returns."""
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
        self._news.append((execution, report))
        if not self._told:  # waking the loop is dear; once until it has listened is enough
            self._told = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._listen)

    # -- on the loop -------------------------------------------------------------------------

    def _listen(self) -> None:
        self._told = False  # first: what comes after this line wakes the loop again
        while self._news:
            execution, report = self._news.popleft()
            if report is None:
                self._host.begun(execution)
            else:
                self._unfinished -= 1
                self._host.ended(execution, report)
