"""Test doubles: a worker's inbox that records, and an engine that can be held back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from jobqueue.core.api import Inbox, Link
from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.job import (
    Assignment,
    JobSpec,
    SubmitResult,
    Transition,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.engine.engine import Engine
from tests import patience


class RecordingInbox:
    """Keeps what it gets; tests wait on it instead of sleeping."""

    def __init__(self) -> None:
        self.jobs: list[Assignment] = []
        self.cancelled: list[int] = []
        self.statuses: list[WorkerStatus] = []
        self.listed: list[int] | None = None
        self._changed = asyncio.Event()

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        self.jobs.extend(assignments)
        self._changed.set()

    def cancel(self, leases: Sequence[int]) -> None:
        self.cancelled.extend(leases)
        self._changed.set()

    def set_status(self, status: WorkerStatus) -> None:
        self.statuses.append(status)
        self._changed.set()

    def holds(self) -> list[int] | None:
        return self.listed

    def moved(self) -> None:
        raise AssertionError("a remote link connects again by itself")

    async def until(
        self, condition: Callable[[RecordingInbox], object], within: float = 5.0
    ) -> None:
        async with patience.timeout(within):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()


class GatedLink:
    """A link whose calls are counted and may be held back."""

    def __init__(self, link: Link, engine: GatedEngine) -> None:
        self._link = link
        self._engine = engine
        self.granted = 0
        self.drains = 0
        self.closed = False
        self.reported: list[Transition] = []

    def grant(self, slots: int) -> None:
        self.granted += slots
        self._link.grant(slots)
        self._engine.told()

    async def report(self, reports: Sequence[Transition], freed: int = 0) -> list[bool]:
        if self._engine.report_error is not None:
            raise self._engine.report_error
        accepted = await self._link.report(reports, freed)
        self.reported.extend(reports)
        self._engine.told()
        await self._engine.report_gate.wait()
        return accepted

    def pulse(
        self,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        complete: bool = True,
        fresh: bool = False,
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
    ):
        return self._link.pulse(leases, begun, complete, fresh, progress, overrun)

    def set_breakers(self, breakers: Sequence[OpenBreaker]) -> None:
        self._link.set_breakers(breakers)
        self._engine.told()

    async def drain(self, *, pause: bool = False) -> None:
        self.drains += 1
        await self._link.drain(pause=pause)
        self._engine.told()

    async def close(self) -> None:
        self.closed = True
        await self._link.close()


class GatedEngine(Engine):
    """The real engine, with gates: what it has done may be kept from its callers."""

    def __init__(self, store) -> None:
        super().__init__(store)
        self.submit_gate = asyncio.Event()
        self.submit_gate.set()
        self.report_gate = asyncio.Event()
        self.report_gate.set()
        self.submit_error: BaseException | None = None
        self.report_error: BaseException | None = None
        self.batches: list[int] = []
        self.links: list[GatedLink] = []
        self.inboxes: list[Inbox] = []
        self._news = asyncio.Event()

    def open_gates(self) -> None:
        self.submit_gate.set()
        self.report_gate.set()

    def told(self) -> None:
        self._news.set()

    async def until(self, condition: Callable[[], object], within: float = 5.0) -> None:
        async with patience.timeout(within):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        if self.submit_error is not None:
            raise self.submit_error
        results = await super().submit(specs)
        self.batches.append(len(specs))
        self.told()
        await self.submit_gate.wait()
        return results

    async def connect(self, info: WorkerInfo, inbox: Inbox) -> GatedLink:
        link = GatedLink(await super().connect(info, inbox), self)
        self.links.append(link)
        self.inboxes.append(inbox)
        self.told()
        return link
