"""Create the executors of one worker, and choose the executor for each task."""

from __future__ import annotations

from jobqueue.tasks.task import TaskDefinition
from jobqueue.worker.execution import Endings, Execution, Executor, Host
from jobqueue.worker.executors.local import CoroutineExecutor, ThreadExecutor
from jobqueue.worker.executors.process import ProcessExecutor
from jobqueue.worker.executors.program import ProgramExecutor
from jobqueue.worker.settings import WorkerSettings


class ExecutorSet:
    """Holds one executor of each kind for one worker."""

    def __init__(self, host: Host, endings: Endings, settings: WorkerSettings) -> None:
        self.coroutines = CoroutineExecutor(host, endings)
        self.threads = ThreadExecutor(host, endings, settings.concurrency)
        self.processes = ProcessExecutor(
            host, endings, settings.process_start_timeout, settings.cancel_grace
        )
        self.program = (
            ProgramExecutor(host, endings, settings.exec_command, settings.cancel_grace)
            if settings.exec_command
            else None
        )

    def of(self, definition: TaskDefinition) -> Executor:
        """Return the executor that runs this task."""
        if definition.options.executor == "process":
            return self.processes
        return self.coroutines if definition.is_async else self.threads

    def shares_fate(self, execution: Execution) -> bool:
        """Return True if the handler runs in the worker's process: its crash kills the worker."""
        return execution.executor in (self.coroutines, self.threads)

    def may_overlook_cancel(self, execution: Execution) -> bool:
        """Return True if a cancel only sets a flag that the handler may ignore.

        A coroutine gets an exception, and an external program gets a signal.
        """
        return execution.executor in (self.threads, self.processes)

    async def close(self) -> None:
        """Close all executors."""
        for member in (self.coroutines, self.threads, self.processes, self.program):
            if member is not None:
                await member.close()
