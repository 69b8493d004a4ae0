"""A worker whose jobs start and end as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

from jobqueue.core.api import Link
from jobqueue.core.job import Assignment, Transition, WorkerInfo, WorkerStatus
from jobqueue.core.progress import Progress
from jobqueue.server.process import ServerProcess
from tests import patience


class Played:
    """Connects to a server's engine as ``played-1``, and holds the jobs that it is given."""

    def __init__(
        self,
        server: ServerProcess,
        id: str = "played-1",
        queues: tuple[str, ...] = ("*",),
        types: frozenset[str] | None = None,
        slots: int = 100,
        hostname: str = "here",
    ) -> None:
        self._backend = server.backend
        self._info = WorkerInfo(
            id=id, incarnation=1, hostname=hostname, pid=1, concurrency=slots, queues=queues,
            types=types, version="1.0",
        )  # fmt: skip
        self._slots = slots
        self._news = asyncio.Event()
        self.held: list[Assignment] = []
        self.cancelled: list[int] = []
        self.told: list[WorkerStatus] = []
        self.link: Link

    async def __aenter__(self) -> Played:
        self.link = await self._backend.connect(self._info, self)
        self.link.grant(self._slots)
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        if self.held:
            back = [Transition.handed_back(one.seq, one.lease) for one in self.held]
            await self.link.report(back, len(back))
        await self.link.close()

    # -- the inbox --

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        self.held += assignments
        self._news.set()

    def cancel(self, leases: Sequence[int]) -> None:
        self.cancelled += leases

    def set_status(self, status: WorkerStatus) -> None:
        self.told.append(status)

    def holds(self) -> Sequence[int] | None:
        return [one.lease for one in self.held]

    def moved(self) -> None:
        """Ignore the request to move to another server."""

    # -- what a test tells it --

    async def take(self, type: str) -> tuple[str, int]:
        """Begin a job of the type. Returns its id and lease."""
        one = await self._next(type)
        await self.link.report([Transition.started(one.seq, one.lease)])
        self.held.append(one)
        return one.id, one.lease

    async def fail(self, type: str, error: str, *, ran_for: float = 0.5) -> str:
        """Fail a job of the type. Returns its id."""
        one = await self._next(type)
        await self._report(Transition.failed(one.seq, one.lease, error, ran_for=ran_for))
        return one.id

    async def succeed(self, type: str, result: bytes | None = None) -> str:
        """Finish a job of the type. Returns its id."""
        one = await self._next(type)
        await self._report(Transition.succeeded(one.seq, one.lease, result, 0.25))
        return one.id

    async def succeed_all(self, jobs: int, ran_for: float) -> None:
        """Finish that many jobs of any type."""
        async with patience.timeout(60):
            while jobs:
                self._news.clear()
                ended, self.held = self.held[:jobs], self.held[jobs:]
                ends = [Transition.succeeded(one.seq, one.lease, None, ran_for) for one in ended]
                if ends:
                    assert all(await self.link.report(ends, len(ends)))
                    jobs -= len(ends)
                else:
                    await self._news.wait()

    def progress(self, lease: int, value: float | None, text: str) -> None:
        """Say how far the job of a lease is."""
        leases = [one.lease for one in self.held]
        said = {lease: Progress(value, text)}
        self.link.pulse(leases, leases, progress=said)

    async def _report(self, end: Transition) -> None:
        assert await self.link.report([end], 1) == [True]

    async def _next(self, type: str) -> Assignment:
        async with patience.timeout(20):
            while True:
                self._news.clear()
                for one in self.held:
                    if one.type == type:
                        self.held.remove(one)
                        return one
                await self._news.wait()
