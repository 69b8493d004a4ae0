"""A job under which workers died runs with nothing beside it.

If a worker dies under it once more, it is the one to blame, and no other job loses a retry by it.
So before it starts the worker has taken its free slots back, handed back what it had not started,
finished what it ran, and told all of that; and the start itself is told and answered, because only
a job that was RUNNING is called poison.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from jobqueue.core.job import Assignment, Transition
from jobqueue.worker.execution import Execution, Executor

log = logging.getLogger("jobqueue.worker")

SUSPECT_AFTER = 2  # deaths
_PATIENCE = 15.0  # seconds that a suspect waits for its neighbours to end, the first time
_MORE_PATIENCE = 4  # so many times as long after each hand-back: at last it has its turn
_MOST_HAND_BACKS = 8
_STEP_ASIDE = 1.0  # seconds that another worker has to take what was handed back
_PROBE = 0.5  # seconds with one slot on offer: the next suspect comes without neighbours


class Room(Protocol):
    """The runtime, as a suspect sees it."""

    def neighbours(self, execution: Execution) -> int:
        """How many other attempts run here."""
        ...

    async def close_room(self) -> None:
        """Offer no slots any more; nothing is delivered after this returns."""
        ...

    async def open_room(self, probe: float) -> None:
        """Offer one slot, and the others so many seconds later, unless a suspect comes."""
        ...

    async def all_told(self) -> None:
        """Wait until every report is answered."""
        ...

    def announce(self, execution: Execution) -> None:
        """Report the start before it."""
        ...

    def ended(self, execution: Execution, report: Transition) -> None:
        """The attempt is over."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that ends with the worker."""
        ...


class Apart:
    """Runs one suspect at a time. Implements ``Executor`` for it, until its handler begins."""

    def __init__(self, room: Room, worker_id: str) -> None:
        self._room = room
        self._worker_id = worker_id
        self.suspect: Execution | None = None  # while it is set, nothing else starts here
        self._changed = asyncio.Event()

    def submit(self, execution: Execution) -> None:
        """Run it with the executor that it has, as soon as nothing runs beside it."""
        member, execution.executor = execution.executor, self
        self.suspect = execution
        self._room.spawn(self._run(execution, member))

    def withdraw(self, execution: Execution) -> bool:
        """It has not begun, and does not once it has ended."""
        return True

    def interrupt(self, execution: Execution) -> None:
        """Its start is being told: ``execution.stop`` is looked at after that."""

    async def close(self) -> None:
        """Nothing is kept between jobs."""

    def look(self) -> None:
        """Some attempt here has ended, or was given up."""
        self._changed.set()

    def waits(self, lease: int) -> None:
        """A handler waits for another job, which may need a slot here.

        A suspect that waits for one does nothing itself, and must not wait for ever.
        """
        if self.suspect is not None and self.suspect.assignment.lease == lease:
            self.suspect = None
            self._changed.set()

    async def _run(self, execution: Execution, member: Executor) -> None:
        try:
            if await self._has_room(execution):
                if await self._told(execution):
                    self._say(execution, "runs with nothing beside it")
                    execution.executor = member
                    member.submit(execution)
                    await self._over(execution)
            elif not execution.ended:
                self._say(execution, "is handed back: other jobs of this worker take too long")
                self._hand_back(execution)
                await asyncio.sleep(_STEP_ASIDE)
        except Exception:
            log.exception("a job could not be run apart", extra={"worker_id": self._worker_id})
        if self.suspect is execution:
            self.suspect = None
        if self.suspect is None:
            # Only one slot at first, because suspects seldom come alone.
            await self._room.open_room(_PROBE)

    async def _has_room(self, execution: Execution) -> bool:
        """Wait until nothing runs beside it; False: for too long, or it was withdrawn."""
        try:
            async with asyncio.timeout(_patience(execution.assignment)):
                await self._room.close_room()
                while not execution.ended and self._room.neighbours(execution):
                    self._changed.clear()
                    await self._changed.wait()
                    await self._room.close_room()  # also of the slot that came free
                await self._room.all_told()  # also of what was handed back
        except TimeoutError:
            return False
        return not execution.ended

    async def _told(self, execution: Execution) -> bool:
        """Report the start and wait for the answer; False: it must not start any more."""
        self._room.announce(execution)
        await self._room.all_told()
        if execution.stop is None:
            return True
        self._hand_back(execution)
        return False

    async def _over(self, execution: Execution) -> None:
        """Wait until it has ended, or was given up, and that is told; or it waits for another job.

        A function that does not end when its attempt is over keeps its own slot only.
        """
        while self.suspect is execution and not (execution.ended or execution.over):
            self._changed.clear()
            await self._changed.wait()
        if self.suspect is execution:
            await self._room.all_told()  # its end is safe before anything else begins

    def _hand_back(self, execution: Execution) -> None:
        job = execution.assignment
        self._room.ended(execution, Transition.handed_back(job.seq, job.lease))

    def _say(self, execution: Execution, what: str) -> None:
        job = execution.assignment
        log.warning(
            "%d workers died while they held job %s (%s); it %s",
            job.deaths,
            job.id,
            job.type or job.queue,
            what,
            extra={**execution.log_fields(), "deaths": job.deaths, "worker_id": self._worker_id},
        )


def _patience(job: Assignment) -> float:
    """Seconds that it may keep others waiting: more with each hand-over that was no retry."""
    hand_backs = max(0, job.attempt - 1 - job.retry_count)
    return _PATIENCE * float(_MORE_PATIENCE ** min(hand_backs, _MOST_HAND_BACKS))
