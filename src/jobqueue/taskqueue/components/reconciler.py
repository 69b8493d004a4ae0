"""Finds QUEUED jobs that are in no queue: a process died between two calls of a protocol.

A job on its way from one part to another is in no queue for a moment, too. So a missing job is
first a suspect, and settled if it is still QUEUED and missing in the next round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from jobqueue.core.errors import JobQueueError, NotFound
from jobqueue.core.waiting import deadline
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.model import (
    RECONCILE_INTERVAL_MS,
    Listing,
    Sort,
    Status,
    Summary,
)
from jobqueue.taskqueue.components.protocols import JobOwner, QueueOwner

Settle = Callable[[Summary], Awaitable[None]]
"""Puts a job that was missing back into the queue, or ends it."""


class Reconciler:
    """Looks at one page of QUEUED jobs in each round, and at more pages while jobs are missing."""

    def __init__(
        self,
        jobs: JobOwner,
        queue: QueueOwner,
        settle: Settle,
        *,
        interval_ms: int = RECONCILE_INTERVAL_MS,
    ) -> None:
        self._jobs = jobs
        self._queue = queue
        self._settle = settle
        self._interval = interval_ms / 1000
        self._suspects: dict[str, None] = {}  # in the order in which they were missed
        self._offset = 0
        self._failing = False
        self._rounds: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin with a round: the process before this one may have been killed."""
        self._rounds = asyncio.create_task(self._go_round())

    async def stop(self) -> None:
        """End. The next process finds a job again that is being settled now."""
        rounds, self._rounds = self._rounds, None
        if rounds is not None:
            rounds.cancel()
            await asyncio.gather(rounds, return_exceptions=True)

    async def _go_round(self) -> None:
        while True:
            try:
                await self.round()
                self._failing = False
            except JobQueueError as error:
                if not self._failing:
                    journal.warn(
                        "reconcile_failed",
                        f"cannot look for QUEUED jobs that are in no queue: {error.message};"
                        f" trying again every {self._interval:g} s",
                    )
                self._failing = True
            except Exception:  # a defect; the next round may pass
                journal.log.exception(
                    "cannot look for QUEUED jobs that are in no queue; trying again",
                    extra={"event": "reconcile_failed"},
                )
            await asyncio.sleep(self._interval)

    async def round(self) -> None:
        """Settle the suspects of the round before, then look for others."""
        with deadline(None):
            for job_id in list(self._suspects):
                await self._decide(job_id)
                del self._suspects[job_id]
            while await self._look():
                pass

    async def _decide(self, job_id: str) -> None:
        try:
            job = (await self._jobs.get(job_id)).summary
        except NotFound:
            return
        if job.status is Status.QUEUED and not await self._queue.contains(job_id):
            await self._settle(job)

    async def _look(self) -> bool:
        """Look at a page; return whether a job was missing and there is another page."""
        listing = Listing(frozenset({Status.QUEUED}), Sort.CREATED_AT_ASC, self._offset)
        page = await self._jobs.list(listing)
        missing = [job.job_id for job in page.jobs if not await self._queue.contains(job.job_id)]
        self._suspects.update(dict.fromkeys(missing))
        self._offset = page.next_offset or 0
        return bool(missing) and self._offset > 0
