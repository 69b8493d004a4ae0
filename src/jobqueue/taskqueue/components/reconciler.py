"""Find QUEUED jobs that are missing from the queue because a process died between two calls.

A job that is passed from one part to another is missing for a moment, too. A missing job is
therefore put back or ended only if it is still QUEUED and missing in the next round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from jobqueue.core.errors import JobQueueError, NotFound
from jobqueue.core.waiting import Background, deadline
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
"""Puts a missing job back into the queue, or ends it."""


class Reconciler(Background):
    """Searches regularly for QUEUED jobs that are missing from the queue.

    Each round reads one page of the QUEUED jobs, and further pages while it finds missing jobs.
    After a stop, the next process finds unsettled jobs again.
    """

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
        self._missing: dict[str, None] = {}  # ids, in the order in which they were found
        self._offset = 0
        self._failing = False

    async def start(self) -> None:
        """Start the rounds at once, as a killed process may have left jobs out of the queue."""
        self._begin(self._go_round(), "reconciler")

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
                    f"cannot look for QUEUED jobs that are in no queue; trying again in"
                    f" {self._interval:g} s",
                    extra={"event": "reconcile_failed"},
                )
            await asyncio.sleep(self._interval)

    async def round(self) -> None:
        """Settle the jobs that were missing in the last round, then look for other missing jobs."""
        with deadline(None):
            for job_id in list(self._missing):
                await self._decide(job_id)
                del self._missing[job_id]
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
        """Read one page; return True if a job was missing and another page exists."""
        listing = Listing(frozenset({Status.QUEUED}), Sort.CREATED_AT_ASC, self._offset)
        page = await self._jobs.list(listing)
        missing = [job.job_id for job in page.jobs if not await self._queue.contains(job.job_id)]
        self._missing.update(dict.fromkeys(missing))
        self._offset = page.next_offset or 0
        return bool(missing) and self._offset > 0
