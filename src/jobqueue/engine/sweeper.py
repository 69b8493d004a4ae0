"""Moves jobs on when time has passed: retries, expiries, timeouts, lost workers, retention."""

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
from jobqueue.core.waiting import is_set_within
from jobqueue.engine.leadership import Leadership
from jobqueue.engine.settings import EngineSettings

_log = logging.getLogger("jobqueue.engine.sweeper")
_PRUNE_INTERVAL = 10.0
_LOOK_AT_ALL = 600.0
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
        self._look_at_all = 0.0  # when to prune dead letters, and what the marks below leave out
        # Of queues with a retention of their own: nothing older is left. Not quite, where the event
        # stream was behind: so these are forgotten from time to time.
        self._pruned_to: dict[tuple[Any, ...], float] = {}
        self._said_removed: set[str] = set()
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
        now = time.monotonic()
        if now < self._prune_at or self._leadership.term is None:
            return
        if now >= self._look_at_all:
            self._pruned_to.clear()
        queues = [stats.queue for stats in await self._store.stats()]
        own: dict[float, list[str]] = {}
        for queue in queues:
            if queue.retention is not None:
                own.setdefault(queue.retention, []).append(queue.name)
        named = [name for names in own.values() for name in names]
        # The others, rather than those without a setting: jobs of a deleted queue leave, too.
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
            removed = await self._store.prune_done(before, limit, term, where)
            self._say_removed(removed, "DONE jobs", "retention", age)
            if removed < limit:
                if queues:  # what others keep for longer is not read again and again
                    self._pruned_to[look] = before
                return
            await asyncio.sleep(0)

    async def _prune_dead(self, queue: Queue) -> None:
        age = queue.dead_letter_retention or 0.0
        limit = self._settings.sweep_limit
        wanted = JobFilter(queue=queue.name, until=self._clock.now() - age, limit=limit)
        while age > 0 and self._leadership.term is not None:
            looked = await self._store.dead_letters(wanted)
            removed = 0
            if looked.found:
                jobs = await self._store.list_jobs(
                    replace(
                        wanted,
                        states=(State.DEAD_LETTERED,),
                        before_seq=looked.found[0][0] + 1,
                        limit=len(looked.found),
                    )
                )
                for job in jobs:
                    with contextlib.suppress(Conflict):  # the stream has not got its end yet
                        removed += (
                            await self._store.delete_job(job.id, version=job.version) is not None
                        )
            self._say_removed(removed, "dead letters", "dead_letter_retention", age)
            if looked.before_seq is None:
                return
            wanted.before_seq = looked.before_seq

    def _say_removed(self, removed: int, what: str, setting: str, age: float) -> None:
        """The first time: whoever misses a job finds out why."""
        if removed and setting not in self._said_removed:
            self._said_removed.add(setting)
            _log.info(
                "removed %d %s that ended more than %g s ago; so long they are kept here"
                " (queue.%s, or the queue's own; 0 = for ever), and later removals are not logged",
                removed,
                what,
                age,
                setting,
            )
