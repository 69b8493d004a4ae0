"""Runs a job under which workers died with nothing beside it.

If a worker dies under it once more, the job is to blame, and no other job loses a retry. Before it
starts, the worker takes back its free slots, hands back the jobs that it has not started, finishes
those that run, and reports all of that. The start itself is reported and answered before the
handler begins, because only a job that was RUNNING is called poison.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jobqueue.core.job import Assignment, Transition
from jobqueue.worker.execution import Execution, Executor
from jobqueue.worker.log import WorkerLog

if TYPE_CHECKING:
    from jobqueue.worker.runtime import WorkerRuntime

SUSPECT_AFTER = 2  # deaths
_PATIENCE = 15.0  # seconds that a suspect waits for its neighbours to end, the first time
_MORE_PATIENCE = 4  # factor by which that grows with each hand-back: at last it has its turn
_MOST_HAND_BACKS = 8
_STEP_ASIDE = 1.0  # seconds that another worker has to take the job that was handed back
_PROBE = 0.5  # seconds with one slot on offer: the next suspect comes without neighbours


class SuspectExecutor(Executor):
    """Runs one suspect at a time. Its executor until the handler begins."""

    def __init__(self, runtime: WorkerRuntime, log: WorkerLog) -> None:
        self._runtime = runtime
        self._log = log
        self.suspect: Execution | None = None  # while it is set, nothing else starts here
        self._changed = asyncio.Event()

    def submit(self, execution: Execution) -> None:
        member, execution.executor = execution.executor, self
        self.suspect = execution
        self._runtime.spawn(self._run(execution, member))

    def look(self) -> None:
        """An attempt of this worker has ended, or was given up."""
        self._changed.set()

    def waits(self, lease: int) -> None:
        """A handler waits for another job, which may need a slot here.

        A suspect that waits for a job does nothing itself, and must not wait for ever.
        """
        if self.suspect is not None and self.suspect.assignment.lease == lease:
            self.suspect = None
            self._changed.set()

    async def _run(self, execution: Execution, member: Executor) -> None:
        try:
            if await self._has_room(execution):
                if await self._announced(execution):
                    self._say(execution, "runs with nothing beside it")
                    execution.executor = member
                    member.submit(execution)
                    await self._over(execution)
            elif not execution.ended:
                self._say(execution, "is handed back: other jobs of this worker take too long")
                self._hand_back(execution)
                await asyncio.sleep(_STEP_ASIDE)
        except Exception:
            self._log.exception("a job could not be run apart")
        if self.suspect is execution:
            self.suspect = None
        if self.suspect is None:
            # Only one slot at first: the next job is often a suspect, too.
            await self._runtime.offer_one_then_all(_PROBE)

    async def _has_room(self, execution: Execution) -> bool:
        """Wait until nothing runs beside it; False if that takes too long, or it was withdrawn."""
        runtime = self._runtime
        try:
            async with asyncio.timeout(_patience(execution.assignment)):
                await runtime.take_back_slots()
                while not execution.ended and runtime.neighbours(execution):
                    self._changed.clear()
                    await self._changed.wait()
                    await runtime.take_back_slots()  # also the slot that came free
                await runtime.reports_answered()  # also of jobs that were handed back
        except TimeoutError:
            return False
        return not execution.ended

    async def _announced(self, execution: Execution) -> bool:
        """Report the start and wait for the answer; False if it must not start any more."""
        self._runtime.announce(execution)
        await self._runtime.reports_answered()
        if execution.stop is None:
            return True
        self._hand_back(execution)
        return False

    async def _over(self, execution: Execution) -> None:
        """Wait until its end is answered, or until it was given up or waits for another job.

        A function that does not end when its attempt is over keeps its own slot only.
        """
        while self.suspect is execution and not (execution.ended or execution.over):
            self._changed.clear()
            await self._changed.wait()
        if self.suspect is execution:
            await self._runtime.reports_answered()  # its end is safe before another job begins

    def _hand_back(self, execution: Execution) -> None:
        job = execution.assignment
        self._runtime.ended(execution, Transition.handed_back(job.seq, job.lease))

    def _say(self, execution: Execution, what: str) -> None:
        job = execution.assignment
        self._log.warning(
            "%d workers died while they held job %s (%s); it %s",
            job.deaths,
            job.id,
            job.type or job.queue,
            what,
            extra={**execution.log_fields(), "deaths": job.deaths},
        )


def _patience(job: Assignment) -> float:
    """Seconds that it may keep others waiting: more with each hand-over that was no retry."""
    hand_backs = max(0, job.attempt - 1 - job.retry_count)
    return _PATIENCE * float(_MORE_PATIENCE ** min(hand_backs, _MOST_HAND_BACKS))
