"""Moves jobs on when time has passed: retries, expiries, timeouts, lost workers, retention."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from jobqueue.core.clock import Clock
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Outcome, Transition, WorkerStatus
from jobqueue.core.observer import Observer
from jobqueue.core.store import Store, Term, TermEnded
from jobqueue.core.waiting import is_set_within
from jobqueue.engine.leadership import Leadership
from jobqueue.engine.settings import EngineSettings

_log = logging.getLogger("jobqueue.engine.sweeper")
_PRUNE_INTERVAL = 10.0
_WORKERS_KEPT = 86_400.0  # an OFFLINE worker is shown for a day
_PASSES = 100  # of one sweep
_STEP = 1.0  # a larger jump between the clocks means that one was set, or that we slept

Apply = Callable[[Sequence[Transition]], Awaitable[Sequence[Outcome]]]


class Sweeper:
    """One task with three duties, each at its own pace.

    What is due is moved on by every server; the other two are the leader's alone.
    """

    def __init__(
        self,
        store: Store,
        settings: EngineSettings,
        clock: Clock,
        apply: Apply,
        promoted: Callable[[], None],
        offline: Callable[[str], None],
        gives_way: Callable[[], Awaitable[bool]] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._apply = apply
        self._promoted = promoted
        self._offline = offline
        self._leadership = Leadership(
            store,
            settings.leader_ttl,
            self._suspend_judgement,
            gives_way,
            name=settings.name,
            observer=observer,
        )
        self._task: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        self._next = 0.0
        self._reap_every = max(0.05, min(5.0, settings.heartbeat_timeout / 4))
        self._reap_at = 0.0
        self._judge_at = 0.0
        self._skew = 0.0  # wall clock against monotonic clock
        self._prune_at = 0.0
        self._failing = False

    def start(self) -> None:
        """Begin; nobody is judged silent before a full timeout has passed under our eyes.

        Under our eyes means: our own sweeps found the store there, all the time. A server that
        stands by looks just as one that leads, so that it may judge as soon as it takes the lead;
        one that was cut off from the store waits a full timeout, leader or not.
        """
        now = time.monotonic()
        self._reap_at = now
        self._judge_at = now + self._settings.heartbeat_timeout
        self._skew = self._clock.now() - now
        self._leadership.start()
        self._task = asyncio.create_task(self._run(), name="jobqueue-sweeper")

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await self._leadership.stop()

    @property
    def term(self) -> Term | None:
        """The term that this server leads under, or None."""
        return self._leadership.term

    def term_ended(self) -> None:
        """Work under our term was refused: we lead no more, and did not notice."""
        self._suspend_judgement()
        self._leadership.step_down()
        self._leadership.nudge()

    def lead(self) -> None:
        """Whoever led may have resigned."""
        self._leadership.nudge()

    def expect(self, at: float) -> None:
        """Something will be due then, by the store's clock: do not sleep through it."""
        if at < self._next:
            self._next = at
            self._nudge.set()

    async def _run(self) -> None:
        while True:
            self._nudge.clear()
            # Whatever is said while the store is asked must not be lost: see expect().
            self._next = self._clock.now() + self._settings.interval
            try:
                await self._do_duties()
                self._failing = False
            except JobQueueError as error:
                self._suspend_judgement()
                if not self._failing:
                    _log.warning("the sweeper cannot work: %s", error)
                self._failing = True
            while (delay := self._next - self._clock.now()) > 0:
                # Never longer than the interval: the clock may have been set back.
                if not await is_set_within(self._nudge, min(delay, self._settings.interval)):
                    break
                self._nudge.clear()  # told of something earlier: sleep less
            await asyncio.sleep(0)

    async def _do_duties(self) -> None:
        """Each on its own: a defect in one must not end the others."""
        for duty in (self.sweep, self._reap, self._prune):
            try:
                await duty()
            except TermEnded:  # it ran out, and we did not notice: were we stopped?
                self.term_ended()
            except JobQueueError:
                self._leadership.step_down()
                raise
            except Exception:
                _log.exception("%s failed", duty.__name__)

    async def sweep(self) -> int:
        """Make every move that is due; returns how many."""
        moved = 0
        for _ in range(_PASSES):  # then the other duties have their turn
            overdue = await self._store.due(self._settings.sweep_limit)
            if overdue.promoted:
                self._promoted()
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
            _log.exception("a sweep failed; its moves are tried one by one")
        outcomes: list[Outcome] = []
        for one in transitions:
            try:
                outcomes += await self._apply([one])
            except JobQueueError:
                raise
            except Exception:
                _log.exception("job number %d cannot be moved on", one.seq)
        return outcomes

    async def _reap(self) -> None:
        now = time.monotonic()
        if now < self._reap_at:
            return
        skew = self._clock.now() - now
        if now > self._reap_at + 2 * self._reap_every + 1.0 or abs(skew - self._skew) > _STEP:
            # We were stopped, blocked or suspended ourselves, or the clock was set: what looks
            # like a silence may be none.
            self._suspend_judgement()
        self._skew = skew
        self._reap_at = now + self._reap_every
        term = self._leadership.term
        if term is not None and now >= self._judge_at:
            timeout = self._settings.heartbeat_timeout
            for worker_id in await self._store.retire_silent(timeout, term):
                _log.warning(
                    "worker is offline: no heartbeat for %g s",
                    timeout,
                    extra={"worker_id": worker_id},
                )
                self._offline(worker_id)
            await self._fail_over()
            await self._forget_workers()

    def _suspend_judgement(self) -> None:
        self._judge_at = time.monotonic() + self._settings.heartbeat_timeout

    async def _fail_over(self) -> None:
        """Fail what is held by workers that are OFFLINE or gone.

        By what the store says, not by whom we just judged: a fail-over that was interrupted is
        taken up again, by whichever server looks next.
        """
        held = await self._store.held()  # before the workers: who holds a lease has registered
        if not held:
            return
        present = {
            worker.info.id
            for worker in await self._store.workers()
            if worker.status is not WorkerStatus.OFFLINE
        }
        lost = [
            Transition.worker_lost(
                one.seq, one.lease, f"worker {one.worker_id} was lost (no heartbeat)"
            )
            for one in held
            if one.worker_id not in present
        ]
        if lost:
            await self._apply(lost)

    async def _forget_workers(self) -> None:
        """Workers' names are often made for one run: they must not pile up."""
        since = self._clock.now() - _WORKERS_KEPT
        for worker in await self._store.workers():
            gone = worker.status is WorkerStatus.OFFLINE and worker.last_seen < since
            if gone and not worker.running:
                await self._store.forget_worker(worker.info.id)

    async def _prune(self) -> None:
        if self._settings.retention <= 0 or time.monotonic() < self._prune_at:
            return
        limit = self._settings.sweep_limit
        while (term := self._leadership.term) is not None:
            before = self._clock.now() - self._settings.retention
            if await self._store.prune_done(before, limit, term) < limit:
                self._prune_at = time.monotonic() + _PRUNE_INTERVAL
                return
            await asyncio.sleep(0)
