"""The queues that a worker serves: those that its tasks declare are created, and one that does not
exist is told in the log. The server takes jobs from it as soon as there is such a queue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from jobqueue.core.errors import AlreadyExists, InvalidArgument, JobQueueError, PermissionDenied
from jobqueue.core.queue import Queue, QueueSpec
from jobqueue.core.store import ALL_QUEUES
from jobqueue.core.waiting import is_set_within
from jobqueue.services import engine_job

log = logging.getLogger("jobqueue.worker")

_LOOK = 30.0  # seconds between two looks
_FIRST_LOOK, _LONGEST_LOOK = 0.5, 5.0  # while something is missing
# They are no queues that somebody has to create: the server does it with the first such job.
_NOT_LOOKED_FOR = frozenset({ALL_QUEUES, engine_job.QUEUE})


class CreatesQueues(Protocol):
    """The one call that declared queues need of a backend."""

    async def create_queue(self, spec: QueueSpec) -> Queue:
        """Create a queue; AlreadyExists if the name is taken."""
        ...


class KnowsQueues(CreatesQueues, Protocol):
    """What this needs of a backend."""

    async def missing_queues(self, names: Sequence[str]) -> list[str]:
        """Those of these queues that do not exist."""
        ...


async def create_queues(backend: CreatesQueues, queues: Iterable[QueueSpec]) -> None:
    """Create queues; one that exists is left as it is. The first error ends it."""
    for queue in queues:
        with contextlib.suppress(AlreadyExists):
            await backend.create_queue(queue)


class ServedQueues:
    """Looks after the queues of one worker between ``start`` and ``stop``."""

    def __init__(
        self,
        backend: KnowsQueues,
        worker_id: str,
        served: Collection[str],
        declared: Iterable[QueueSpec] = (),
    ) -> None:
        self._backend = backend
        self._extra = {"worker_id": worker_id}
        self._served = [name for name in served if name not in _NOT_LOOKED_FOR]
        self._to_create = list(declared)
        self._missing: set[str] = set()
        self._failing = False
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Create what is declared, and say what is missing. InvalidArgument: a bad declaration."""
        await self._create()
        await self._look()
        self._task = asyncio.create_task(self._follow(), name="worker-queues")

    async def stop(self) -> None:
        """End. May be called twice, or before start."""
        self._stopping.set()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _follow(self) -> None:
        pause = _FIRST_LOOK
        while True:
            waits = self._missing or self._to_create
            pause = min(2 * pause, _LONGEST_LOOK) if waits else _LOOK
            if await is_set_within(self._stopping, pause * random.uniform(0.5, 1.0)):
                return
            try:
                await self._create()
                await self._look()
            except Exception:
                log.exception("looking at the queues failed", extra=self._extra)

    async def _create(self) -> None:
        """Create what is declared, once: what an operator deletes later stays deleted."""
        if not self._to_create:
            return
        try:
            await create_queues(self._backend, self._to_create)
        except InvalidArgument:
            raise
        except PermissionDenied as error:
            log.debug("queues are left for an operator to create: %s", error, extra=self._extra)
        except JobQueueError as error:
            if not self._failing:
                log.warning(
                    "cannot create the queues that the tasks declare, trying again: %s",
                    error,
                    extra=self._extra,
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
            log.debug("cannot look at the queues: %s", error, extra=self._extra)
            return
        for name in self._served:
            extra = {**self._extra, "queue": name}
            if name in missing and name not in self._missing:
                log.warning(
                    "queue %r does not exist: no job comes from it until it does; create it with:"
                    " jq-ctl queue create %s",
                    name,
                    name,
                    extra=extra,
                )
            elif name in self._missing and name not in missing:
                log.info("queue %r exists now: its jobs are taken", name, extra=extra)
        self._missing = missing
