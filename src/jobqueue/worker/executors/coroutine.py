"""``async def`` handlers, each in a task on the loop."""

from __future__ import annotations

import asyncio
import contextvars

from jobqueue.core.attempt import enter_attempt
from jobqueue.worker.execution import Endings, Execution, Host


class CoroutineExecutor:
    """A task for each job: its own context variables, its own cancellation."""

    def __init__(self, host: Host, endings: Endings) -> None:
        self._host = host
        self._endings = endings
        self._create_task = asyncio.get_running_loop().create_task
        # What every handler begins with: one that submits a job may bring it here by itself, and
        # its variables are not that job's.
        self._context = contextvars.copy_context()

    def submit(self, execution: Execution) -> None:
        """Schedule it."""
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
        execution.handle = None  # the task's context holds the execution: no cycle is left behind

    def withdraw(self, execution: Execution) -> bool:
        """A task that has not run its first step never calls the handler."""
        return not execution.begun

    def interrupt(self, execution: Execution) -> None:
        """Cancel the task; one that ignores it goes on, and keeps its slot."""
        execution.handle.cancel()

    async def close(self) -> None:
        """Nothing is kept between jobs."""
