"""Track the workers registered with this server, and pass their heartbeats to the backend.

A worker uses either a stream or unary calls.
"""

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
from jobqueue.core.waiting import TURN, FairSemaphore, account, turn
from jobqueue.pb.jq.v1 import worker_pb2 as pb

log = logging.getLogger("jobqueue.grpc")

# The server deletes the registration of a worker that sent nothing for this long.
_FORGET_AFTER = 60.0
_LOOK_EVERY = 5.0
# The most heartbeats of one account that use a thread at once. The default executor has at least
# five threads, so one is left for other accounts. Stores process few heartbeats at once.
_THREADS_PER_ACCOUNT = 4


class Transport(Protocol):
    """Sends jobs to a worker: by its stream, or as answers to its fetches."""

    @property
    def live(self) -> bool:
        """Return True while a stream or a fetch is under way."""
        ...

    def connected(self, silent_for: float) -> bool:
        """Return True if the worker has an open stream, or has made a call recently.

        ``silent_for`` is the number of seconds since the worker's last call.
        """
        ...

    async def retire(self) -> None:
        """End the transport, withdraw the worker's slots and hand back undelivered jobs."""
        ...


class Registration:
    """Represents one worker that is registered with this server.

    The registration outlives the worker's stream: the worker still sends heartbeats, and the same
    incarnation may connect again.
    """

    def __init__(self, info: WorkerInfo, link: Link) -> None:
        # The names of queues and types need much memory, and only the backend reads them.
        self.info = dataclasses.replace(info, queues=(), types=None)
        self.link = link
        self.transport: Transport
        self.last_seen = 0.0

    async def withdraw(self) -> None:
        """Withdraw every free slot of the worker. Log a failure instead of raising it."""
        try:
            await self.link.drain()
        except JobQueueError as error:
            log.warning(
                "cannot withdraw the free slots of worker %s: %s; jobs assigned to these slots"
                " return to their queues when the worker's heartbeats do not list them",
                self.info.id,
                error,
                extra={"worker_id": self.info.id},
            )

    async def hand_back(self, assignments: Sequence[Assignment]) -> None:
        """Hand back the assigned jobs that were never sent to the worker.

        If the store cannot be written, the jobs return to their queues later, when the worker's
        heartbeats do not list them.
        """
        if not assignments:
            return
        try:
            await self.link.report([Transition.handed_back(a.seq, a.lease) for a in assignments])
        except JobQueueError as error:
            log.warning(
                "cannot hand back %d undelivered jobs of worker %s: %s; the jobs return to their"
                " queues when the worker's heartbeats do not list them",
                len(assignments),
                self.info.id,
                error,
                extra={"worker_id": self.info.id},
            )


class Registrations:
    """Holds all registrations by worker id. A new registration replaces the worker's old one."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._by_id: dict[str, Registration] = {}
        self._looked = now()
        self._locks: WeakValueDictionary[str, FairSemaphore] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._by_id)

    def changing(self, worker_id: str) -> AbstractAsyncContextManager[None]:
        """Return the lock to hold while a worker's registration changes.

        Its owner does not wait for all the calls of another caller who names the worker, too.
        """
        lock = self._locks.get(worker_id)
        if lock is None:
            lock = self._locks[worker_id] = FairSemaphore()
        return lock

    def put(self, registration: Registration, transport: Transport) -> None:
        """Store a worker's registration.

        Delete registrations of workers that were silent for long.
        """
        now = self._now()
        if now - self._looked > _LOOK_EVERY:
            self._looked = now
            for worker_id, old in list(self._by_id.items()):
                if not old.transport.live and now - old.last_seen > _FORGET_AFTER:
                    del self._by_id[worker_id]
        registration.transport, registration.last_seen = transport, now
        self._by_id[registration.info.id] = registration

    def get(self, worker_id: str) -> Registration | None:
        """Return the registration of any incarnation of the worker; None if there is none."""
        return self._by_id.get(worker_id)

    def connected(self, worker_id: str) -> bool:
        """Return True if the worker is connected by a stream, or has made a call recently."""
        found = self._by_id.get(worker_id)
        return found is not None and found.transport.connected(self._now() - found.last_seen)

    def count(self) -> int:
        """Return the number of connected workers."""
        return sum(1 for worker_id in self._by_id if self.connected(worker_id))

    def allows(self, worker_id: str, owner: str) -> bool:
        """Return True unless the worker's registration belongs to another caller than ``owner``."""
        found = self._by_id.get(worker_id)
        return found is None or owner_allows(found.info.owner, owner)

    def find(self, worker_id: str, incarnation: int, owner: str) -> Registration | None:
        """Return the incarnation's registration; None if missing, or if another caller owns it."""
        found = self._by_id.get(worker_id)
        if found is None or found.info.incarnation != incarnation:
            return None
        if not owner_allows(found.info.owner, owner):
            return None
        found.last_seen = self._now()
        return found

    def need(self, worker_id: str, incarnation: int, owner: str) -> Registration:
        """Return the registration that ``find`` returns, or raise NotFound."""
        found = self.find(worker_id, incarnation, owner)
        if found is None:
            raise NotFound(f"worker {worker_id!r} is not registered with this server; register it")
        return found

    def remove(self, registration: Registration) -> None:
        """Delete a registration, unless another registration has replaced it."""
        if self._by_id.get(registration.info.id) is registration:
            del self._by_id[registration.info.id]

    async def vacate(self, worker_id: str) -> None:
        """Delete the worker's registration and retire its transport, before another replaces it."""
        found = self._by_id.pop(worker_id, None)
        if found is not None:
            await found.transport.retire()


class TakeHeartbeat(Protocol):
    """Passes a heartbeat to the backend, and blocks until the backend answers."""

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
    """Passes heartbeats to the backend, each in a thread.

    Each account may use a few threads only, so no account waits for the heartbeats of another.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._threads = MessageBytes(1, per_caller=_THREADS_PER_ACCOUNT)

    async def pulse(self, beat: pb.Beat | pb.HeartbeatRequest, tell: TakeHeartbeat) -> Pulse:
        """Pass the heartbeat ``beat`` to the backend with ``tell``, and return the answer."""
        place = Room(self._threads, account.get())
        try:
            await place.take()
            if len(beat.leases) + len(beat.begun) > TURN:
                await turn()  # the account's turn, to convert long lists
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
        # The thread continues when its call is cancelled, and keeps its place until it ends.
        thread = self._calls.own(told)
        thread.add_done_callback(lambda _: place.close())
        return await asyncio.shield(thread)
