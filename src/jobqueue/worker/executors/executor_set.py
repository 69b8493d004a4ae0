"""Create the executors of one worker, and choose the executor for each task."""

from __future__ import annotations

from jobqueue.tasks.task import TaskDefinition
from jobqueue.worker.execution import Endings, Executor, Host
from jobqueue.worker.executors.batch import BatchExecutor
from jobqueue.worker.executors.local import CoroutineExecutor, ThreadExecutor
from jobqueue.worker.executors.process import ProcessExecutor
from jobqueue.worker.executors.program import ProgramExecutor
from jobqueue.worker.settings import WorkerSettings


class ExecutorSet:
    """Holds one executor of each kind for one worker."""

    def __init__(
        self, host: Host, endings: Endings, settings: WorkerSettings, child_module: str
    ) -> None:
        self.coroutines = CoroutineExecutor(host, endings)
        self.threads = ThreadExecutor(host, endings, settings.concurrency)
        self.batches = BatchExecutor(host, endings, settings.concurrency)
        self.processes = ProcessExecutor(
            host,
            endings,
            settings.process_start_timeout,
            settings.cancel_grace,
            settings.id,
            child_module,
        )
        self._members: dict[str, Executor] = {
            "coroutine": self.coroutines,
            "thread": self.threads,
            "batch": self.batches,
            "process": self.processes,
        }
        self.program = (
            ProgramExecutor(host, endings, settings.exec_command, settings.cancel_grace)
            if settings.exec_command
            else None
        )

    def of(self, definition: TaskDefinition) -> Executor:
        """Return the executor that runs this task."""
        return self._members[definition.runs]

    async def close(self) -> None:
        """Close all executors."""
        members = (self.coroutines, self.threads, self.batches, self.processes, self.program)
        for member in members:
            if member is not None:
                await member.close()
