"""The server's side of a worker that fetches jobs by unary calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from jobqueue.api.grpc.calls import end
from jobqueue.api.grpc.channel import BATCH_BYTES, CLIENT_RECEIVE_BYTES
from jobqueue.api.grpc.desk import Desk
from jobqueue.api.grpc.duplex import weight
from jobqueue.core.errors import NotFound
from jobqueue.core.job import Assignment, WorkerStatus
from jobqueue.core.waiting import AnswerRoom, is_set_within

_MOST_BYTES = weight(CLIENT_RECEIVE_BYTES)  # of jobs in one answer, unless it is one alone
_FILL_UP = 0.05  # seconds that a fetch waits for the next claim, if the last one was cut short


class Buffer:
    """An inbox that keeps jobs until they are fetched. Cancels reach the worker by heartbeat.

    A job is claimed for a fetch only when its answer has room, so that nothing that was claimed is
    refused.
    """

    def __init__(self, job_room: int) -> None:
        """``job_room``: what is taken for a job before its size is known."""
        self.status = WorkerStatus.ONLINE
        self.elsewhere = False
        self._job_room = job_room
        self._room: AnswerRoom | None = None  # of the answer to the fetch under way
        self.lacks_room: Callable[[], None] = lambda: None  # called when it has none for a job
        self._jobs: list[Assignment] = []
        self._bytes = 0
        self._came = 0  # jobs of the claim under way
        self._cut = False  # there was no room for all jobs that could have been claimed
        self._goes_on = False
        self._changed = asyncio.Event()

    def begin(self, room: AnswerRoom | None) -> None:
        """A fetch begins, whose answer takes this room."""
        self._room = room
        self._bytes = 0
        self._goes_on = False

    def reserve(self, slots: int) -> int:
        """See ``BoundedInbox.reserve``."""
        given = 0
        while given < slots and self._has_room():
            given += 1
        self._cut = given < slots
        return given

    def _has_room(self) -> bool:
        room = self._room
        if room is None:
            return True
        if room.taken and room.taken + self._job_room > _MOST_BYTES:
            return False
        if room.add(self._job_room):
            return True
        self.lacks_room()
        return False

    def release(self, slots: int) -> None:
        """See ``BoundedInbox.release``."""
        if self._room is not None:
            self._room.change(self._room.taken - slots * self._job_room)
        self._goes_on = self._cut and self._came == slots
        self._came = 0
        if self._jobs:  # else a fetch waits on
            self._changed.set()

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Keep jobs for the fetch under way."""
        self._jobs.extend(assignments)
        self._came = len(assignments)
        size = sum([len(one.payload) for one in assignments])
        self._bytes += size
        if self._room is not None:
            self._room.change(self._room.taken + weight(size))
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

    async def fill_up(self, limit: int) -> None:
        """Take what further claims bring, as long as the last one could have brought more."""
        while self._goes_on and len(self) < limit and self._bytes < BATCH_BYTES:
            self._goes_on = False
            self._changed.clear()
            await is_set_within(self._changed, _FILL_UP)


class Fetcher:
    """Slots are granted for the time of one fetch only."""

    def __init__(self, desk: Desk, buffer: Buffer) -> None:
        self._desk = desk
        self.buffer = buffer
        self._one_at_a_time = asyncio.Lock()
        self._room: AnswerRoom | None = None
        self._offering: asyncio.Task[None] | None = None
        buffer.lacks_room = self._lacks_room

    @property
    def live(self) -> bool:
        """Whether a fetch is under way."""
        return self._one_at_a_time.locked()

    async def fetch(
        self, limit: int, wait: float, room: AnswerRoom | None = None
    ) -> list[Assignment]:
        """Up to ``limit`` jobs as soon as there are any and ``room`` for them."""
        async with self._one_at_a_time:
            self._room = room
            self.buffer.begin(room)
            try:
                if self.buffer.status is WorkerStatus.ONLINE and limit > len(self.buffer):
                    self._desk.grant(limit - len(self.buffer))
                await self.buffer.wait(wait)
                await self.buffer.fill_up(limit)
            finally:
                self._room = None
                if self._offering is not None:
                    await end(self._offering)
                    self._offering = None
            await self._desk.drain()
            if self.buffer.elsewhere:
                raise NotFound(
                    f"worker {self._desk.info.id!r} is registered with another server: register it"
                )
            return self.buffer.take()

    def _lacks_room(self) -> None:
        if self._room is not None and self._offering is None:
            self._offering = asyncio.create_task(self._offer_again(self._room))

    async def _offer_again(self, room: AnswerRoom) -> None:
        await room.until_room()
        self._offering = None
        self._desk.grant(0)

    async def retire(self) -> None:
        """Withdraw the slots and hand back what was not fetched."""
        await self._desk.retire()
        await self._desk.hand_back(self.buffer.take())
