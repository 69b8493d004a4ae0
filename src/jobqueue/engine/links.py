"""A worker's link to the engine, in process or for a gRPC stream; and heartbeats to any server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from jobqueue.core.clock import MAX_SECONDS
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import Held, Pulse, Transition, WorkerStatus
from jobqueue.core.lifecycle import REPORTABLE, Move, State
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.store import WorkerStore
from jobqueue.engine.scheduler import Scheduler
from jobqueue.engine.sessions import Session

ENDING = REPORTABLE - {Move.START}
"""The reports after which the worker does not hold the lease any more."""


@dataclass(slots=True)
class ReportCall:
    """One call of ``Link.report``, on its way to the store."""

    session: Session
    reports: Sequence[Transition]
    freed: int


class Pulses:
    """Passes heartbeats to the store, and fails over leases that the worker does not hold.

    A lease that is missing from two complete lists is lost. Missing leases are kept by incarnation,
    not by connection: with several servers the heartbeats of one worker may come here seldom, but
    a lease that is missing from two of them was not held at either time, and no lease is ever given
    out a second time.
    """

    def __init__(
        self,
        workers: WorkerStore,
        scheduler: Scheduler,
        lose: Callable[[Sequence[Transition]], None],
    ) -> None:
        self._workers = workers
        self._scheduler = scheduler
        self._lose = lose  # is called on the loop
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
        """Record a heartbeat. Blocking, from any thread."""
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
            if counted:  # they ended through another server
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
        """Fail over leases that the worker does not hold. From any thread."""
        if held:
            lost = [_lost(one, worker_id) for one in held]
            self.loop.call_soon_threadsafe(self._lose, lost)


def _lost(one: Held, worker_id: str) -> Transition:
    if one.state is State.ASSIGNED:  # it never reached the worker: it is handed out again
        return Transition.handed_back(one.seq, one.lease)
    return Transition.worker_lost(one.seq, one.lease, f"worker {worker_id} does not know of it")


class EngineLink:
    """Implements ``core.api.Link``."""

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

    def grant(self, slots: int) -> None:
        self._scheduler.grant(self._session, slots)

    async def report(self, reports: Sequence[Transition], freed: int = 0) -> list[bool]:
        worker_id = self._session.info.id
        for one in reports:
            one.worker_id = worker_id  # the store lets it report on its own leases only
            if one.move not in REPORTABLE:
                raise InvalidArgument("move", f"a worker cannot report {one.move.value!r}")
            if one.lease is None:
                raise InvalidArgument("lease", "a report must name its lease")
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
        # The first list on a new link settles the leases from before it. A lease that is on its way
        # on this link may be missing, so it is no heartbeat that counts as one of two.
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
            # Another process has set it; the worker learns of it by the answer.
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
        self._scheduler.remove(self._session)
        info = self._session.info  # leases that it still holds are left to the heartbeat timeout
        await self._workers.retire(info.id, info.incarnation, owner=info.owner)
