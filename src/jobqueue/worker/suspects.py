"""Run a job alone if earlier workers died while they had it: the job may have killed them.

A job that is suspected of killing its worker is called a suspect here. While a suspect runs, the
worker runs no other job. If the worker dies, the suspect is to blame, and no other job loses a
retry. Before the suspect starts, the worker withdraws its free slots, hands back jobs that have not
started, waits for running jobs to end, and waits until the server has answered all reports. The
start is reported and answered before the handler begins, because only a job that was RUNNING can
become a dead letter with the reason POISON.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jobqueue.core.job import Assignment, Transition
from jobqueue.worker.execution import Execution, Executor
from jobqueue.worker.log import WorkerLog
from jobqueue.worker.outbox import Outbox

if TYPE_CHECKING:
    from jobqueue.worker.runtime import WorkerRuntime

_PATIENCE = 15.0  # seconds that a suspect waits for other jobs to end, the first time
_MORE_PATIENCE = (
    4  # factor by which the wait grows with each hand-back, so that the job runs at last
)
_MOST_HAND_BACKS = 8
_STEP_ASIDE = 1.0  # seconds without offers, so that another worker gets the handed-back job
_PROBE = 0.5  # seconds with only one slot on offer, so that the next suspect comes alone


class SuspectExecutor(Executor):
    """Replaces the executor of one suspect at a time, until the suspect's handler may begin."""

    def __init__(self, runtime: WorkerRuntime, outbox: Outbox, log: WorkerLog) -> None:
        self._runtime = runtime
        self._outbox = outbox
        self._log = log
        self.suspect: Execution | None = None  # while it is set, nothing else starts here
        self._changed = asyncio.Event()

    def submit(self, execution: Execution) -> None:
        member, execution.executor = execution.executor, self
        self.suspect = execution
        self._runtime.spawn(self._run(execution, member))

    def look(self) -> None:
        """Check again whether the suspect may start, after another attempt has ended."""
        self._changed.set()

    def waits(self, lease: int) -> None:
        """Let other jobs run again if the suspect's handler waits for another job.

        The other job may need a slot of this worker, and the suspect would wait forever without it.
        ``lease`` is the lease of the attempt whose handler waits.
        """
        if self.suspect is not None and self.suspect.assignment.lease == lease:
            self.suspect = None
            self._changed.set()

    async def _run(self, execution: Execution, member: Executor) -> None:
        try:
            if await self._has_room(execution):
                if await self._announced(execution):
                    self._say(
                        execution, "this worker runs it alone, because it may have killed them"
                    )
                    execution.executor = member
                    member.submit(execution)
                    await self._over(execution)
            elif not execution.ended:
                self._say(
                    execution,
                    "it is handed back, because other jobs of this worker take too long for it to"
                    " run alone",
                )
                self._hand_back(execution)
                await asyncio.sleep(_STEP_ASIDE)
        except Exception:
            self._log.exception(
                "cannot run job %s alone; this worker offers its slots again",
                execution.assignment.id,
                extra=execution.log_fields(),
            )
        if self.suspect is execution:
            self.suspect = None
        if self.suspect is None:
            # Offer only one slot at first, because the next job is often a suspect, too.
            await self._runtime.offer_one_then_all(_PROBE)

    async def _has_room(self, execution: Execution) -> bool:
        """Wait until no other job runs in this worker, so that the suspect may start.

        Return False if the wait takes too long, or if the suspect has ended meanwhile.
        """
        runtime = self._runtime
        try:
            async with asyncio.timeout(_patience(execution.assignment)):
                await runtime.take_back_slots()
                while not execution.ended and runtime.neighbours(execution):
                    self._changed.clear()
                    await self._changed.wait()
                    await runtime.take_back_slots()  # also the slot that has just become free
                await self._outbox.flushed()  # also the reports of jobs that were handed back
        except TimeoutError:
            return False
        return not execution.ended

    async def _announced(self, execution: Execution) -> bool:
        """Report the start of the job and wait for the server's answer.

        Return False if the job was stopped meanwhile and must not start.
        """
        self._runtime.announce(execution)
        await self._outbox.flushed()
        if execution.stop is None:
            return True
        self._hand_back(execution)
        return False

    async def _over(self, execution: Execution) -> None:
        """Wait until the server has answered the report of the suspect's end.

        Return earlier if the attempt was given up, or if the suspect waits for another job. A
        function that still runs after its attempt was given up blocks only its own slot.
        """
        while self.suspect is execution and not (execution.ended or execution.over):
            self._changed.clear()
            await self._changed.wait()
        if self.suspect is execution:
            # The server must know its end before another job begins.
            await self._outbox.flushed()

    def _hand_back(self, execution: Execution) -> None:
        job = execution.assignment
        self._runtime.ended(execution, Transition.handed_back(job.seq, job.lease))

    def _say(self, execution: Execution, what: str) -> None:
        job = execution.assignment
        self._log.warning(
            "%d workers died while they had job %s (%s); %s",
            job.deaths,
            job.id,
            job.type or job.queue,
            what,
            extra={**execution.log_fields(), "deaths": job.deaths},
        )


def _patience(job: Assignment) -> float:
    """Return how many seconds a suspect may delay other jobs: more after each hand-back of it."""
    hand_backs = max(0, job.attempt - 1 - job.retry_count)
    return _PATIENCE * float(_MORE_PATIENCE ** min(hand_backs, _MOST_HAND_BACKS))
