"""The server's side of a worker that fetches jobs by unary calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobqueue.api.grpc.desk import Desk
from jobqueue.core.errors import NotFound
from jobqueue.core.job import Assignment, WorkerStatus
from jobqueue.core.waiting import is_set_within


class Buffer:
    """An inbox that keeps jobs until they are fetched. Cancels reach the worker by heartbeat."""

    def __init__(self) -> None:
        self.status = WorkerStatus.ONLINE
        self.elsewhere = False
        self._jobs: list[Assignment] = []
        self._changed = asyncio.Event()

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Keep jobs for the fetch under way."""
        self._jobs.extend(assignments)
        self._changed.set()

    def cancel(self, leases: Sequence[int]) -> None:
        """Forget what was not fetched."""
        gone = set(leases)
        self._jobs = [job for job in self._jobs if job.lease not in gone]

    def set_status(self, status: WorkerStatus) -> None:
        """Remember what the operator wants, and end a fetch that waits."""
        self.status = status
        self._changed.set()

    def holds(self) -> None:
        """Only the worker's heartbeats tell."""
        return

    def moved(self) -> None:
        """The worker is registered with another server."""
        self.elsewhere = True
        self._changed.set()

    def __len__(self) -> int:
        return len(self._jobs)

    def take(self) -> list[Assignment]:
        """Everything there is."""
        jobs, self._jobs = self._jobs, []
        return jobs

    async def wait(self, seconds: float) -> None:
        """Wait for a job or a change of status."""
        self._changed.clear()
        if self._jobs or self.elsewhere or self.status is not WorkerStatus.ONLINE:
            return
        await is_set_within(self._changed, seconds)


class Fetcher:
    """Slots are granted for the time of one fetch only."""

    def __init__(self, desk: Desk, buffer: Buffer) -> None:
        self._desk = desk
        self.buffer = buffer
        self._one_at_a_time = asyncio.Lock()

    @property
    def live(self) -> bool:
        """Whether a fetch is under way."""
        return self._one_at_a_time.locked()

    async def fetch(self, limit: int, wait: float) -> list[Assignment]:
        """Up to ``limit`` jobs as soon as there are any."""
        async with self._one_at_a_time:
            if self.buffer.status is WorkerStatus.ONLINE and limit > len(self.buffer):
                self._desk.grant(limit - len(self.buffer))
            await self.buffer.wait(wait)
            await self._desk.drain()
            if self.buffer.elsewhere:
                raise NotFound(
                    f"worker {self._desk.info.id!r} is registered with another server: register it"
                )
            return self.buffer.take()

    async def retire(self) -> None:
        """Withdraw the slots and hand back what was not fetched."""
        await self._desk.retire()
        await self._desk.hand_back(self.buffer.take())
