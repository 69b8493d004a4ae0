"""Hands jobs to workers: woken by work and by free slots, never polling but for the safety net."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Assignment, Transition, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.observer import Observer
from jobqueue.core.store import Claim, Store
from jobqueue.core.waiting import is_set_within
from jobqueue.engine.sessions import Plan, Scope, Session, Sessions, Work, concerns
from jobqueue.engine.settings import EngineSettings

_log = logging.getLogger("jobqueue.engine.scheduler")
_NOTHING_FREED: Mapping[Session, int] = {}
_NOTHING_ENDS: Mapping[Session, set[int]] = {}
_REMEMBERED = 64  # news; a claim that is under way for longer is told that it missed something


class Scheduler:
    """Plans claims for every write that can carry one, and runs cycles of its own besides.

    ``news`` counts everything that may have made a job claimable. A claim that came back short
    and saw all the news leaves its scope *dry*: nothing is asked for it again until there is
    news of its queues and types, or the interval has passed.
    """

    def __init__(
        self,
        store: Store,
        settings: EngineSettings,
        observer: Observer,
        claim: Callable[[Sequence[Claim]], Awaitable[list[Assignment]]] | None = None,
    ) -> None:
        self._store = store
        # For workers that are not connected here; None: as the store does, for those that are.
        self._claim = claim
        self._settings = settings
        self._observer = observer
        self._news = 1
        # The latest of them, in order: the jobs that came; None: any may have.
        self._recent: deque[Work | None] = deque(maxlen=_REMEMBERED)
        self._dry: set[Scope] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._assigning = True
        self._returning: set[asyncio.Task[None]] = set()
        self.sessions = Sessions()

    def start(self) -> None:
        """Begin to run cycles."""
        self._task = asyncio.create_task(self._run(), name="jobqueue-scheduler")

    async def stop(self) -> None:
        """End the cycles. A claim under way is waited for: what it brings must not be stranded."""
        if self._task is not None:
            self._stopping = True
            self._wake.set()
            await asyncio.wait([self._task])
            self._task = None
        if self._returning:
            await asyncio.wait(self._returning)

    def assign_no_more(self) -> None:
        """Promise no more slots: the server is about to stop."""
        self._assigning = False

    def wake(self, work: Work | None = None) -> None:
        """Something may have become claimable: these jobs, or any.

        A scope that is not dry need not be woken for jobs that are known: it has no free slots,
        or a claim under way that hears of them when it ends.
        """
        if self._note(work) or work is None:
            self._wake.set()

    def _note(self, work: Work | None) -> bool:
        """Count news; returns whether a scope is dry no more."""
        self._news += 1
        self._recent.append(work)
        before = len(self._dry)
        if work is None:
            self._dry.clear()
        elif before:
            self._dry -= {scope for scope in self._dry if concerns(scope, work)}
        return len(self._dry) < before

    def _has_news(self, scope: Scope, since: int) -> bool:
        missed = self._news - since
        if missed > len(self._recent):
            return True
        return any(
            work is None or concerns(scope, work)
            for work in (self._recent[-number] for number in range(1, missed + 1))
        )

    def grant(self, session: Session, slots: int) -> None:
        """A worker offers free slots; never more than it said it has."""
        session.drained = False
        slots = min(slots, session.info.concurrency - session.free - session.promised)
        if slots > 0:
            # Also if it is not open: a worker may hear before us that its drain was taken back.
            session.free += slots
        if session.free > 0 and session.open and self.sessions.scope(session) not in self._dry:
            self._wake.set()

    def tell(self, session: Session, status: WorkerStatus) -> None:
        """An operator wants this of a worker connected here."""
        session.tell(status)
        self.wake()  # it has slots again, or leaves its queues to a fallback

    def withdraw(self, session: Session) -> None:
        """A worker takes its slots back; a fallback may have its queues."""
        session.drained = True
        session.free = 0
        self.wake()

    def dismiss(self, worker_id: str) -> None:
        """A worker is OFFLINE: it gets nothing before it registers again."""
        session = self.sessions.get(worker_id)
        if session is not None:
            session.open = False
            self.remove(session)

    def remove(self, session: Session) -> None:
        """A worker has left; what it kept others from may be taken again."""
        self.sessions.remove(session)
        self._dry.clear()
        self._wake.set()

    def relieve(self, session: Session, leases: Collection[int]) -> None:
        """Leases of a worker ended: slots may be used that could not be because of them."""
        session.held.difference_update(leases)
        if session.offers:
            self._wake.set()

    def plan(
        self,
        freed: Mapping[Session, int] = _NOTHING_FREED,
        ending: Mapping[Session, set[int]] = _NOTHING_ENDS,
        *,
        work: Work | None = None,
    ) -> Plan:
        """Promise free slots to a claim that rides along with a write.

        ``work``: the write itself brings these jobs, so that who takes them is not dry.
        """
        if work is not None:
            self._note(work)
        if not self._assigning:
            return Plan.nothing()
        return self.sessions.plan(
            self._settings.batch_size, self._news, self._dry.__contains__, freed, ending
        )

    def plan_hand_off(self, work: Work, jobs: int) -> Plan:
        """Promise slots to a submit, where nothing is known to wait: its jobs may go to them.

        Where something waits it goes first, and the next cycle sees to that.
        """
        if not self._assigning:
            return Plan.nothing()
        return self.sessions.plan(
            min(jobs, self._settings.batch_size),
            self._news,
            lambda scope: scope not in self._dry or not concerns(scope, work),
            _NOTHING_FREED,
            _NOTHING_ENDS,
        )

    def settle(self, plan: Plan, assigned: Sequence[Assignment], *, looked: bool = True) -> None:
        """Deliver what the claim brought. ``looked``: it saw all that there is to be claimed."""
        if plan.asked and looked:
            for scope, filled in plan.filled(assigned):
                if filled or self._has_news(scope, plan.news):
                    self._wake.set()  # there may be more, or something came that it did not see
                else:
                    self._dry.add(scope)
            if plan.left_out:
                self._wake.set()
        elif plan.asked > len(assigned):
            self._wake.set()  # something may have come for the slots while they were promised
        orphans = self.sessions.settle(plan, assigned)
        if orphans and self._claim is None:  # else the worker hears of them, or is found lost
            self._hand_back(orphans)
        if assigned:
            by_queue: dict[str, int] = {}
            for one in assigned:
                by_queue[one.queue] = by_queue.get(one.queue, 0) + 1
            for queue, count in by_queue.items():
                self._observer.entered(queue, State.ASSIGNED, count)

    def release(self, plan: Plan) -> None:
        """The write failed: nothing was claimed."""
        self.sessions.settle(plan, ())
        self._wake.set()

    def _hand_back(self, orphans: Sequence[Assignment]) -> None:
        # The worker left while the claim was under way. If this fails they time out.
        transitions = [Transition.handed_back(one.seq, one.lease) for one in orphans]
        task = asyncio.create_task(self._return(transitions))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _return(self, transitions: Sequence[Transition]) -> None:
        try:
            await self._store.apply(transitions)
        except JobQueueError as error:
            _log.warning("jobs could not be handed back: %s", error)
        self.wake()

    async def _run(self) -> None:
        failing = False
        interval = self._settings.interval
        look_at = time.monotonic() + interval
        while not self._stopping:
            # The safety net: look for everybody although nothing was said. Others' news must not
            # put it off.
            left = look_at - time.monotonic()
            if left <= 0 or not await is_set_within(self._wake, left):
                self._note(None)
                look_at = time.monotonic() + interval
            self._wake.clear()
            try:
                while await self._cycle():
                    pass
                failing = False
            except JobQueueError as error:
                if not failing:
                    _log.warning("the scheduler cannot claim: %s", error)
                failing = True
                await asyncio.sleep(interval)
            except Exception:
                _log.exception("a scheduling cycle failed")
                await asyncio.sleep(interval)

    async def _cycle(self) -> bool:
        """One batch; True if there may be more."""
        if self._stopping:
            return False
        plan = self.plan()
        if not plan.asked:
            return False
        began = time.perf_counter()
        try:
            assigned = await (self._claim or self._store.claim)(plan.claims)
        except BaseException:
            self.release(plan)
            raise
        self.settle(plan, assigned)
        by_queue: dict[str, int] = {}
        for one in assigned:
            by_queue[one.queue] = by_queue.get(one.queue, 0) + 1
        self._observer.scheduled(time.perf_counter() - began, by_queue)
        await asyncio.sleep(0)  # who has enough withdraws its slots now, before the next batch
        return plan.left_out or any(filled for _, filled in plan.filled(assigned))
