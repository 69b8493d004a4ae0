"""Stop taking the jobs of a task that keeps failing, and try one job after a pause.

The rules are in ``core/breaker.py``. Each worker process counts for itself: a broken service is
noticed by every process that calls it, and a process with a fault of its own stops alone
(docs/adr/0026).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from jobqueue.core.breaker import AttemptVerdict, Breaker, Circuit, OpenBreaker, Phase, verdict
from jobqueue.core.job import Transition
from jobqueue.tasks.task import TaskDefinition
from jobqueue.worker.execution import Execution, Executor
from jobqueue.worker.log import WorkerLog
from jobqueue.worker.registry import Registry

if TYPE_CHECKING:
    from jobqueue.worker.runtime import WorkerRuntime

# Seconds before the worker hands back a job that arrived after its type was paused. By then the
# server knows of the pause, and does not send the job to this worker again.
_SETTLE = 0.5
_ASK_AGAIN = 10.0


class Breakers(Executor):
    """Keeps a circuit for each task with a breaker.

    It is the executor of the jobs that their circuit does not admit: it hands them back after a
    moment.
    """

    def __init__(
        self, runtime: WorkerRuntime, registry: Registry, log: WorkerLog, tell: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._log = log
        self._tell = tell  # called when ``open`` has changed
        self._loop = asyncio.get_running_loop()
        self._circuits: dict[TaskDefinition, Circuit] = {}
        # Tasks whose circuit is not closed, with the ends of their pauses by the system's clock.
        self.paused: dict[TaskDefinition, float] = {}
        self._timers: dict[TaskDefinition, asyncio.TimerHandle] = {}

    # -- open breakers -----------------------------------------------------------------------

    def open(self) -> list[OpenBreaker]:
        """Return the breakers that are not closed, one for each type of their tasks."""
        return [
            OpenBreaker(
                type,
                circuit.failures,
                self.paused[task],
                circuit.trial if circuit.phase is Phase.TRIAL else 0,
            )
            for task, circuit in self._circuits.items()
            if circuit.phase is not Phase.CLOSED
            for type in self._types(task)
        ]

    def counts(self) -> Mapping[str, int]:
        """Return 1 for each task whose breaker is open, and 0 for the others with a breaker."""
        return {task.name: int(task in self.paused) for task in self._registry.with_breaker()}

    def _types(self, task: TaskDefinition) -> list[str]:
        """Return the types of the task's jobs. The default task also has the jobs without one."""
        return [task.name, ""] if self._registry.get("") is task else [task.name]

    # -- jobs --------------------------------------------------------------------------------

    def admits(self, execution: Execution) -> bool:
        """Return True if a job that has arrived may run."""
        task = execution.definition
        circuit = None if task is None else self._circuits.get(task)
        return circuit is None or circuit.admits(execution.assignment.lease)

    def submit(self, execution: Execution) -> None:
        execution.executor = self
        execution.timer = self._loop.call_later(_SETTLE, self._hand_back, execution)

    def _hand_back(self, execution: Execution) -> None:
        job = execution.assignment
        if not execution.ended:
            self._runtime.ended(execution, Transition.handed_back(job.seq, job.lease))

    def ended(self, execution: Execution, report: Transition | None) -> None:
        """Count the end of an attempt; None means that its lease was lost."""
        task = execution.definition
        breaker = None if task is None else task.options.breaker
        if task is None or breaker is None:
            return
        circuit = self._circuits.get(task)
        if circuit is None:
            circuit = self._circuits[task] = Circuit(breaker)
        said = AttemptVerdict.NOTHING
        if report is not None:
            said = verdict(
                report.move, retryable=report.retryable, deliberate=execution.asked_for_retry
            )
        if circuit.ended(execution.assignment.lease, said):
            self._changed(task, circuit, breaker)

    # -- changes -----------------------------------------------------------------------------

    def _changed(self, task: TaskDefinition, circuit: Circuit, breaker: Breaker) -> None:
        extra = {"type": task.name, "failures": circuit.failures}
        if circuit.phase is Phase.OPEN:
            self.paused[task] = time.time() + breaker.pause
            self._log.warning(
                "%d attempts of task %s failed in a row: worker %s takes no jobs of it for %g s,"
                " then it tries one",
                circuit.failures,
                task.name,
                self._log.worker_id,
                breaker.pause,
                extra=extra,
            )
        elif circuit.phase is Phase.CLOSED:
            del self.paused[task]
            self._log.info(
                "task %s works again: worker %s takes all its jobs",
                task.name,
                self._log.worker_id,
                extra=extra,
            )
        self._tell()
        self._wait(task, circuit)
        if circuit.phase is Phase.OPEN:
            self._runtime.hand_back_waiting(task)

    def _try_one(self, task: TaskDefinition, circuit: Circuit) -> None:
        """Ask for one job. Ask again later if no job has come: it may have been lost on the way."""
        if circuit.phase is Phase.OPEN:
            self._log.info(
                "worker %s tries one job of task %s",
                self._log.worker_id,
                task.name,
                extra={"type": task.name, "failures": circuit.failures},
            )
        if circuit.try_one():
            self._tell()
            self._wait(task, circuit)

    def _wait(self, task: TaskDefinition, circuit: Circuit) -> None:
        if task in self._timers:
            self._timers.pop(task).cancel()
        pause = circuit.breaker.pause
        if circuit.phase is not Phase.CLOSED:
            after = pause if circuit.phase is Phase.OPEN else max(pause, _ASK_AGAIN)
            self._timers[task] = self._loop.call_later(after, self._try_one, task, circuit)

    async def close(self) -> None:
        """Stop waiting for the ends of pauses."""
        for timer in self._timers.values():
            timer.cancel()
