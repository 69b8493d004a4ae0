"""A worker that does exactly what a scenario tells it, one job at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from jobqueue.core.api import DispatchApi, Link
from jobqueue.core.ids import new_lease
from jobqueue.core.job import Assignment, Transition, WorkerInfo, WorkerStatus
from tests import patience

PATIENCE = 10.0


class Hand:
    """Takes jobs when told to, and reports what it is told."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.link: Link
        self.jobs: asyncio.Queue[Assignment] = asyncio.Queue()
        self.cancelled: asyncio.Queue[int] = asyncio.Queue()
        self.statuses: asyncio.Queue[WorkerStatus] = asyncio.Queue()

    @classmethod
    async def connect(
        cls,
        dispatch: DispatchApi,
        *,
        worker_id: str = "hand",
        queues: tuple[str, ...] = ("default",),
        slots: int = 0,
        concurrency: int = 10,
        types: frozenset[str] | None = None,
    ) -> Hand:
        hand = cls(worker_id)
        info = WorkerInfo(
            id=worker_id,
            incarnation=new_lease(),
            hostname="here",
            pid=1,
            concurrency=concurrency,
            queues=queues,
            types=types,
        )
        hand.link = await dispatch.connect(info, hand)
        if slots:
            hand.link.grant(slots)
        return hand

    # -- Inbox -------------------------------------------------------------------------------

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        for assignment in assignments:
            self.jobs.put_nowait(assignment)

    def cancel(self, leases: Sequence[int]) -> None:
        for lease in leases:
            self.cancelled.put_nowait(lease)

    def set_status(self, status: WorkerStatus) -> None:
        self.statuses.put_nowait(status)

    def holds(self) -> None:
        return

    def moved(self) -> None:
        raise AssertionError("no scenario moves a worker")

    # -- what a scenario says ----------------------------------------------------------------

    async def take(self) -> Assignment:
        """The next job, once there is one."""
        return await patience.wait_for(self.jobs.get(), PATIENCE)

    async def start(self, job: Assignment) -> None:
        [accepted] = await self.link.report([Transition.started(job.seq, job.lease)])
        assert accepted

    async def begin(self) -> Assignment:
        """Take a job and start it."""
        self.link.grant(1)
        job = await self.take()
        await self.start(job)
        return job

    async def succeed(self, job: Assignment, result: bytes | None = None) -> None:
        done = Transition.succeeded(job.seq, job.lease, result, 0.25)
        assert await self.link.report([done]) == [True]

    async def fail(self, job: Assignment, error: str = "boom", **how: Any) -> None:
        failed = Transition.failed(job.seq, job.lease, error, ran_for=0.25, **how)
        assert await self.link.report([failed]) == [True]

    async def run(self, result: bytes | None = None) -> Assignment:
        """Take a job, start it and finish it."""
        job = await self.begin()
        await self.succeed(job, result)
        return job
