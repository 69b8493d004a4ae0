"""A worker's link when it talks to the engine itself, in process or for a gRPC stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from jobqueue.core.clock import MAX_SECONDS
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import Pulse, Transition, WorkerStatus
from jobqueue.core.lifecycle import REPORTABLE, Move
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.store import Store
from jobqueue.engine.pulses import Pulses
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
        pulses: Pulses,
    ) -> None:
        self._session = session
        self._store = store
        self._scheduler = scheduler
        self._report = report
        self._pulses = pulses
        self._listed = False

    def grant(self, slots: int) -> None:
        """See ``Link.grant``."""
        self._scheduler.grant(self._session, slots)

    async def report(self, reports: Sequence[Transition], freed: int = 0) -> list[bool]:
        """See ``Link.report``."""
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
        """See ``Link.pulse``."""
        info = self._session.info
        # The first list on a new link settles what was given before it, and says nothing of what
        # may be under way on it now: it is no heartbeat that a lease could be missed by.
        first = fresh and complete and not self._listed
        tells = self._session.tells
        answer = self._pulses.beat(
            info.id,
            info.incarnation,
            info.owner,
            leases,
            begun,
            complete and not first,
            progress,
            overrun,
        )
        if first and answer.known:
            self._listed = True
            before = self._session.inherited
            self._pulses.lose(info.id, [one for one in answer.unlisted if one.lease in before])
        if answer.known and self._session.tells != tells:
            answer.status = self._session.told  # an operator has spoken since the store was asked
        elif answer.known and answer.status is not self._session.told:
            # It was told through another process; the worker hears it by the answer.
            if answer.status is WorkerStatus.ONLINE:
                self._pulses.on_loop(self._take_back, tells)
            else:
                self._session.open = False
                self._session.told = answer.status
        return answer

    def _take_back(self, tells: int) -> None:
        session = self._session
        if session.tells == tells and self._scheduler.sessions.get(session.info.id) is session:
            session.open = True
            session.told = WorkerStatus.ONLINE
            self._scheduler.wake()

    async def drain(self, *, pause: bool = False) -> None:
        """See ``Link.drain``."""
        self._scheduler.withdraw(self._session)
        await self._session.settle()

    async def close(self) -> None:
        """See ``Link.close``. What it still holds is left to the heartbeat timeout."""
        await self.drain()
        self._scheduler.remove(self._session)
        info = self._session.info
        await self._store.retire_worker(info.id, info.incarnation, owner=info.owner)


ENDING = REPORTABLE - {Move.START}
"""Reports after which the worker holds the lease no more."""
