"""Assign jobs to workers that learn of their jobs through Kafka.

Such a worker is not connected to a server. The leader still keeps a session for each worker, so
that the scheduler can plan claims as for connected workers. A claim's events reach the workers as
hints. A worker's slot is free if the store has no lease for it.

Other servers keep no sessions, so their schedulers claim nothing. A leader that was suspended may
continue after the end of its term; the store refuses its claims.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence

from jobqueue.core.dispatch import ENDS, DispatchStore, Hint, HintKind
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Assignment, Held, Worker, WorkerStatus
from jobqueue.core.store import Claim, Term, TermEnded
from jobqueue.core.waiting import Background, is_set_within
from jobqueue.engine.scheduler import Scheduler
from jobqueue.engine.sessions import Session
from jobqueue.engine.settings import EngineSettings
from jobqueue.engine.sweeper import Sweeper

_log = logging.getLogger("jobqueue.engine.roster")
_STANDBY = 0.1  # seconds between two checks for a term
_PAUSE = 0.05  # after a report of a change, so that many reports cause one read
_BEFORE_LONG = 0.25
_SHARE = 4  # the pause after a read of the store, as a multiple of its duration
_LONGEST_REST = 1.0
_AT_ONCE = 1_000  # assignments repeated together
_REQUESTS = frozenset({HintKind.JOB_CREATED, HintKind.JOB_REQUEUED})
_WORKERS = frozenset({HintKind.WORKER_REGISTERED, HintKind.WORKER_DEAD})


class Roster(Background):
    """Claims jobs for all workers while this process leads."""

    def __init__(
        self,
        store: DispatchStore,
        settings: EngineSettings,
        published: Callable[[], None],
        flows: Callable[[], bool],
    ) -> None:
        self._store = store
        self._settings = settings
        self._published = published  # is called when the outbox has new entries
        self._flows = flows  # returns True if Kafka gets new entries soon
        self._term: Term | None = None  # the term in which the sessions were made
        self._leases: dict[tuple[str, int], tuple[Session, int]] = {}  # by job and attempt
        self._wake = asyncio.Event()
        self._looking: asyncio.TimerHandle | None = None
        self._repeat_at = 0.0
        self._failing = False

    def start(self, scheduler: Scheduler, sweeper: Sweeper) -> None:
        """Start the task that reads workers and leases while this process leads."""
        self._scheduler = scheduler
        self._sweeper = sweeper
        self._begin(self._run(), "roster")

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._task is not None:
            await super().stop()
            self._dismiss_all()

    async def claim(self, claims: Sequence[Claim]) -> list[Assignment]:
        """Claim jobs for the scheduler; return no jobs if this process does not lead."""
        term = self._sweeper.term
        if term is None or term != self._term:
            self._dismiss_all()
            return []
        try:
            return await self._store.jobs.claim(claims, term=term, tell=not self._flows())
        except TermEnded:
            _log.warning("this server does not lead any more; the new leader assigns jobs")
            self._dismiss_all()
            self._sweeper.term_ended()
            return []
        except JobQueueError:
            self._wake.set()  # the claim may have succeeded
            raise

    # -- wake-ups ------------------------------------------------------------------------------

    def look(self) -> None:
        """Read workers and leases from the store soon, because they may have changed."""
        self._wake.set()

    def look_before_long(self) -> None:
        """Read workers and leases from the store a little later, because jobs have ended.

        Usually the hints of the ended jobs arrive before this read and free the slots.
        """
        if self._looking is None:
            loop = asyncio.get_running_loop()
            after = _BEFORE_LONG if self._flows() else _PAUSE
            self._looking = loop.call_later(after, self._look_now)

    def _look_now(self) -> None:
        self._looking = None
        self._wake.set()

    def leads(self) -> bool:
        """Return True if this process leads and uses hints. Any thread may call this."""
        return self._term is not None

    def heard(self, hints: Sequence[Hint]) -> None:
        if self._term is None:
            return
        work = False
        for hint in hints:
            if hint.kind in ENDS:
                ended = self._leases.pop((hint.job_id, hint.attempt), None)
                if ended is not None:
                    self._scheduler.relieve(ended[0], [ended[1]])
            elif hint.kind in _REQUESTS:
                work = True
            elif hint.kind in _WORKERS:
                self._wake.set()
        if work:
            self._scheduler.wake()

    # -- looking -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            term = self._sweeper.term
            if term is None:
                self._dismiss_all()
                await asyncio.sleep(_STANDBY)
                continue
            self._wake.clear()
            began = time.monotonic()
            try:
                if term != self._term:
                    self._dismiss_all()
                    self._term = term
                await self._look(term)
                await self._repeat(term)
                self._failing = False
            except TermEnded:
                self._dismiss_all()
                self._sweeper.term_ended()
            except JobQueueError as error:
                if not self._failing:
                    _log.warning(
                        "cannot read workers and leases from the store: %s; no jobs are assigned"
                        " until that succeeds; trying again every %g s",
                        error,
                        _STANDBY,
                    )
                self._failing = True
                await asyncio.sleep(_STANDBY)
            except Exception:
                _log.exception("reading workers and leases failed; trying again")
            looked = time.monotonic() - began
            await asyncio.sleep(min(_LONGEST_REST, max(_PAUSE, _SHARE * looked)))
            await is_set_within(self._wake, min(self._settings.interval, _LONGEST_REST))

    async def _look(self, term: Term) -> None:
        # Copied before the store is read, because the store's answer lacks later assignments.
        before = {session: set(session.held) for session in self._scheduler.sessions.all()}
        held: dict[str, list[Held]] = {}
        for one in await self._store.workers.held():
            held.setdefault(one.worker_id, []).append(one)
        workers = await self._store.workers.all()
        if self._term != term:  # it ended meanwhile
            return
        fresh = False
        present: set[str] = set()
        for worker in workers:
            # A worker without a partition is connected to a server. Only that server assigns jobs.
            if worker.status is WorkerStatus.ONLINE and worker.partition is not None:
                present.add(worker.info.id)
                leases = {one.lease for one in held.get(worker.info.id, ())}
                fresh |= self._compare(worker, leases, before)
        for session in self._scheduler.sessions.all():
            if session.info.id not in present:
                self._scheduler.dismiss(session.info.id)
        if fresh:
            self._scheduler.wake()
        self._forget()

    def _compare(self, worker: Worker, leases: set[int], before: dict[Session, set[int]]) -> bool:
        """Update a worker's session; return True if the worker may have new slots or types."""
        # A slot is not free while the function of an ended attempt still runs in it.
        slots = max(0, worker.info.concurrency - worker.withheld)
        info = dataclasses.replace(worker.info, concurrency=slots)
        session = self._scheduler.sessions.get(info.id)
        if session is None or session.info.incarnation != info.incarnation:
            added = Session(info, _HintedInbox(self._note), held=leases, counted=True)
            added.set_breakers(worker.breakers)
            replaced = self._scheduler.sessions.add(added)
            if replaced is not None:
                replaced.open = False
            return True
        registered = session.info
        grown = slots > registered.concurrency or info.types != registered.types
        if worker.breakers != session.breakers:
            session.set_breakers(worker.breakers)
            grown = True
        if info != registered:  # so that equal lists of types stay one object
            session.info = info
        known = before.get(session)
        if known is not None:
            # Add leases of claims whose answers were lost. Leases that ended since the store was
            # read must not be added again.
            session.held |= leases - (known - session.held)
            if ended := known - leases:
                self._scheduler.relieve(session, ended)
        return grown

    def _forget(self) -> None:
        for attempt, (session, lease) in list(self._leases.items()):
            if lease not in session.held:
                del self._leases[attempt]

    def _note(self, assignments: Sequence[Assignment]) -> None:
        for one in assignments:
            session = self._scheduler.sessions.get(one.worker_id)
            if session is not None:
                self._leases[one.id, one.attempt] = (session, one.lease)
        self._published()

    def _dismiss_all(self) -> None:
        self._term = None
        self._leases.clear()
        for session in self._scheduler.sessions.all():
            self._scheduler.dismiss(session.info.id)

    async def _repeat(self, term: Term) -> None:
        now = time.monotonic()
        if now < self._repeat_at:
            return
        after = self._settings.resend_after
        self._repeat_at = now + after / 2
        if await self._store.jobs.repeat_assignments(after, _AT_ONCE, term):
            self._published()


class _HintedInbox:
    """Implements ``core.api.Inbox`` for a worker that learns of its jobs through Kafka."""

    def __init__(self, assigned: Callable[[Sequence[Assignment]], None]) -> None:
        self._assigned = assigned

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        self._assigned(assignments)

    def cancel(self, leases: Sequence[int]) -> None: ...

    def set_status(self, status: WorkerStatus) -> None: ...

    def holds(self) -> Sequence[int] | None:
        return None

    def moved(self) -> None: ...
