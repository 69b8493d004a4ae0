"""Implement the links of workers to the engine, and record heartbeats.

A link belongs to a worker in this process or to a gRPC stream. A heartbeat may come from a worker
that is connected to another server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.clock import LATEST, MAX_SECONDS
from jobqueue.core.errors import InvalidArgument, JobQueueError
from jobqueue.core.job import MAX_SEQ, Held, Pulse, Transition, WorkerStatus
from jobqueue.core.lifecycle import REPORTABLE, Move, State
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.store import WorkerStore
from jobqueue.core.waiting import LatestWrite
from jobqueue.engine.scheduler import Scheduler
from jobqueue.engine.sessions import Session

_log = logging.getLogger("jobqueue.engine.links")
ENDING = REPORTABLE - {Move.START}
"""The moves whose report ends the worker's lease."""


@dataclass(slots=True)
class ReportCall:
    """Holds the arguments of a ``Link.report`` call until they are written to the store."""

    session: Session
    reports: Sequence[Transition]
    freed: int


class Pulses:
    """Writes heartbeats to the store, and fails over leases that the worker does not hold.

    A lease is lost if it is missing from two heartbeats with a complete list of the worker's
    leases. Missing leases are remembered by incarnation, so the heartbeats may come over different
    connections. Other servers may get heartbeats in between. Two lists without the lease are still
    enough, because a lease is never given out again.
    """

    def __init__(
        self,
        workers: WorkerStore,
        scheduler: Scheduler,
        lose: Callable[[Sequence[Transition]], None],
    ) -> None:
        self._workers = workers
        self._scheduler = scheduler
        self._lose = lose  # is called on the event loop
        self.loop = asyncio.get_running_loop()
        self._missing: dict[tuple[str, int], frozenset[int]] = {}

    def beat(
        self,
        worker_id: str,
        incarnation: int,
        owner: str,
        leases: Sequence[int],
        begun: Sequence[int],
        complete: bool,
        progress: Mapping[int, Progress],
        overrun: int | None,
    ) -> Pulse:
        """Write a heartbeat to the store and return the store's answer.

        This call blocks, and any thread may make it.
        """
        session = self._scheduler.sessions.get(worker_id)
        if session is not None and session.info.incarnation != incarnation:
            session = None
        counted = set() if session is None else session.held.copy()
        answer = self._workers.pulse(
            worker_id, incarnation, leases, begun, progress, overrun, owner=owner
        )
        if session is not None and answer.known:
            counted.difference_update(one.lease for one in answer.unlisted)
            counted.difference_update(set(leases).difference(answer.lost))
            if counted:  # these leases ended through another server
                self.loop.call_soon_threadsafe(self._scheduler.relieve, session, counted)
        if not complete and answer.known:
            return answer
        before = self._missing.pop((worker_id, incarnation), frozenset())
        if answer.unlisted:
            missing = frozenset(one.lease for one in answer.unlisted)
            self._missing[worker_id, incarnation] = missing
            self.lose(worker_id, [one for one in answer.unlisted if one.lease in before])
        return answer

    def lose(self, worker_id: str, held: Sequence[Held]) -> None:
        """Fail over leases that the worker does not hold. Any thread may call this."""
        if held:
            lost = [_lost(one, worker_id) for one in held]
            self.loop.call_soon_threadsafe(self._lose, lost)


def _lost(one: Held, worker_id: str) -> Transition:
    if one.state is State.ASSIGNED:  # the job never reached the worker: hand it out again
        return Transition.handed_back(one.seq, one.lease)
    return Transition.worker_lost(one.seq, one.lease, f"worker {worker_id} does not know of it")


class EngineLink:
    """Implements ``core.api.Link`` for one session of a worker."""

    def __init__(
        self,
        session: Session,
        workers: WorkerStore,
        scheduler: Scheduler,
        report: Callable[[ReportCall], Awaitable[list[bool]]],
        pulses: Pulses,
    ) -> None:
        self._session = session
        self._workers = workers
        self._scheduler = scheduler
        self._report = report
        self._pulses = pulses
        self._listed = False
        self._breakers = LatestWrite(self._record_breakers)

    def grant(self, slots: int) -> None:
        self._scheduler.grant(self._session, slots)

    def set_breakers(self, breakers: Sequence[OpenBreaker]) -> None:
        for one in breakers:
            if not 0 <= one.until <= LATEST:  # NaN is refused, too
                raise InvalidArgument("breakers.until", "must be a time before the year 10000")
        # Types that the worker did not register are left out, so names need no further bound.
        known = self._session.info.types or frozenset()
        kept = tuple({one.type: one for one in breakers if one.type in known}.values())
        self._scheduler.set_breakers(self._session, kept)
        self._breakers.put(kept)

    async def _record_breakers(self, breakers: Sequence[OpenBreaker]) -> bool:
        """Write the open breakers to the store, for other servers and for operators."""
        info = self._session.info
        try:
            await self._workers.set_breakers(info.id, info.incarnation, breakers)
        except JobQueueError as error:
            _log.debug(
                "cannot record the open breakers of worker %s: %s; they are in force, but lists of"
                " workers do not show them",
                info.id,
                error,
            )
        return True

    async def report(self, reports: Sequence[Transition], freed: int = 0) -> list[bool]:
        worker_id = self._session.info.id
        for one in reports:
            one.worker_id = worker_id  # the store accepts reports on the worker's own leases only
            if one.move not in REPORTABLE:
                raise InvalidArgument("move", f"a worker cannot report {one.move.value!r}")
            if one.lease is None:
                raise InvalidArgument("lease", "a report must name its lease")
            # A store writes the reports of many workers together, and cannot compute with every
            # number: an error of the store would fail the reports of all these workers.
            if not 0 < one.seq <= MAX_SEQ:
                raise InvalidArgument("seq", "must be the number of the assigned job")
            for field, value in (("ran_for", one.ran_for), ("retry_after", one.retry_after)):
                if value is not None and not 0 <= value <= MAX_SECONDS:  # NaN is refused, too
                    raise InvalidArgument(field, f"must be 0 to {MAX_SECONDS:.0f} seconds")
        if not reports:
            self.grant(freed)
            return []
        if freed and self._session.drained:  # its slots were withdrawn before: offer them anew
            accepted = await self._report(ReportCall(self._session, reports, 0))
            self.grant(freed)
            return accepted
        return await self._report(ReportCall(self._session, reports, freed))

    def pulse(
        self,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        complete: bool = True,
        fresh: bool = False,
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
    ) -> Pulse:
        session = self._session
        info = session.info
        # The first list on a new link shows which of the inherited leases are lost. It may lack a
        # lease that is just being delivered, so it does not count as one of two heartbeats.
        first = fresh and complete and not self._listed
        tells = session.tells
        said = leases, begun, complete and not first, progress, overrun
        answer = self._pulses.beat(info.id, info.incarnation, info.owner, *said)
        if not answer.known:
            return answer
        if first:
            self._listed = True
            before = session.inherited
            self._pulses.lose(info.id, [one for one in answer.unlisted if one.lease in before])
        if session.tells != tells:
            answer.status = session.told  # an operator has changed it since the store was asked
        elif answer.status is not session.told:
            # Another process has set the status; this answer brings it to the worker.
            if answer.status is WorkerStatus.ONLINE:
                self._pulses.loop.call_soon_threadsafe(self._take_back, tells)
            else:
                session.open = False
                session.told = answer.status
        return answer

    def _take_back(self, tells: int) -> None:
        session = self._session
        if session.tells == tells and self._scheduler.sessions.get(session.info.id) is session:
            session.open = True
            session.told = WorkerStatus.ONLINE
            self._scheduler.wake()

    async def drain(self, *, pause: bool = False) -> None:
        self._scheduler.withdraw(self._session)
        await self._session.settle()

    async def close(self) -> None:
        await self.drain()
        await self._breakers.stop()
        self._scheduler.remove(self._session)
        info = self._session.info  # leases that it still holds are left to the heartbeat timeout
        await self._workers.retire(info.id, info.incarnation, owner=info.owner)
