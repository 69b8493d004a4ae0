"""Workers registered with this server, on a stream or by unary calls, and their heartbeats."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from weakref import WeakValueDictionary

from jobqueue.access.budgets import MessageBytes, Room
from jobqueue.api.grpc.calls import Calls
from jobqueue.api.grpc.work_codec import leases_from_pb, progress_from_pb
from jobqueue.core.api import Link
from jobqueue.core.errors import JobQueueError, NotFound
from jobqueue.core.job import Assignment, Pulse, Transition, WorkerInfo, owner_allows
from jobqueue.core.progress import Progress
from jobqueue.core.waiting import TURN, account, turn
from jobqueue.pb.jq.v1 import worker_pb2 as pb

log = logging.getLogger("jobqueue.grpc")

# A worker that was silent for so long registers anew when it comes back.
_FORGET_AFTER = 60.0
_LOOK_EVERY = 5.0
# Heartbeats of one account that take a thread at a time. The default executor has five threads or
# more, so there is one for others. Stores take few heartbeats side by side.
_THREADS_PER_ACCOUNT = 4


class Transport(Protocol):
    """The way that jobs take to a worker: its stream, or its fetches."""

    @property
    def live(self) -> bool:
        """True while a stream or a fetch is under way."""
        ...

    def connected(self, silent_for: float) -> bool:
        """Return True if the worker may still report; its last call was that many seconds ago."""
        ...

    async def retire(self) -> None:
        """End it, withdraw the worker's slots and hand back undelivered jobs."""
        ...


class Registration:
    """One worker's registration.

    It outlives the worker's stream: heartbeats still come, and the same incarnation may connect
    again.
    """

    def __init__(self, info: WorkerInfo, link: Link) -> None:
        # Its names may be long, and only the backend needs them.
        self.info = dataclasses.replace(info, queues=(), types=None)
        self.link = link
        self.transport: Transport
        self.last_seen = 0.0

    async def withdraw(self) -> None:
        """Withdraw every slot; a failure is logged, not raised."""
        try:
            await self.link.drain()
        except JobQueueError as error:
            log.warning(
                "cannot withdraw the worker's free slots: %s; jobs assigned to them return to their"
                " queues when its heartbeats do not list them",
                error,
                extra={"worker_id": self.info.id},
            )

    async def hand_back(self, assignments: Sequence[Assignment]) -> None:
        """Return jobs that the worker never got.

        If that fails, they come back when the worker's heartbeats do not list them.
        """
        if not assignments:
            return
        try:
            await self.link.report([Transition.handed_back(a.seq, a.lease) for a in assignments])
        except JobQueueError as error:
            log.warning(
                "cannot hand back %d undelivered jobs of a worker: %s; they return to their queues"
                " when its heartbeats do not list them",
                len(assignments),
                error,
                extra={"worker_id": self.info.id},
            )


class Registrations:
    """All registrations by worker id. A new registration replaces the worker's old one."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._by_id: dict[str, Registration] = {}
        self._looked = now()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._by_id)

    def changing(self, worker_id: str) -> AbstractAsyncContextManager[None]:
        """Return the lock to hold while a worker's registration changes."""
        lock = self._locks.get(worker_id)
        if lock is None:
            lock = self._locks[worker_id] = asyncio.Lock()
        return lock

    def put(self, registration: Registration, transport: Transport) -> None:
        """Store a worker's registration, and drop those of workers that were silent for long."""
        now = self._now()
        if now - self._looked > _LOOK_EVERY:
            self._looked = now
            for worker_id, old in list(self._by_id.items()):
                if not old.transport.live and now - old.last_seen > _FORGET_AFTER:
                    del self._by_id[worker_id]
        registration.transport, registration.last_seen = transport, now
        self._by_id[registration.info.id] = registration

    def get(self, worker_id: str) -> Registration | None:
        """Return a worker's registration of any incarnation."""
        return self._by_id.get(worker_id)

    def connected(self, worker_id: str) -> bool:
        """Return True if the worker may still report on its stream, or by unary calls."""
        found = self._by_id.get(worker_id)
        return found is not None and found.transport.connected(self._now() - found.last_seen)

    def count(self) -> int:
        """Count the workers that may report."""
        return sum(1 for worker_id in self._by_id if self.connected(worker_id))

    def allows(self, worker_id: str, owner: str) -> bool:
        """Return False if the worker's registration belongs to another caller."""
        found = self._by_id.get(worker_id)
        return found is None or owner_allows(found.info.owner, owner)

    def find(self, worker_id: str, incarnation: int, owner: str) -> Registration | None:
        """Return the registration of this incarnation, unless it belongs to another caller."""
        found = self._by_id.get(worker_id)
        if found is None or found.info.incarnation != incarnation:
            return None
        if not owner_allows(found.info.owner, owner):
            return None
        found.last_seen = self._now()
        return found

    def need(self, worker_id: str, incarnation: int, owner: str) -> Registration:
        """Return the registration like ``find``; raise NotFound if there is none."""
        found = self.find(worker_id, incarnation, owner)
        if found is None:
            raise NotFound(f"worker {worker_id!r} is not registered with this server: register it")
        return found

    def remove(self, registration: Registration) -> None:
        """Drop a registration, unless another one has replaced it."""
        if self._by_id.get(registration.info.id) is registration:
            del self._by_id[registration.info.id]

    async def vacate(self, worker_id: str) -> None:
        """End a worker's registration before another replaces it."""
        found = self._by_id.pop(worker_id, None)
        if found is not None:
            await found.transport.retire()


class TakeHeartbeat(Protocol):
    """Passes a heartbeat to the backend. Blocking."""

    def __call__(
        self,
        leases: list[int],
        begun: list[int],
        complete: bool,
        *,
        progress: dict[int, Progress],
        overrun: int | None,
    ) -> Pulse: ...


class Heartbeats:
    """Heartbeats on their way to the backend, each in a thread.

    Each account has its own few threads, so no account waits for the heartbeats of another.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._threads = MessageBytes(1, per_caller=_THREADS_PER_ACCOUNT)

    async def pulse(self, beat: pb.Beat | pb.HeartbeatRequest, tell: TakeHeartbeat) -> Pulse:
        """Pass on a heartbeat, and return the answer. Long lists are read in the account's turn."""
        place = Room(self._threads, account.get())
        try:
            await place.take()
            if len(beat.leases) + len(beat.begun) > TURN:
                await turn()
            told = asyncio.to_thread(
                tell,
                leases_from_pb(beat.leases),
                leases_from_pb(beat.begun),
                not beat.incomplete,
                progress=await progress_from_pb(beat.progress),
                overrun=beat.overrun if beat.HasField("overrun") else None,
            )
        except BaseException:
            place.close()
            raise
        # The thread goes on when its call is given up, and keeps its place until it ends.
        thread = self._calls.own(told)
        thread.add_done_callback(lambda _: place.close())
        return await asyncio.shield(thread)
