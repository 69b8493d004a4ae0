"""A worker's link when it talks to the engine itself, in process or for a gRPC stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import Pulse, Transition, WorkerStatus
from jobqueue.core.lifecycle import REPORTABLE, Move
from jobqueue.core.store import Store
from jobqueue.engine.scheduler import Scheduler
from jobqueue.engine.sessions import Session


class ReportCall:
    """One ``report()``, on its way to the store."""

    __slots__ = ("freed", "reports", "session")

    def __init__(self, session: Session, reports: Sequence[Transition], freed: int) -> None:
        self.session = session
        self.reports = reports
        self.freed = freed


class EngineLink:
    """Implements ``core.api.Link``."""

    def __init__(
        self,
        session: Session,
        store: Store,
        scheduler: Scheduler,
        report: Callable[[ReportCall], Awaitable[list[bool]]],
        lose: Callable[[Sequence[Transition]], None],
    ) -> None:
        self._session = session
        self._store = store
        self._scheduler = scheduler
        self._report = report
        self._lose = lose
        self._loop = asyncio.get_running_loop()
        self._missing: set[int] = set()

    def grant(self, slots: int) -> None:
        """See ``Link.grant``."""
        self._scheduler.grant(self._session, slots)

    async def report(self, reports: Sequence[Transition], freed: int = 0) -> list[bool]:
        """See ``Link.report``."""
        for one in reports:
            if one.move not in REPORTABLE:
                raise InvalidArgument("move", f"a worker cannot report {one.move.value!r}")
            if one.lease is None:
                raise InvalidArgument("lease", "a report must name its lease")
        if not reports:
            self.grant(freed)
            return []
        return await self._report(ReportCall(self._session, reports, freed))

    def pulse(self, leases: Sequence[int]) -> Pulse:
        """See ``Link.pulse``. A lease that two beats in a row do not list is lost."""
        info = self._session.info
        answer = self._store.pulse(info.id, info.incarnation, leases)
        missing = {one.lease for one in answer.unlisted}
        twice = [one for one in answer.unlisted if one.lease in self._missing]
        self._missing = missing
        if twice:
            error = f"worker {info.id} does not know of it"
            lost = [Transition.worker_lost(one.seq, one.lease, error) for one in twice]
            self._loop.call_soon_threadsafe(self._lose, lost)
        if answer.known and answer.status is not WorkerStatus.ONLINE and self._session.open:
            self._session.open = False  # drained through another process
        return answer

    async def drain(self) -> None:
        """See ``Link.drain``."""
        self._session.open = False
        self._session.free = 0
        await self._session.settle()

    async def close(self) -> None:
        """See ``Link.close``. What it still holds is left to the heartbeat timeout."""
        await self.drain()
        self._scheduler.remove(self._session)
        worker_id = self._session.info.id
        if not await self._store.held(worker_id):
            await self._store.set_worker_status(worker_id, WorkerStatus.OFFLINE)
            await self._store.forget_worker(worker_id)


ENDING = REPORTABLE - {Move.START}
"""Reports after which the worker holds the lease no more."""
