"""Send the worker's reports to the server in batches, and keep each until it is answered.

Only one call of ``link.report`` runs at a time. Reports that are made during the call become the
next batch. There are no timers: an idle worker sends a report at once. A start is reported
only if the job still runs when its batch is sent. If the job has ended, only its end is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from jobqueue.core.api import Link
from jobqueue.core.errors import InvalidArgument, Unavailable
from jobqueue.core.job import Transition
from jobqueue.core.waiting import Background, GrowingPause
from jobqueue.worker.execution import Execution
from jobqueue.worker.log import WorkerLog

MAX_REPORTS = 1000  # in one call
MAX_RESULT_BYTES = 2 * 1024 * 1024  # in one call, unless a single result is larger
FIRST_DELAY = 0.05
MAX_DELAY = 2.0


class Outbox(Background):
    """Sends reports in order, and repeats each until the server has answered it."""

    def __init__(
        self,
        log: WorkerLog,
        answered: Callable[[Sequence[Transition], Sequence[bool], bool], None],
        refused: Callable[[Execution], None],
        result_refused: Callable[[Transition], None],
    ) -> None:
        self._log = log
        # Called with ends, with a bool for each end (True: accepted), and with a bool that is True
        # if an end was perhaps reported before, so that a refusal has no meaning.
        self._answered = answered
        self._refused = refused  # called when the server refused a start: the lease is gone
        self._result_refused = result_refused  # called with the failure that is reported instead
        self._link: Link | None = None
        self._ends: list[Transition] = []
        self._starts: list[Execution] = []
        self._freed = 0
        self._offering = True
        self.offers = 0  # how often the offer of slots was replaced or withdrawn
        self._work = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._pause = GrowingPause(FIRST_DELAY, MAX_DELAY)
        self._failing = False  # True while the server cannot be reached
        self._cut_off = False  # True if the sender was cancelled while a batch was under way
        self._one_by_one = 0  # the number of ends to send one by one after a refused batch

    # -- filling -----------------------------------------------------------------------------

    def started(self, execution: Execution) -> None:
        """Report the start of an attempt, unless the attempt ends before the next batch is sent."""
        self._starts.append(execution)
        self._wake()

    def end(self, report: Transition) -> None:
        """Report the end of an attempt."""
        self._ends.append(report)
        self._wake()

    def free(self, slots: int = 1) -> None:
        """Offer slots that have become free, together with the next reports."""
        if self._offering:
            self._freed += slots
            self._wake()

    def _wake(self) -> None:
        # The sender runs after the callbacks that are ready now, so it also sends their reports.
        if not self._work.is_set():
            self._work.set()
            self._quiet.clear()

    # -- life --------------------------------------------------------------------------------

    def attach(self, link: Link, slots: int, *, offering: bool = True) -> None:
        """Send to this link from now on, and offer ``slots`` slots unless ``offering`` is False.

        Slots that became free earlier and were not offered yet are not offered in addition.
        """
        self._link = link
        self._reached()
        self._keep_sending()
        if offering:
            self.offer(slots)
        else:
            self.stop_offering()

    def offer(self, slots: int) -> None:
        """Offer these slots now, and from now on also slots that become free."""
        self._offering = True
        self.offers += 1
        self._freed = 0
        if self._link is not None:
            self._link.grant(slots)  # even 0: slots that become free are offered with reports

    def stop_offering(self) -> None:
        """Offer no slots from now on, even if slots become free."""
        self._offering = False
        self.offers += 1
        self._freed = 0

    async def flushed(self) -> None:
        """Wait until the server has answered every report."""
        while not self._quiet.is_set():
            sender = self._keep_sending()
            quiet = asyncio.ensure_future(self._quiet.wait())
            try:
                await asyncio.wait({quiet, sender}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                quiet.cancel()
            if sender.done() and not sender.cancelled():
                sender.result()  # raises the error that ended it

    def _keep_sending(self) -> asyncio.Task[None]:
        """Start the task that sends, also if it was cancelled; return it.

        ``asyncio.run`` cancels every task at its end. A worker that stops then still has to report.
        """
        if self._task is None or self._task.cancelled():
            self._begin(self._send(), "worker-outbox")
            self._work.set()
        assert self._task is not None
        return self._task

    async def close(self) -> None:
        """Stop sending. Reports that have no answer yet are lost."""
        await self.stop()
        if self._ends:
            self._log.warning(
                "the ends of %d jobs could not be reported before worker %s stopped; the server"
                " will retry those with retries left",
                len(self._ends),
                self._log.worker_id,
            )

    # -- sending -----------------------------------------------------------------------------

    async def _send(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._ends or self._starts or self._freed:
                await self._send_batch()
                if self._failing:
                    await self._pause.wait()
            self._work.clear()
            self._quiet.set()

    async def _send_batch(self) -> None:
        link = self._link
        assert link is not None
        offers = self.offers
        ends = self._take_ends()
        starts = self._take_starts()
        # A slot is offered together with the report of its job's end, or later.
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
                self._cut_off = True
                raise
            if not isinstance(error, Unavailable):
                # The starts may have been stored, so the refusal of a repeated start has no
                # meaning. Heartbeats show whether its lease is gone.
                for execution in starts:
                    execution.start_unsure = True
            if isinstance(error, InvalidArgument):
                self._isolate(error, ends)
            else:
                self._back_off(error)
        else:
            self._settle(starts, ends, accepted)

    def _take_starts(self) -> list[Execution]:
        if self._one_by_one:
            return []
        starts = [e for e in self._starts[:MAX_REPORTS] if not e.reported and e.stop is None]
        del self._starts[:MAX_REPORTS]
        return starts

    def _take_ends(self) -> list[Transition]:
        limit = 1 if self._one_by_one else MAX_REPORTS
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
        # A repeated report may have been accepted the first time, so its refusal has no meaning.
        again = (
            self._failing
            or self._cut_off
            or self._one_by_one > 0
            or len(accepted) != len(starts) + len(ends)
        )
        if self._failing:
            self._log.info("the server answers reports of worker %s again", self._log.worker_id)
        self._reached()
        self._one_by_one = max(0, self._one_by_one - 1)
        self._answered(ends, accepted[len(starts) :], again)
        for execution, ok in zip(starts, accepted, strict=False):
            if not ok and not execution.start_unsure:
                self._refused(execution)

    def _put_back(
        self, offers: int, starts: list[Execution], ends: list[Transition], freed: int
    ) -> None:
        self._ends[:0] = ends
        self._starts[:0] = starts
        if self._offering and offers == self.offers:  # otherwise all free slots were offered again
            self._freed += freed

    def _back_off(self, error: Exception) -> None:
        if not self._failing:
            self._log.warning(
                "cannot send reports of worker %s to the server: %s; trying again",
                self._log.worker_id,
                str(error) or type(error).__name__,
            )
        self._failing = True

    def _reached(self) -> None:
        self._failing = self._cut_off = False
        self._pause.reset()

    def _isolate(self, error: InvalidArgument, ends: list[Transition]) -> None:
        """Send the ends of a refused batch one by one, so that the refused end blocks no other.

        If its result was refused, report a failure instead. Otherwise drop the report.
        """
        if len(ends) != 1:
            self._one_by_one = len(ends)
            return
        (report,) = ends
        assert report.lease is not None
        if report.result is not None:  # the result was refused; a failure can still be reported
            text = f"the server refused the result: {error.message}"
            failure = Transition.failed(
                report.seq, report.lease, text, retryable=False, ran_for=report.ran_for
            )
            self._ends[0] = failure
            self._result_refused(failure)
            return
        self._log.error(
            "the server refused the report %r of the job with sequence number %d: %s; the report"
            " is dropped",
            report.move.value,
            report.seq,
            error,
        )
        self._one_by_one = max(0, self._one_by_one - 1)
        self._answered(ends, [False], True)
        del self._ends[0]
