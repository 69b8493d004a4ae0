"""The queues that a worker serves: creates those that its tasks declare, and warns of those that do
not exist. The server takes jobs from a queue as soon as it exists."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from jobqueue.core.errors import AlreadyExists, InvalidArgument, JobQueueError, PermissionDenied
from jobqueue.core.queue import Queue, QueueSpec
from jobqueue.core.store import ALL_QUEUES
from jobqueue.core.waiting import GrowingPause, is_set_within, jittered
from jobqueue.worker.log import WorkerLog

_LOOK = 30.0  # seconds between two looks
_FIRST_LOOK, _LONGEST_LOOK = 1.0, 5.0  # while a queue is missing


class CreatesQueues(Protocol):
    """The part of a backend that creates declared queues."""

    async def create_queue(self, spec: QueueSpec) -> Queue:
        """Create a queue; AlreadyExists if the name is taken."""
        ...


class KnowsQueues(CreatesQueues, Protocol):
    """The part of a backend that ``ServedQueues`` needs."""

    async def missing_queues(self, names: Sequence[str]) -> list[str]:
        """Return those of these queues that do not exist."""
        ...


async def create_queues(backend: CreatesQueues, queues: Iterable[QueueSpec]) -> None:
    """Create queues, and leave existing ones as they are. Raises the first error."""
    for queue in queues:
        with contextlib.suppress(AlreadyExists):
            await backend.create_queue(queue)


class ServedQueues:
    """Creates and checks the queues of one worker between ``start`` and ``stop``."""

    def __init__(
        self,
        backend: KnowsQueues,
        worker_id: str,
        served: Collection[str],
        declared: Iterable[QueueSpec] = (),
        *,
        on_demand: Collection[str] = (),
    ) -> None:
        """``on_demand``: queues that a server creates with their first job; none is missing."""
        self._backend = backend
        self._log = WorkerLog(worker_id)
        self._served = [name for name in served if name != ALL_QUEUES and name not in on_demand]
        self._to_create = list(declared)
        self._missing: set[str] = set()
        self._failing = False
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Create declared queues and warn of missing ones. InvalidArgument: a bad declaration."""
        await self._create()
        await self._look()
        self._task = asyncio.create_task(self._follow(), name="worker-queues")

    async def stop(self) -> None:
        """May be called twice, or before ``start``."""
        self._stopping.set()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _follow(self) -> None:
        pause = GrowingPause(_FIRST_LOOK, _LONGEST_LOOK)
        while True:
            waits = self._missing or self._to_create
            seconds = pause.next() if waits else jittered(_LOOK)
            if await is_set_within(self._stopping, seconds):
                return
            try:
                await self._create()
                await self._look()
            except Exception:
                self._log.exception("cannot check the queues, trying again")

    async def _create(self) -> None:
        """Create declared queues once: a queue that an operator deletes later stays deleted."""
        if not self._to_create:
            return
        try:
            await create_queues(self._backend, self._to_create)
        except InvalidArgument:
            raise
        except PermissionDenied as error:
            self._log.debug("queues are left for an operator to create: %s", error)
        except JobQueueError as error:
            if not self._failing:
                self._log.warning(
                    "cannot create the queues that the tasks declare, trying again: %s", error
                )
            self._failing = True
            return
        self._to_create, self._failing = [], False

    async def _look(self) -> None:
        if not self._served:
            return
        try:
            missing = set(await self._backend.missing_queues(self._served))
        except JobQueueError as error:
            self._log.debug("cannot check the queues: %s", error)
            return
        for name in self._served:
            extra = {"queue": name}
            if name in missing and name not in self._missing:
                self._log.warning(
                    "queue %r does not exist: no job comes from it until it does; create it with:"
                    " jq-ctl queue create %s",
                    name,
                    name,
                    extra=extra,
                )
            elif name in self._missing and name not in missing:
                self._log.info("queue %r exists now: its jobs are taken", name, extra=extra)
        self._missing = missing
