"""Reports on their way to the server.

One ``link.report`` is in flight at a time while the next batch fills: no timers, and no waiting
when idle. A start is told only if the job is still running when its batch leaves; otherwise its
end says both. A report is kept until it is answered.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from jobqueue.core.api import Link
from jobqueue.core.errors import InvalidArgument, Unavailable
from jobqueue.core.job import Transition
from jobqueue.worker.execution import Execution

log = logging.getLogger("jobqueue.worker")

MAX_REPORTS = 1000  # in one call
MAX_RESULT_BYTES = 2 * 1024 * 1024  # in one call, unless a single result is larger
FIRST_DELAY = 0.05
MAX_DELAY = 2.0


class Outbox:
    """Sends reports, in order, until each is answered."""

    def __init__(
        self,
        worker_id: str,
        answered: Callable[[Sequence[Transition], Sequence[bool]], None],
        refused: Callable[[Execution], None],
        result_refused: Callable[[Transition], None],
    ) -> None:
        self._worker_id = worker_id
        self._answered = answered  # called with ends, and whether each was accepted
        self._refused = refused  # called when a start shows that the lease is gone
        self._result_refused = result_refused  # called with the failure told instead of a result
        self._link: Link | None = None
        self._ends: list[Transition] = []
        self._starts: list[Execution] = []
        self._freed = 0
        self._offering = True
        self.offers = 0  # how often slots were offered in place of what had been, or taken back
        self._work = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._task: asyncio.Task[None] | None = None
        self._delay = 0.0  # > 0 while the server cannot be reached
        self._suspects = 0  # so many ends are sent one by one, because one of them is bad

    # -- filling -----------------------------------------------------------------------------

    def started(self, execution: Execution) -> None:
        """Tell that it runs, if it still does when the next batch leaves."""
        self._starts.append(execution)
        self._wake()

    def end(self, report: Transition) -> None:
        """Tell how an attempt ended."""
        self._ends.append(report)
        self._wake()

    def free(self, slots: int = 1) -> None:
        """Offer slots again, together with the reports that leave with them."""
        if self._offering:
            self._freed += slots
            self._wake()

    def _wake(self) -> None:
        # The sender runs after the callbacks that are ready now, so their ends join the batch.
        if not self._work.is_set():
            self._work.set()
            self._quiet.clear()

    # -- life --------------------------------------------------------------------------------

    def attach(self, link: Link, slots: int, *, offering: bool = True) -> None:
        """Use this link from now on, and offer it these slots instead of what waits to be."""
        self._link = link
        self._delay = 0.0
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send(), name="worker-outbox")
        if offering:
            self.offer(slots)
        else:
            self.stop_offering()

    def offer(self, slots: int) -> None:
        """Offer slots, and those that come free."""
        self._offering = True
        self.offers += 1
        self._freed = 0
        if slots and self._link is not None:
            self._link.grant(slots)

    def stop_offering(self) -> None:
        """Keep slots that come free."""
        self._offering = False
        self.offers += 1
        self._freed = 0

    async def flushed(self) -> None:
        """Wait until everything was answered."""
        await self._quiet.wait()

    async def close(self) -> None:
        """Give up what was not answered."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        if self._ends:
            log.warning(
                "%d reports were not delivered; the server will reclaim the jobs",
                len(self._ends),
                extra={"worker_id": self._worker_id},
            )

    # -- sending -----------------------------------------------------------------------------

    async def _send(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._ends or self._starts or self._freed:
                await self._send_batch()
                if self._delay:
                    await asyncio.sleep(self._delay * random.uniform(0.5, 1.0))
            self._work.clear()
            self._quiet.set()

    async def _send_batch(self) -> None:
        link = self._link
        assert link is not None
        offers = self.offers
        ends = self._take_ends()
        starts = self._take_starts()
        # A slot is offered with or after the report that ends its job, never before.
        freed = max(0, self._freed - len(self._ends))
        self._freed -= freed
        batch = [Transition.started(e.assignment.seq, e.assignment.lease) for e in starts]
        batch += ends
        if not batch:
            if freed:
                link.grant(freed)
            return
        try:
            accepted = await link.report(batch, freed)
        except BaseException as error:
            self._put_back(offers, starts, ends, freed)
            if not isinstance(error, Exception):
                raise
            if not isinstance(error, Unavailable):
                # The starts may have been written: when one is repeated, a refusal proves
                # nothing. Heartbeats tell if its lease is gone.
                for execution in starts:
                    execution.start_unsure = True
            if isinstance(error, InvalidArgument):
                self._isolate(error, ends)
            else:
                self._back_off(error)
        else:
            self._settle(starts, ends, accepted)

    def _take_starts(self) -> list[Execution]:
        if self._suspects:
            return []
        starts = [e for e in self._starts[:MAX_REPORTS] if not e.reported and e.stop is None]
        del self._starts[:MAX_REPORTS]
        return starts

    def _take_ends(self) -> list[Transition]:
        limit = 1 if self._suspects else MAX_REPORTS
        room, count = MAX_RESULT_BYTES, 0
        for report in self._ends:
            room -= len(report.result) if report.result is not None else 0
            if count == limit or (room < 0 and count):
                break
            count += 1
        ends, self._ends = self._ends[:count], self._ends[count:]
        return ends

    def _settle(
        self, starts: list[Execution], ends: list[Transition], accepted: Sequence[bool]
    ) -> None:
        # What is sent again may have been accepted the first time: a refusal proves nothing.
        sure = not self._delay and not self._suspects and len(accepted) == len(starts) + len(ends)
        if self._delay:
            log.info("reports are delivered again", extra={"worker_id": self._worker_id})
        self._delay = 0.0
        self._suspects = max(0, self._suspects - 1)
        self._answered(ends, accepted[len(starts) :] if sure else [True] * len(ends))
        for execution, ok in zip(starts, accepted, strict=False):
            if not ok and not execution.start_unsure:
                self._refused(execution)

    def _put_back(
        self, offers: int, starts: list[Execution], ends: list[Transition], freed: int
    ) -> None:
        self._ends[:0] = ends
        self._starts[:0] = starts
        if self._offering and offers == self.offers:  # else all free slots were offered since
            self._freed += freed

    def _back_off(self, error: Exception) -> None:
        if not self._delay:
            log.warning(
                "cannot deliver reports, trying again: %s",
                str(error) or type(error).__name__,
                extra={"worker_id": self._worker_id},
            )
        self._delay = min(max(self._delay * 2, FIRST_DELAY), MAX_DELAY)

    def _isolate(self, error: InvalidArgument, ends: list[Transition]) -> None:
        """One report is not acceptable: find it, so that it does not hold up the others."""
        if len(ends) != 1:
            self._suspects = len(ends)
            return
        (report,) = ends
        assert report.lease is not None
        if report.result is not None:  # then it is the result; the failure can still be told
            text = f"the result was refused: {error.message}"
            failure = Transition.failed(
                report.seq, report.lease, text, retryable=False, ran_for=report.ran_for
            )
            self._ends[0] = failure
            self._result_refused(failure)
            return
        log.error(
            "a report was refused and is dropped: %s", error, extra={"worker_id": self._worker_id}
        )
        self._suspects = max(0, self._suspects - 1)
        self._answered(ends, [True])
        del self._ends[0]
