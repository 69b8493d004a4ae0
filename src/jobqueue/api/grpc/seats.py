"""Which workers are connected to this server, on a stream or by unary calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from weakref import WeakValueDictionary

from jobqueue.api.grpc.desk import Desk
from jobqueue.api.grpc.work_fetch import Fetcher
from jobqueue.api.grpc.work_stream import WorkStream
from jobqueue.core.errors import NotFound
from jobqueue.core.job import owner_allows

# A worker silent for that long is long OFFLINE; its link only takes up room.
_FORGET_AFTER = 600.0
# Two heartbeats at the default interval: whether a worker without a stream is there.
_SILENT_AFTER = 10.0


@dataclass(slots=True, eq=False)
class Seat:
    """One worker's registration. A seat outlives its stream: heartbeats still come, and the
    same incarnation may connect again."""

    desk: Desk
    line: WorkStream | Fetcher
    last_seen: float


class Seats:
    """By worker id: a worker has one seat, and a new one takes the place of the old."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seats: dict[str, Seat] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._seats)

    def taking(self, worker_id: str) -> AbstractAsyncContextManager[None]:
        """Held while a worker's seat changes hands."""
        lock = self._locks.get(worker_id)
        if lock is None:
            lock = self._locks[worker_id] = asyncio.Lock()
        return lock

    def put(self, desk: Desk, line: WorkStream | Fetcher) -> Seat:
        """Give a worker its seat."""
        now = self._now()
        for worker_id, seat in list(self._seats.items()):
            if not seat.line.live and now - seat.last_seen > _FORGET_AFTER:
                del self._seats[worker_id]
        seat = self._seats[desk.info.id] = Seat(desk, line, now)
        return seat

    def get(self, worker_id: str) -> Seat | None:
        """A worker's seat, of whatever incarnation."""
        return self._seats.get(worker_id)

    def connected(self, worker_id: str) -> bool:
        """Whether the worker may still report on its stream, or by unary calls."""
        seat = self._seats.get(worker_id)
        if seat is None:
            return False
        if isinstance(seat.line, WorkStream):
            return seat.line.live
        return not seat.line.buffer.elsewhere and self._now() - seat.last_seen < _SILENT_AFTER

    def count(self) -> int:
        """How many workers may report."""
        return sum(1 for worker_id in self._seats if self.connected(worker_id))

    def allows(self, worker_id: str, owner: str) -> bool:
        """Whether the worker's seat, if it has one here, is not another caller's."""
        seat = self._seats.get(worker_id)
        return seat is None or owner_allows(seat.desk.info.owner, owner)

    def find(self, worker_id: str, incarnation: int, owner: str) -> Seat | None:
        """The seat of that very incarnation, unless it is another caller's."""
        seat = self._seats.get(worker_id)
        if seat is None or seat.desk.info.incarnation != incarnation:
            return None
        if not owner_allows(seat.desk.info.owner, owner):
            return None
        seat.last_seen = self._now()
        return seat

    def need(self, worker_id: str, incarnation: int, owner: str) -> Seat:
        """The seat of that very incarnation; NotFound says to register again."""
        seat = self.find(worker_id, incarnation, owner)
        if seat is None:
            raise NotFound(f"worker {worker_id!r} is not registered with this server: register it")
        return seat

    def remove(self, seat: Seat) -> None:
        """Give the seat up, unless it is somebody else's by now."""
        if self._seats.get(seat.desk.info.id) is seat:
            del self._seats[seat.desk.info.id]

    async def vacate(self, worker_id: str) -> None:
        """End what holds the seat, before another takes it."""
        seat = self._seats.pop(worker_id, None)
        if seat is not None:
            await seat.line.retire()
