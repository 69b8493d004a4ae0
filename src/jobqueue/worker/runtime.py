"""Implement a worker: receive assigned jobs, run their handlers, and report their ends.

All methods run on the event loop, unless they say otherwise. A job takes a slot when it arrives,
and frees the slot when its handler has ended. The server never assigns more jobs than the worker
has free slots.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from jobqueue.core.api import DispatchApi, Link
from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.errors import (
    Conflict,
    InvalidArgument,
    JobQueueError,
    OutcomeUnknown,
    PermissionDenied,
    Unavailable,
)
from jobqueue.core.ids import new_lease
from jobqueue.core.job import SUSPECT_AFTER, Assignment, Pulse, Transition, WorkerInfo, WorkerStatus
from jobqueue.core.lifecycle import Move
from jobqueue.core.observer import Observer
from jobqueue.core.progress import Progress
from jobqueue.core.waiting import GrowingPause
from jobqueue.tasks.context import Context, UnknownTask
from jobqueue.tasks.task import TaskDefinition, define
from jobqueue.worker.breakers import Breakers
from jobqueue.worker.completing import LocalCompletions, NoTransactions, Transactions
from jobqueue.worker.execution import Endings, Execution, Stop
from jobqueue.worker.executors.executor_set import ExecutorSet
from jobqueue.worker.log import AttemptFigures, AttemptLog, WorkerLog, log
from jobqueue.worker.outbox import Outbox
from jobqueue.worker.registry import Registry
from jobqueue.worker.settings import WorkerSettings
from jobqueue.worker.side_threads import HeartbeatThread, LoopWatch, UnsentProgress
from jobqueue.worker.slots import OverrunSlots, WaitingSlots
from jobqueue.worker.suspects import SuspectExecutor

_FIRST_RECONNECT = 0.1
_MAX_RECONNECT = 1.0
_START_SECONDS = 15.0  # to store a start before its handler's transaction ends the attempt
# Errors after which another try to register is useless.
_FINAL = (Conflict, InvalidArgument, PermissionDenied)
_SUCCEED = Move.SUCCEED  # reading it from the enum for every job is slow
_CLOSE_SECONDS = 2.0  # part of a stop's time: for kills, the last reports and deregistering


class WorkerRuntime:
    """Runs the jobs of the worker's queues.

    Implements ``Inbox`` for the server, and ``Host`` for the executors.
    """

    def __init__(
        self,
        dispatch: DispatchApi,
        registry: Registry,
        settings: WorkerSettings,
        observer: Observer | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        """Create a worker, which ``start`` connects.

        ``observer`` counts the attempts; None if an engine in this process counts them.
        ``transactions`` joins the transactions of handlers, for ``Context.complete``.
        """
        self.settings = settings
        self._transactions = transactions or NoTransactions()
        self._log = WorkerLog(settings.id)
        self._figures = None if observer is None else AttemptFigures(observer)
        self.incarnation = new_lease()
        self._dispatch = dispatch
        self._registry = registry
        self._unknown = _unknown_task(registry)
        self._types: frozenset[str] | None = None  # the types that the server knows
        self._endings = Endings(settings.max_result_bytes)
        self._attempts = AttemptLog(settings.id)
        self._link: Link | None = None
        # Attempts by lease. Heartbeats list them until the server has answered their end.
        self._held: dict[int, Execution] = {}
        self._progress = UnsentProgress()
        self._completed: set[int] = set()  # leases of attempts that their handlers ended themselves
        # Executions that take a slot. After a timeout, an execution may stay here after its report.
        self._running: dict[int, Execution] = {}
        self._told_breakers: list[OpenBreaker] = []
        self._taking = False
        self._withdrawing: asyncio.Task[None] | None = None
        self._pushes = 0  # how often the server has sent a status by itself
        self._pushes_at_beat = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._reconnecting = False
        self.exhausted = False  # True if the worker stops because all slots are blocked
        self._closing: asyncio.Task[None] | None = None
        self._deadline = math.inf  # monotonic time at which a stop must be complete
        self._hurry = asyncio.Event()
        self._idle = asyncio.Event()
        self._finished = asyncio.Event()

    # -- life --------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Return the number of slots in use."""
        return len(self._running)

    @property
    def unended(self) -> int:
        """Return the number of attempts whose final report has no answer yet."""
        return len(self._held)

    @property
    def overrun(self) -> int:
        """Return the number of slots in which the function of a given-up attempt still runs."""
        return 0 if self._link is None else self._overruns.count()

    @property
    def finished(self) -> Coroutine[Any, Any, Any]:
        """Return an awaitable that completes when the worker has stopped."""
        return self._finished.wait()

    async def finished_or(self, stop: asyncio.Event) -> None:
        """Wait until the worker has stopped or the event ``stop`` is set."""
        waits = [asyncio.ensure_future(self.finished), asyncio.ensure_future(stop.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def start(self) -> None:
        """Register at the server, offer all slots, and start the heartbeats."""
        if self._link is not None or self._finished.is_set():
            return
        self._check_batches()
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox(self._log, self._answered, self._refused, self._result_refused)
        self._suspects = SuspectExecutor(self, self._outbox, self._log)
        self._breakers = Breakers(self, self._registry, self._log, self._tell_breakers)
        self._waiting = WaitingSlots(self.settings, self._suspects.waits)
        self._overruns = OverrunSlots(self.settings, self._running.values, self._exhaust)
        self._executors = ExecutorSet(
            self, self._endings, self.settings, self._transactions.child_module
        )
        self._completions = LocalCompletions(
            self._transactions,
            self._running.get,
            self.completing,
            self.settings.id,
            self.settings.max_result_bytes,
        )
        link = await self._connect(time.monotonic() + self.settings.connect_timeout)
        if self._finished.is_set():  # ``stop`` was called meanwhile
            await link.close()
            return
        self._link = link
        self._taking = True
        self._heartbeat = HeartbeatThread(
            self._log, self.settings.heartbeat_interval, self._beat, self._on_pulse
        )
        self._heartbeat.start()
        self._loop_watch = LoopWatch(self._log, lambda: list(self._running.values()))
        self._loop_watch.start()
        self._outbox.attach(link, self.settings.concurrency)
        self._registry.listeners.append(self._task_added)
        self._register_new_tasks()
        self._log.info(
            "worker started: %s runs up to %d jobs at once of queue %s",
            self.settings.id,
            self.settings.concurrency,
            ", ".join(self.settings.queues),
        )

    def _check_batches(self) -> None:
        """Raise InvalidArgument if the worker cannot run full batches of its tasks."""
        settings = self.settings
        batches = self._registry.batches(settings.queues)
        if batches and settings.exec_command:
            raise InvalidArgument(
                f"task {batches[0].name!r}",
                "runs its jobs in batches, but this worker runs a program for each job; run the"
                " task by a worker without exec",
            )
        for task in batches:
            size = task.options.batch or 1
            if size > settings.concurrency:
                raise InvalidArgument(
                    "worker.concurrency",
                    f"task {task.name!r} runs batches of {size} jobs, each of which takes a slot,"
                    f" but this worker has {settings.concurrency}; set its concurrency to {size} or"
                    " more, or lower batch=",
                )

    async def stop(self, timeout: float | None = None) -> None:
        """Stop the worker: hand back jobs that have not started, finish the others, and deregister.

        The server retries the jobs that still run after ``timeout`` seconds.
        """
        if self._link is None:
            self._finished.set()
            return
        if timeout is None:
            timeout = self.settings.shutdown_timeout
        if self._closing is None:
            self._deadline = time.monotonic() + timeout
            self._stop_taking()
            self._closing = self._loop.create_task(self._close(), name="worker-close")
        reserve = min(_CLOSE_SECONDS, timeout * 0.1)
        await asyncio.wait({self._closing}, timeout=timeout - reserve)
        self._hurry.set()
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._registry.listeners.remove(self._task_added)
        hurry = self._loop.create_task(self._hurry.wait())
        await self._or_hurry(hurry, self._withdraw_slots(), "withdraw its slots")
        for execution in list(self._running.values()):
            self._hand_back_unstarted(execution)
        await self._or_hurry(hurry, self._settled(), "finish its jobs")
        hurry.cancel()
        if left := len(self._running) - self._overruns.count():
            self._log.warning(
                "%d jobs of worker %s did not end in time and are left behind; the server will"
                " retry those with retries left",
                left,
                self.settings.id,
            )
        for task in self._tasks:
            task.cancel()
        self._waiting.close()
        await self._breakers.close()
        await self._abandon()
        await self._outbox.close()
        await self._loop_watch.stop(self._left() / 2)
        await self._heartbeat.stop(self._left() / 2)
        await self._deregister()
        self._finished.set()
        self._log.info("worker stopped: %s", self.settings.id)

    async def _settled(self) -> None:
        while self._running:
            self._idle.clear()
            await self._idle.wait()
        await self._outbox.flushed()

    def _left(self) -> float:
        """Return how many seconds one of the last steps of a stop may take."""
        return min(_CLOSE_SECONDS, max(0.1, self._deadline - time.monotonic()))

    async def _or_hurry(
        self, hurry: asyncio.Task[bool], step: Coroutine[Any, Any, None], what: str
    ) -> None:
        """Run one step of a stop until it ends or the time for the stop is over."""
        task = self._loop.create_task(step)
        await asyncio.wait({task, hurry}, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.warning(
                "worker %s could not %s: %s; it stops nevertheless", self.settings.id, what, error
            )

    async def _abandon(self) -> None:
        """Stop the handlers that can be stopped, and close the executors."""
        abandoned = list(self._running.values())
        for execution in abandoned:
            if execution.stop is None:
                self._attempts.abandoned(execution)
            # Not ``execution.interrupt``, which would set ``ctx.cancelled``: this is not a cancel.
            execution.stop = Stop.SHUTDOWN
            execution.executor.interrupt(execution)
        tasks = {e.handle for e in abandoned if isinstance(e.handle, asyncio.Task)}
        if tasks:
            await asyncio.wait(tasks, timeout=self._left() / 2)
        await self._executors.close()

    # -- the link ----------------------------------------------------------------------------

    async def _connect(self, give_up_at: float | None) -> Link:
        self._types = self._registry.types() if self._executors.program is None else None
        info = WorkerInfo(
            id=self.settings.id,
            incarnation=self.incarnation,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            concurrency=self.settings.concurrency,
            queues=self.settings.queues,
            version=self.settings.version,
            fallback=self.settings.fallback,
            types=self._types,
        )
        pause = GrowingPause(_FIRST_RECONNECT, _MAX_RECONNECT)
        while True:
            try:
                return await self._dispatch.connect(info, self)
            except _FINAL:
                raise
            except JobQueueError as error:
                if give_up_at is not None and (
                    not isinstance(error, Unavailable | OutcomeUnknown)
                    or time.monotonic() + pause.most > give_up_at
                ):
                    raise
                if not pause.grown:
                    self._log.warning(
                        "cannot register worker %s at the server: %s; trying again",
                        self.settings.id,
                        error,
                    )
            await pause.wait()

    async def _reconnect(self) -> None:
        """Register again: the server has dropped this worker or does not know its new tasks."""
        try:
            await self._deregister()  # close the old link first: later that would close the new one
            self._link = await self._connect(None)
            self._told_breakers = []  # a registration begins with closed breakers
            self._tell_breakers()
            offering = self._taking and self._suspects.suspect is None
            slots = self.settings.concurrency - len(self._running) if offering else 0
            self._outbox.attach(self._link, slots, offering=offering)
        except _FINAL as error:  # another try to register would be refused, too
            self._log.error(
                "the server refuses to register worker %s: %s; the worker stops",
                self.settings.id,
                error,
            )
            self.spawn(self.stop())
        finally:
            self._reconnecting = False
        self._register_new_tasks()

    async def _deregister(self) -> None:
        link = self._link
        assert link is not None
        try:
            async with asyncio.timeout(self._left()):
                await link.close()
        except (JobQueueError, TimeoutError, OSError) as error:
            self._log.warning(
                "cannot deregister worker %s: %s; the server drops it when its heartbeats are"
                " missing",
                self.settings.id,
                error,
            )

    def _beat(self, awake: bool) -> Pulse:
        """Send a heartbeat and return the server's answer. Runs in the heartbeat thread.

        ``awake`` is False if the heartbeat may lack leases of jobs that the loop has not read yet.
        """
        link = self._link
        assert link is not None
        self._pushes_at_beat = self._pushes
        held = list(self._held.items())  # atomic, so another thread may do it
        # The assignment of a job that waits in an open batch must not time out, either.
        begun = [lease for lease, execution in held if execution.begun or execution.batch]
        suspect = self._suspects.suspect
        if suspect is not None and not suspect.begun:
            begun.append(suspect.assignment.lease)  # waiting to run alone: it must not time out
        progress = self._progress.take(self._held)
        known = False
        try:
            pulse = link.pulse(
                [lease for lease, _ in held],
                begun,
                awake,
                progress=progress,
                overrun=self._overruns.count(),
            )
            known = pulse.known
        finally:
            if not known:
                self._progress.give_back(progress)
        return pulse

    def _on_pulse(self, pulse: Pulse) -> None:
        if not pulse.known:
            self._register_again()
            return
        if self._pushes == self._pushes_at_beat:  # else a newer status has arrived
            self._obey(pulse.status)
        self.cancel(pulse.cancelled)
        for lease in pulse.lost:
            if execution := self._held.get(lease):
                self._refused(execution)

    def _register_again(self, why: str = "") -> None:
        if not self._reconnecting and self._closing is None:
            self._reconnecting = True
            if why:
                self._log.info("worker %s registers again: %s", self.settings.id, why)
            else:
                self._log.warning(
                    "the server has closed the link of worker %s; the worker registers again",
                    self.settings.id,
                )
            self.spawn(self._reconnect())

    def _task_added(self) -> None:
        """Register again after a task was defined. Any thread may call this method."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._register_new_tasks)

    def _register_new_tasks(self) -> None:
        if self._types is not None and self._types != self._registry.types():
            self._register_again("the app has defined new tasks")

    async def _withdraw_slots(self, *, pause: bool = False) -> None:
        link = self._link
        assert link is not None
        try:
            await link.drain(pause=pause)
        except (JobQueueError, OSError) as error:  # the next heartbeat repeats the request
            self._log.warning(
                "cannot withdraw the free slots of worker %s: %s; it hands back jobs that still"
                " arrive",
                self.settings.id,
                error,
            )

    def _obey(self, status: WorkerStatus) -> None:
        if self._closing is not None:
            return
        if status is WorkerStatus.STOPPING:
            self.spawn(self.stop())
        elif status is WorkerStatus.DRAINING and self._taking:
            self._stop_taking()
            self._log.info(
                "draining: worker %s finishes its jobs and takes no new jobs", self.settings.id
            )
            self._withdrawing = self.spawn(self._withdraw_slots())
            for execution in self._executors.batches.collected():
                self._hand_back_unstarted(execution)
        elif status is WorkerStatus.ONLINE and not self._taking and self._link is not None:
            self._taking = True
            self._log.info("worker %s is taking jobs again", self.settings.id)
            self.spawn(self._offer_again(self._withdrawing))

    async def _offer_again(self, withdrawing: asyncio.Task[None] | None) -> None:
        """Offer all free slots after earlier offers have been withdrawn."""
        if withdrawing is not None:
            await asyncio.wait({withdrawing})
        if self._withdrawing is withdrawing and self._suspects.suspect is None:
            self._offer(self.settings.concurrency - len(self._running))

    def _offer(self, slots: int) -> None:
        if self._taking and not self._reconnecting:  # else ``_reconnect`` offers them
            self._outbox.offer(slots)

    # -- Inbox -------------------------------------------------------------------------------

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        now = time.monotonic()
        suspects = self._suspects
        if self._figures is not None:
            self._figures.assigned(assignments)
        for job in assignments:
            if job.lease in self._held:  # it was delivered twice
                continue
            execution = self._prepare(job, now)
            self._held[job.lease] = execution
            if (
                not self._taking
                or len(self._running) >= self.settings.concurrency
                or suspects.suspect is not None
            ):
                self._report(execution, Transition.handed_back(job.seq, job.lease))
                continue
            self._running[job.lease] = execution
            if self._breakers.paused and not self._breakers.admits(execution):
                self._breakers.submit(execution)
            elif job.deaths >= SUSPECT_AFTER and execution.executor.shares_fate:
                suspects.submit(execution)
            else:
                execution.executor.submit(execution)

    def cancel(self, leases: Sequence[int]) -> None:
        for lease in leases:
            execution = self._running.get(lease)
            if execution is None or execution.stop is not None:
                continue
            if not self._hand_back_unstarted(execution):
                execution.interrupt(Stop.CANCELLED)

    def set_status(self, status: WorkerStatus) -> None:
        self._pushes += 1
        self._obey(status)

    def holds(self) -> Sequence[int]:
        return list(self._held)

    def moved(self) -> None:
        self._register_again()

    # -- Host --------------------------------------------------------------------------------

    def begin(self, execution: Execution) -> bool:
        if execution.ended:
            return False
        now = time.monotonic()
        if (not self._taking or execution.expired(now)) and not execution.announced:
            self._hand_back_unstarted(execution)
            return False
        execution.begun = now
        self.begun(execution)
        return True

    def begun(self, execution: Execution) -> None:
        timeout = execution.timeout
        if timeout is not None:
            left = execution.begun + timeout - time.monotonic()
            execution.timer = self._loop.call_later(max(0.0, left), self._time_out, execution)
        if not execution.announced:
            self._outbox.started(execution)

    def advanced(self, lease: int, progress: Progress) -> None:
        self._progress.add(lease, progress)
        self._heartbeat.hurry()

    async def completing(self, execution: Execution, needs_start: bool) -> None:
        started = execution.completing or not needs_start
        execution.completing = True
        self._completed.add(execution.assignment.lease)
        if started:
            return
        # Until its start is stored, a job may share a row with other jobs, and the transaction must
        # not lock them. The outbox reports the start as well; the second report is refused.
        execution.start_unsure = True
        job = execution.assignment
        pause = GrowingPause(_FIRST_RECONNECT, _MAX_RECONNECT)
        give_up_at = time.monotonic() + _START_SECONDS
        while True:
            link = self._link
            assert link is not None
            try:
                await link.report([Transition.started(job.seq, job.lease)])
            except (Unavailable, OutcomeUnknown):
                if time.monotonic() + pause.most > give_up_at:
                    execution.completing = False  # nothing was written
                    raise
            else:
                return
            await pause.wait()

    def ended(self, execution: Execution, report: Transition) -> None:
        if execution.ended:
            return
        if execution.completing:
            report = self._endings.after_completing(execution, report)
        execution.ended = True
        if execution.timer is not None:
            execution.timer.cancel()
        del self._running[execution.assignment.lease]
        self._waiting.forget(execution.assignment.lease)
        if execution.stop is not None:
            self._report_stopped(execution, report)
        else:
            self._report(execution, report)
        if execution.error is not None:
            execution.error = None  # its frames hold on to the execution
        self._outbox.free()
        if self._suspects.suspect is not None:
            self._suspects.look()
        if not self._running:
            self._idle.set()

    # -- for breakers ------------------------------------------------------------------------

    def breakers(self) -> Mapping[str, int]:
        """Return 1 for each task whose breaker is open, and 0 for the others with a breaker."""
        return {} if self._link is None else self._breakers.counts()

    def hand_back_waiting(self, task: TaskDefinition) -> None:
        """Hand back the jobs of a task that have not begun."""
        for execution in list(self._running.values()):
            if execution.definition is task:
                self._hand_back_unstarted(execution)

    def _tell_breakers(self) -> None:
        if self._link is not None and (told := self._breakers.open()) != self._told_breakers:
            self._told_breakers = told
            self._link.set_breakers(told)

    # -- for suspects ------------------------------------------------------------------------

    def neighbours(self, execution: Execution) -> int:
        """Return how many other attempts this worker runs, without those that were given up."""
        return sum(other is not execution and not other.over for other in self._running.values())

    async def take_back_slots(self) -> None:
        """Withdraw all free slots. No job arrives after this method has returned."""
        self._outbox.stop_offering()
        await self._withdraw_slots(pause=True)
        self._executors.batches.flush()  # no more jobs will join them

    def announce(self, execution: Execution) -> None:
        """Report the start of an attempt before its handler begins."""
        execution.announced = True
        execution.begun = time.monotonic()
        execution.assignment.expires_in = None  # the TTL ends at the first start
        self._outbox.started(execution)

    async def offer_one_then_all(self, probe: float) -> None:
        """Offer one slot, and the other free slots ``probe`` seconds later.

        The other slots are not offered if a suspect, a job that may kill its worker, has arrived.
        """
        free = self.settings.concurrency - len(self._running)
        self._offer(min(1, free))
        offers = self._outbox.offers
        await asyncio.sleep(probe)
        if free > 1 and self._suspects.suspect is None and self._outbox.offers == offers:
            self._outbox.free(free - 1)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start an asyncio task that is cancelled when the worker stops."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- ends --------------------------------------------------------------------------------

    def _report(self, execution: Execution, report: Transition) -> None:
        execution.reported = True
        # If the handler ended the attempt in a transaction, only the answer to the report says
        # whether the attempt failed.
        if self._registry.has_breakers and not execution.completing:
            self._breakers.ended(execution, report)
        if not execution.completing and (
            report.move is not _SUCCEED or log.isEnabledFor(logging.DEBUG)
        ):
            self._attempts.ended(execution, report)
        self._outbox.end(report)

    def _report_stopped(self, execution: Execution, report: Transition) -> None:
        """Report the end of an attempt that was told to stop.

        Nothing is reported if the server has a report already or would not accept one.
        """
        if execution.stop is Stop.TIMED_OUT:
            return  # it was reported at the timeout
        if execution.stop is not Stop.CANCELLED:  # the server accepts no report
            if execution.stop is Stop.LOST:
                self._held.pop(execution.assignment.lease, None)
            return
        unaware = execution.executor.may_overlook_cancel
        self._report(execution, self._endings.cancelled(execution, report, unaware))

    def _hand_back_unstarted(self, execution: Execution) -> bool:
        if execution.begun or not execution.executor.withdraw(execution):
            return False
        job = execution.assignment
        self.ended(execution, Transition.handed_back(job.seq, job.lease))
        return True

    def _time_out(self, execution: Execution) -> None:
        if execution.ended or execution.stop is Stop.LOST:
            return
        self._report(execution, self._endings.timed_out(execution))
        self._give_up(execution, Stop.TIMED_OUT)

    def _exhaust(self) -> None:
        """Stop the worker without waiting for its functions, because they may never end."""
        if self._closing is None:
            self.exhausted = True
            self.spawn(self.stop(_CLOSE_SECONDS))

    def _answered(
        self, reports: Sequence[Transition], accepted: Sequence[bool], again: bool
    ) -> None:
        """Forget attempts whose final report was answered, and log reports that were not accepted.

        Nothing is logged if ``again`` is True: the server may have accepted the same report before.
        """
        if self._figures is not None:
            self._figures.ended(self._held, reports, accepted)
        if self._completed or not (again or all(accepted)):
            for report, ok in zip(reports, accepted, strict=False):
                execution = self._held.get(report.lease or 0)
                if execution is not None:
                    self._log_answer(execution, report, ok, again)
        for report in reports:
            if report.lease is not None:
                self._held.pop(report.lease, None)

    def _log_answer(self, execution: Execution, report: Transition, ok: bool, again: bool) -> None:
        if execution.completing:
            self._completed.discard(execution.assignment.lease)
            if ok:
                self._attempts.ended(execution, report)
            else:
                self._attempts.completed(execution, report)
        elif not (ok or again) and report.move is not Move.HAND_BACK:
            self._attempts.end_not_accepted(execution, report)

    def _result_refused(self, report: Transition) -> None:
        """Log the failure that is reported in place of a result that the server refused."""
        if report.lease is not None and (execution := self._held.get(report.lease)) is not None:
            self._attempts.result_refused(execution, report)

    def _refused(self, execution: Execution) -> None:
        """Stop an attempt without a report, because its lease is gone."""
        if execution.reported or execution.stop is Stop.LOST or execution.ended:
            return
        if execution.completing:
            return  # the handler may have ended the attempt itself, and may go on
        if not self._hand_back_unstarted(execution):
            self._attempts.lease_lost(execution)
            self._breakers.ended(execution, None)
            self._held.pop(execution.assignment.lease, None)
            self._give_up(execution, Stop.LOST)

    def _give_up(self, execution: Execution, why: Stop) -> None:
        """Stop an attempt that was given up. Its slot stays in use until the function ends."""
        execution.interrupt(why)
        self._overruns.watch(execution)
        self._suspects.look()

    def _stop_taking(self) -> None:
        self._taking = False
        self._outbox.stop_offering()

    def _prepare(self, job: Assignment, now: float) -> Execution:
        executors = self._executors
        if executors.program is not None:
            return Execution(job, None, executors.program, now, self._waiting)
        definition = self._registry.get(job.type) or self._unknown
        executor = executors.of(definition)
        made = Execution(job, definition, executor, now, self._waiting)
        made.completions = self._completions
        return made


def _unknown_task(registry: Registry) -> TaskDefinition:
    """Define the task that fails the jobs for which this worker has no task.

    Only an old server sends such a job. It would send the job again at once if the worker handed it
    back. The attempt therefore fails, so that the retry waits for the usual delay.
    """

    async def unknown(payload: bytes, ctx: Context) -> None:
        known = ", ".join(registry.names())
        raise UnknownTask(
            f"this worker has no task named {ctx.type!r}; it has {known}. A newer server"
            " sends only jobs for tasks that this worker has: update the server"
        )

    return define(unknown)
