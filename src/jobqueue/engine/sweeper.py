"""Make the changes that become due: retries, expiries, timeouts, lost workers, retention."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from jobqueue.core.clock import Clock
from jobqueue.core.errors import Conflict, JobQueueError
from jobqueue.core.job import Outcome, Transition, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.observer import Observer
from jobqueue.core.queue import Queue
from jobqueue.core.store import DoneJobs, JobFilter, Store, Term, TermEnded
from jobqueue.core.waiting import Background, is_set_within
from jobqueue.engine.leadership import Leadership
from jobqueue.engine.scheduler import Scheduler
from jobqueue.engine.settings import EngineSettings

_log = logging.getLogger("jobqueue.engine.sweeper")
_PRUNE_INTERVAL = 10.0
_LOOK_AT_ALL = 600.0
_WORKERS_KEPT = 86_400.0  # an OFFLINE worker is shown for a day
_PASSES = 100  # the most writes of one sweep
_STEP = 1.0  # after a larger change between the clocks: a clock was set, or the machine slept

Apply = Callable[[Sequence[Transition]], Awaitable[Sequence[Outcome]]]


class Sweeper(Background):
    """Makes the transitions that are due.

    On the leader it also sets silent workers OFFLINE and removes old jobs.
    """

    def __init__(
        self,
        store: Store,
        settings: EngineSettings,
        clock: Clock,
        apply: Apply,
        scheduler: Scheduler,
        gives_way: Callable[[], Awaitable[bool]] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._apply = apply
        self._scheduler = scheduler
        self._leadership = Leadership(
            store.leadership,
            settings.leader_ttl,
            self._suspend_judgement,
            gives_way,
            name=settings.name,
            observer=observer,
        )
        self._nudge = asyncio.Event()
        self._next = 0.0
        self._reap_every = max(0.05, min(5.0, settings.heartbeat_timeout / 4))
        self._reap_at = 0.0
        self._judge_at = 0.0
        self._skew = 0.0  # between wall clock and monotonic clock
        self._prune_at = 0.0
        self._look_at_all = 0.0  # the next time to prune dead letters, and to clear the times below
        # For queues with a retention of their own: the time before which no DONE jobs are left. If
        # the event stream was behind, some jobs are left, so these times are cleared regularly.
        self._pruned_to: dict[tuple[Any, ...], float] = {}
        self._logged_removal: set[str] = set()
        self._failing = False

    def start(self) -> None:
        """Start the election of a leader and the background task.

        After the start, and after each failure of the store, this server sets no worker OFFLINE for
        one heartbeat timeout, because heartbeats may not have been recorded. The time also counts
        on a standby, so that it can set workers OFFLINE as soon as it leads.
        """
        now = time.monotonic()
        self._reap_at = now
        self._judge_at = now + self._settings.heartbeat_timeout
        self._skew = self._clock.now() - now
        self._leadership.start()
        self._begin(self._run(), "sweeper")

    async def stop(self) -> None:
        await super().stop()
        await self._leadership.stop()

    @property
    def term(self) -> Term | None:
        """Return the term of this server, or None if it does not lead."""
        return self._leadership.term

    def term_ended(self) -> None:
        """Stop leading, because the store refused work under this server's term."""
        self._suspend_judgement()
        self._leadership.step_down()
        self._leadership.nudge()

    def lead(self) -> None:
        """Try to take the lead now, because the leader may have resigned."""
        self._leadership.nudge()

    def expect(self, at: float) -> None:
        """Sweep no later than at the time ``at``, because a job is due then."""
        if at < self._next:
            self._next = at
            self._nudge.set()

    async def _run(self) -> None:
        while True:
            self._nudge.clear()
            # Set before the store is read, so that no call of expect() meanwhile is lost.
            self._next = self._clock.now() + self._settings.interval
            try:
                await self._do_duties()
                self._failing = False
            except JobQueueError as error:
                self._suspend_judgement()
                if not self._failing:
                    _log.warning(
                        "cannot make the transitions that are due: %s; trying again every %g s",
                        error,
                        self._settings.interval,
                    )
                self._failing = True
            while (delay := self._next - self._clock.now()) > 0:
                # Sleep at most the interval, because the clock may have been set back.
                if not await is_set_within(self._nudge, min(delay, self._settings.interval)):
                    break
                self._nudge.clear()  # something is due earlier: sleep less
            await asyncio.sleep(0)

    async def _do_duties(self) -> None:
        # An exception in one duty must not prevent the others.
        for duty in (self.sweep, self._reap, self._prune):
            try:
                await duty()
            except TermEnded:  # this process may have been suspended when its term ended
                self.term_ended()
            except JobQueueError:
                self._leadership.step_down()
                raise
            except Exception:
                _log.exception("the sweeper's step %s failed; trying again", duty.__name__)

    async def sweep(self) -> int:
        """Make all transitions that are due and return their number."""
        moved = 0
        for _ in range(_PASSES):  # afterwards the other duties have their turn
            overdue = await self._store.upkeep.due(self._settings.sweep_limit)
            if overdue.promoted:
                self._scheduler.wake()
            if overdue.transitions:
                outcomes = await self._move(overdue.transitions)
                moved += sum(outcome.applied for outcome in outcomes)
            if len(overdue.transitions) + overdue.promoted < self._settings.sweep_limit:
                if overdue.next_at is not None:
                    self._next = min(self._next, overdue.next_at)
                return moved
        self._next = 0.0
        return moved

    async def _move(self, transitions: Sequence[Transition]) -> list[Outcome]:
        try:
            return list(await self._apply(transitions))
        except JobQueueError:
            raise
        except Exception:
            _log.exception(
                "cannot write %d due transitions together; writing them one by one",
                len(transitions),
            )
        outcomes: list[Outcome] = []
        for one in transitions:
            try:
                outcomes += await self._apply([one])
            except JobQueueError:
                raise
            except Exception:
                _log.exception(
                    "cannot write the due transition of job number %d;"
                    " trying again with the next sweep",
                    one.seq,
                )
        return outcomes

    async def _reap(self) -> None:
        now = time.monotonic()
        if now < self._reap_at:
            return
        skew = self._clock.now() - now
        if now > self._reap_at + 2 * self._reap_every + 1.0 or abs(skew - self._skew) > _STEP:
            # This process was suspended or blocked, or the clock was set. So a worker may be alive
            # although no heartbeat was recorded.
            self._suspend_judgement()
        self._skew = skew
        self._reap_at = now + self._reap_every
        term = self._leadership.term
        if term is not None and now >= self._judge_at:
            timeout = self._settings.heartbeat_timeout
            for worker_id in await self._store.workers.retire_silent(timeout, term):
                _log.warning(
                    "worker %s is OFFLINE: no heartbeat for %g s; its jobs are failed over",
                    worker_id,
                    timeout,
                    extra={"worker_id": worker_id},
                )
                self._scheduler.dismiss(worker_id)
            await self._clear_up()

    def _suspend_judgement(self) -> None:
        self._judge_at = time.monotonic() + self._settings.heartbeat_timeout

    async def _clear_up(self) -> None:
        """Fail over the jobs of workers that are OFFLINE or unknown; delete old OFFLINE workers.

        The workers are read from the store, so that a new leader continues a fail-over that the
        last leader did not finish. Old workers are deleted, because many worker ids are made for
        one run only and would accumulate.
        """
        # Read leases before workers, so that the workers of all these leases are read, too.
        held = await self._store.workers.held()
        workers = await self._store.workers.all(names=False)
        gone = [worker for worker in workers if worker.status is WorkerStatus.OFFLINE]
        present = {worker.info.id for worker in workers}.difference(one.info.id for one in gone)
        lost = [
            Transition.worker_lost(
                one.seq, one.lease, f"worker {one.worker_id} was lost (no heartbeat)"
            )
            for one in held
            if one.worker_id not in present
        ]
        if lost:
            await self._apply(lost)
        since = self._clock.now() - _WORKERS_KEPT
        for worker in gone:
            if worker.last_seen < since and not worker.running:
                await self._store.workers.forget(worker.info.id)

    async def _prune(self) -> None:
        now = time.monotonic()
        if now < self._prune_at or self._leadership.term is None:
            return
        if now >= self._look_at_all:
            self._pruned_to.clear()
        queues = [stats.queue for stats in await self._store.queues.stats()]
        own: dict[float, list[str]] = {}
        for queue in queues:
            if queue.retention is not None:
                own.setdefault(queue.retention, []).append(queue.name)
        named = [name for names in own.values() for name in names]
        # With ``others`` the jobs of deleted queues are removed, too.
        await self._prune_done(self._settings.retention, named, others=True)
        for age, names in own.items():
            await self._prune_done(age, names, others=False)
        if now >= self._look_at_all:
            for queue in queues:
                await self._prune_dead(self._settings.complete(queue))
            self._look_at_all = now + _LOOK_AT_ALL
        self._prune_at = time.monotonic() + _PRUNE_INTERVAL

    async def _prune_done(self, age: float, queues: list[str], *, others: bool) -> None:
        limit = self._settings.sweep_limit
        look = (age, others, *queues)
        while age > 0 and (term := self._leadership.term) is not None:
            before = self._clock.now() - age
            where = DoneJobs(queues, others, self._pruned_to.get(look, -math.inf))
            removed = await self._store.upkeep.prune_done(before, limit, term, where)
            self._log_removed(removed, "DONE jobs", "retention", age)
            if removed < limit:
                if queues:  # jobs that other queues keep for longer are not read again each time
                    self._pruned_to[look] = before
                return
            await asyncio.sleep(0)

    async def _prune_dead(self, queue: Queue) -> None:
        age = queue.dead_letter_retention or 0.0
        limit = self._settings.sweep_limit
        wanted = JobFilter(queue=queue.name, until=self._clock.now() - age, limit=limit)
        while age > 0 and self._leadership.term is not None:
            looked = await self._store.reads.dead_letters(wanted)
            removed = 0
            if looked.found:
                jobs = await self._store.reads.list_jobs(
                    replace(
                        wanted,
                        states=(State.DEAD_LETTERED,),
                        before_seq=looked.found[0][0] + 1,
                        limit=len(looked.found),
                    )
                )
                for job in jobs:
                    with contextlib.suppress(Conflict):  # its last event is not published yet
                        found = await self._store.upkeep.delete_job(job.id, version=job.version)
                        removed += found is not None
            self._log_removed(removed, "dead letters", "dead_letter_retention", age)
            if looked.before_seq is None:
                return
            wanted.before_seq = looked.before_seq

    def _log_removed(self, removed: int, jobs: str, setting: str, age: float) -> None:
        """Log the first removal for each setting, for operators who look for a missing job."""
        if removed and setting not in self._logged_removal:
            self._logged_removal.add(setting)
            _log.info(
                "removed %d %s that ended more than %g s ago (queue.%s, or the queue's own setting;"
                " 0 = keep for ever); later removals are not logged",
                removed,
                jobs,
                age,
                setting,
            )
