"""A worker's link as the servicer holds it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from jobqueue.core.api import DispatchApi, Inbox, Link
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Assignment, Pulse, Transition, WorkerInfo
from jobqueue.core.progress import NO_PROGRESS, Progress

log = logging.getLogger("jobqueue.grpc")


class Desk:
    """A link, with what a servicer does besides."""

    def __init__(self, info: WorkerInfo, link: Link) -> None:
        self.info = info
        self._link = link
        self._drained = False

    @classmethod
    async def open(cls, backend: DispatchApi, info: WorkerInfo, inbox: Inbox) -> Desk:
        """Register the worker."""
        return cls(info, await backend.connect(info, inbox))

    def grant(self, slots: int) -> None:
        """Offer slots."""
        self._drained = False
        self._link.grant(slots)

    async def report(self, reports: Sequence[Transition], freed: int = 0) -> list[bool]:
        """Write reports; freed slots are offered in the same write, unless a drain came before."""
        if not self._drained:
            return await self._link.report(reports, freed)
        accepted = await self._link.report(reports)
        if freed:
            self.grant(freed)
        return accepted

    def pulse(
        self,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        complete: bool = True,
        fresh: bool = False,
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
    ) -> Pulse:
        """Blocking."""
        return self._link.pulse(leases, begun, complete, fresh, progress, overrun)

    async def drain(self) -> None:
        """Withdraw every slot."""
        self._drained = True
        await self._link.drain()

    async def close(self) -> None:
        """Deregister."""
        await self._link.close()

    async def retire(self) -> None:
        """Withdraw every slot, whatever happens."""
        try:
            await self.drain()
        except JobQueueError as error:
            log.warning(
                "free slots could not be withdrawn: %s", error, extra={"worker_id": self.info.id}
            )

    async def hand_back(self, assignments: Sequence[Assignment]) -> None:
        """Return jobs that the worker never got; if that fails, its heartbeats will show it."""
        if not assignments:
            return
        try:
            await self._link.report([Transition.handed_back(a.seq, a.lease) for a in assignments])
        except JobQueueError as error:
            log.warning(
                "%d undelivered jobs could not be handed back: %s",
                len(assignments),
                error,
                extra={"worker_id": self.info.id},
            )
