"""Assign jobs to workers.

New jobs and free slots start a claim at once. The scheduler polls the store only as a safety net.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Assignment, Transition, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.observer import Observer
from jobqueue.core.store import NOT_HELD_BACK, Claim, Claimed, Store
from jobqueue.core.waiting import is_set_within
from jobqueue.engine.sessions import Plan, Scope, Session, Sessions, Work, concerns
from jobqueue.engine.settings import EngineSettings

_log = logging.getLogger("jobqueue.engine.scheduler")
_NOTHING_FREED: Mapping[Session, int] = {}
_NOTHING_ENDS: Mapping[Session, set[int]] = {}
_REMEMBERED = 64  # latest news; a claim that was in progress for more of them may have missed some
# Seconds in which a worker that stops together with the server withdraws its slots.
_HEAR_OUT = 1.0
_LOOK = 0.02


class Scheduler:
    """Plans the claims that other writes contain, and makes claims of its own.

    A *scope* is the queues and types of some workers. *News* is anything that may have made a job
    claimable. If a claim for a scope got fewer jobs than slots, and no news came meanwhile, the
    scope is *dry*: it gets no claim until news of its queues and types, or until the interval ends.
    If a queue's limits may have kept jobs from a dry scope, the scope is *held back*: reports,
    which may end jobs of that queue, contain a claim for it.
    """

    def __init__(
        self,
        store: Store,
        settings: EngineSettings,
        observer: Observer,
        claim: Callable[[Sequence[Claim]], Awaitable[list[Assignment]]] | None = None,
    ) -> None:
        self._store = store
        self._claim = claim  # the claim of a roster; None: the claim of the store
        self._settings = settings
        self._observer = observer
        self._news = 1
        # The latest news: the types of new jobs by queue; None: any jobs.
        self._recent: deque[Work | None] = deque(maxlen=_REMEMBERED)
        self._dry: set[Scope] = set()
        self._held_back: set[Scope] = set()  # some of ``_dry``
        self._opens: dict[str, float] = {}  # when a queue's rate limit allows the next start
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._assigning = True
        self._returning: set[asyncio.Task[None]] = set()
        self.sessions = Sessions()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="jobqueue-scheduler")

    async def stop(self) -> None:
        """Stop claiming. Wait for a claim in progress, because its jobs must be delivered."""
        if self._task is not None:
            self._stopping = True
            self._wake.set()
            await asyncio.wait([self._task])
            self._task = None
        if self._returning:
            await asyncio.wait(self._returning)

    async def see_off(self, connected: Callable[[str], bool], within: float) -> None:
        """Assign no more jobs; wait up to ``within`` seconds for reports on the jobs that are held.

        ``connected`` returns True for the id of a worker that can still report here. This method
        waits for workers that stop at the same time or are drained, because there may be no other
        server to report to. It sends all other workers to another server, where they get jobs.
        """
        self._assigning = False
        began = last_busy = time.monotonic()
        told = False
        while True:
            now = time.monotonic()
            busy: list[str] = []
            leaving = False
            for session in self.sessions.all():
                if not connected(session.info.id):
                    continue
                holds = bool(session.held or session.promised)
                if holds and (session.drained or now < began + _HEAR_OUT):
                    busy.append(session.info.id)
                    last_busy = now
                elif session.drained and session.open and now < last_busy + _HEAR_OUT:
                    leaving = True  # the worker has no jobs left and will deregister soon
                else:
                    session.inbox.moved()
            if not busy and not leaving:
                return
            if now >= began + within:
                if busy:
                    _log.warning(
                        "%d workers still hold jobs after %.1f s; the server stops, and jobs whose"
                        " workers do not connect to another server are failed over",
                        len(busy),
                        within,
                        extra={"workers": busy},
                    )
                return
            if busy and not told:
                told = True
                _log.info(
                    "waiting up to %.1f s for %d workers that hold jobs, before the server stops",
                    within,
                    len(busy),
                    extra={"workers": busy},
                )
            await asyncio.sleep(_LOOK)

    def wake(self, work: Work | None = None) -> None:
        """Record that jobs of some queues and types may have become claimable, and claim soon.

        ``work`` None stands for all queues and types.
        """
        # If ``work`` concerns no dry scope, no claim is needed: each of its scopes has no free
        # slots, or has a claim in progress, at whose end the scheduler finds this news.
        if self._note(work) or work is None:
            self._wake.set()

    def _note(self, work: Work | None) -> bool:
        """Record that jobs may have become claimable; return True if fewer scopes are dry now."""
        self._news += 1
        self._recent.append(work)
        before = len(self._dry)
        if work is None:
            self._dry.clear()
        elif before:
            self._dry -= {scope for scope in self._dry if concerns(scope, work)}
        if self._held_back:
            self._held_back &= self._dry
        return len(self._dry) < before

    def freed(self, queues: Collection[str], looked: Collection[Scope] = ()) -> None:
        """Record that held jobs of queues with a limit have ended, and claim soon.

        The same write contained claims for the scopes ``looked``, which need no other claim.
        """
        work: Work = dict.fromkeys(queues)
        self._news += 1
        self._recent.append(work)  # a claim in progress may have been too early
        for scope in [one for one in self._held_back if one not in looked]:
            if concerns(scope, work):
                self._held_back.discard(scope)
                self._dry.discard(scope)
                self._wake.set()

    def _has_news(self, scope: Scope, since: int) -> bool:
        missed = self._news - since
        if missed > len(self._recent):
            return True
        return any(
            work is None or concerns(scope, work)
            for work in (self._recent[-number] for number in range(1, missed + 1))
        )

    def grant(self, session: Session, slots: int) -> None:
        """Add free slots of a worker, up to its concurrency."""
        session.drained = False
        slots = min(slots, session.info.concurrency - session.free - session.promised)
        if slots > 0:
            # Also if the session is not open: the worker may learn before this server that an
            # operator has undone its drain.
            session.free += slots
        if session.free > 0 and session.open and self.sessions.scope(session) not in self._dry:
            self._wake.set()

    def set_breakers(self, session: Session, breakers: Sequence[OpenBreaker]) -> None:
        """Replace a worker's open breakers, and claim for the types that it takes again."""
        session.set_breakers(breakers)
        if session.offers:
            self._wake.set()

    def tell(self, session: Session, status: WorkerStatus) -> None:
        """Send a connected worker the status that an operator has set for it."""
        session.tell(status)
        self.wake()  # its slots may be used again, or a fallback may serve its queues

    def withdraw(self, session: Session) -> None:
        """Withdraw the free slots of a worker, so that fallback workers may serve its queues."""
        session.drained = True
        session.free = 0
        self.wake()

    def dismiss(self, worker_id: str) -> None:
        """Remove the session of an OFFLINE worker: it gets no jobs until it registers again."""
        session = self.sessions.get(worker_id)
        if session is not None:
            session.open = False
            self.remove(session)
            session.close()

    def remove(self, session: Session) -> None:
        """Remove the session of a worker that left, so that fallbacks may serve its queues."""
        self.sessions.remove(session)
        self._dry.clear()
        self._held_back.clear()
        self._wake.set()

    def relieve(self, session: Session, leases: Collection[int]) -> None:
        """Remove ended leases from a worker's load. This may free slots of the worker."""
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
        """Promise free slots to a claim that is part of another write.

        ``work`` names the queues and types of the jobs that this write submits. For ``freed`` and
        ``ending`` see ``Sessions.plan``.
        """
        if work is not None:
            self._note(work)
        if not self._assigning:
            return Plan.nothing()
        skip = self._dry.__contains__
        if self._held_back and work is None and ending:
            skip = (self._dry - self._held_back).__contains__
        return self.sessions.plan(self._settings.batch_size, self._news, skip, freed, ending)

    def plan_hand_off(self, work: Work, jobs: int) -> Plan:
        """Promise free slots to the jobs of a submit, in dry scopes only.

        No older jobs wait in a dry scope. In other scopes older jobs may wait and come first.
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

    def settle(
        self, plan: Plan, assigned: Sequence[Assignment], *, looked: bool = True
    ) -> dict[str, int]:
        """Deliver the jobs of a claim and return their number by queue.

        ``looked`` is True if the claim considered all claimable jobs, and not only the jobs that
        were submitted in the same write.
        """
        if plan.asked and looked:
            held_back = assigned.held_back if isinstance(assigned, Claimed) else NOT_HELD_BACK
            for scope, filled in plan.filled(assigned):
                if filled or self._has_news(scope, plan.news):
                    self._wake.set()  # there may be more jobs, or jobs that the claim has missed
                else:
                    self._dry.add(scope)
                    if held_back and concerns(scope, dict.fromkeys(held_back)):
                        self._held_back.add(scope)
            if held_back:
                self._await_opening(held_back)
            if plan.left_out:
                self._wake.set()
        elif plan.asked > len(assigned):
            self._wake.set()  # the promised slots that are free again may serve new jobs
        orphans = self.sessions.settle(plan, assigned)
        if orphans and self._claim is None:  # with a roster, hints bring jobs to their workers
            self._hand_back(orphans)
        by_queue: dict[str, int] = {}
        for one in assigned:
            by_queue[one.queue] = by_queue.get(one.queue, 0) + 1
        for queue, count in by_queue.items():
            self._observer.entered(queue, State.ASSIGNED, count)
        return by_queue

    def _await_opening(self, held_back: Mapping[str, float]) -> None:
        now = time.monotonic()
        for queue, seconds in held_back.items():
            if seconds == math.inf:
                self._opens.pop(queue, None)
            else:
                self._opens[queue] = now + seconds
                self._wake.set()  # the sleep may have to be shorter

    def _open(self) -> float:
        """Record news of the queues whose rate limit allows a start again.

        Return the time when the rate limit of another queue does.
        """
        now = time.monotonic()
        if opened := [queue for queue, at in self._opens.items() if at <= now]:
            for queue in opened:
                del self._opens[queue]
            self._note(dict.fromkeys(opened))
            self._wake.set()
        return min(self._opens.values(), default=math.inf)

    def release(self, plan: Plan) -> None:
        """Free the promised slots of a plan whose write failed."""
        self.sessions.settle(plan, ())
        self._wake.set()

    def _hand_back(self, orphans: Sequence[Assignment]) -> None:
        # Their worker left during the claim. If this write fails, their assignments time out.
        transitions = [Transition.handed_back(one.seq, one.lease) for one in orphans]
        task = asyncio.create_task(self._return(transitions))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _return(self, transitions: Sequence[Transition]) -> None:
        try:
            await self._store.jobs.apply(transitions)
        except JobQueueError as error:
            _log.warning(
                "cannot hand back %d jobs whose worker left: %s; other workers get them after the"
                " assignments have timed out",
                len(transitions),
                error,
            )
        self.wake()

    async def _run(self) -> None:
        failing = False
        interval = self._settings.interval
        look_at = time.monotonic() + interval
        while not self._stopping:
            # The safety net: after the interval, claim for all scopes, even without news.
            until = min(look_at, self._open()) if self._opens else look_at
            left = until - time.monotonic()
            if left <= 0 or not await is_set_within(self._wake, left):
                if until < look_at:
                    continue
                self._note(None)
                look_at = time.monotonic() + interval
            self._wake.clear()
            try:
                while await self._cycle():
                    pass
                failing = False
            except JobQueueError as error:
                if not failing:
                    _log.warning("cannot claim jobs: %s; trying again every %g s", error, interval)
                failing = True
                await asyncio.sleep(interval)
            except Exception:
                _log.exception("a scheduling cycle failed; trying again in %g s", interval)
                await asyncio.sleep(interval)

    async def _cycle(self) -> bool:
        """Claim one batch of jobs; return True if more jobs may be claimable."""
        if self._stopping:
            return False
        plan = self.plan()
        if not plan.asked:
            return False
        began = time.perf_counter()
        try:
            assigned = await (self._claim or self._store.jobs.claim)(plan.claims)
        except BaseException:
            self.release(plan)
            raise
        by_queue = self.settle(plan, assigned)
        self._observer.scheduled(time.perf_counter() - began, by_queue)
        await asyncio.sleep(0)  # a worker that has enough withdraws its slots before the next batch
        return plan.left_out or any(filled for _, filled in plan.filled(assigned))
