"""All the executors of one worker, and which of them runs what."""

from __future__ import annotations

from jobqueue.worker.execution import Endings, Execution, Executor, Host
from jobqueue.worker.executors.coroutine import CoroutineExecutor
from jobqueue.worker.executors.process import ProcessExecutor
from jobqueue.worker.executors.program import ProgramExecutor
from jobqueue.worker.executors.thread import ThreadExecutor
from jobqueue.worker.settings import WorkerSettings
from jobqueue.worker.task import TaskDefinition


class Crew:
    """Holds an executor of each kind."""

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

    def member_for(self, definition: TaskDefinition) -> Executor:
        """Who runs this task."""
        if definition.options.executor == "process":
            return self.processes
        return self.coroutines if definition.is_async else self.threads

    def shares_fate(self, execution: Execution) -> bool:
        """Whether what kills it kills this worker: it runs in the same process."""
        return execution.executor in (self.coroutines, self.threads)

    def may_overlook_cancel(self, execution: Execution) -> bool:
        """Whether a cancel is only a flag there: a coroutine or a program cannot overlook it."""
        return execution.executor in (self.threads, self.processes)

    async def close(self) -> None:
        """Release everything, killing what can be killed."""
        for member in (self.coroutines, self.threads, self.processes, self.program):
            if member is not None:
                await member.close()
