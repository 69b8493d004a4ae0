"""Create the queues that a worker's tasks declare, and warn of queues that do not exist.

The server gives the worker jobs from a queue as soon as the queue exists.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from jobqueue.core.errors import AlreadyExists, InvalidArgument, JobQueueError, PermissionDenied
from jobqueue.core.queue import Queue, QueueSpec
from jobqueue.core.store import ALL_QUEUES
from jobqueue.core.waiting import Background, GrowingPause, jittered
from jobqueue.worker.log import WorkerLog

_LOOK = 30.0  # seconds between two checks
_FIRST_LOOK, _LONGEST_LOOK = 1.0, 5.0  # seconds between two checks while a queue is missing


class CreatesQueues(Protocol):
    """The part of a backend that ``create_queues`` calls."""

    async def create_queue(self, spec: QueueSpec) -> Queue:
        """Create a queue. AlreadyExists means that a queue with this name exists."""
        ...


class KnowsQueues(CreatesQueues, Protocol):
    """The part of a backend that ``ServedQueues`` calls."""

    async def missing_queues(self, names: Sequence[str]) -> list[str]:
        """Return the names of the queues that do not exist."""
        ...


async def create_queues(backend: CreatesQueues, queues: Iterable[QueueSpec]) -> None:
    """Create the queues that do not exist; existing queues stay unchanged.

    The first error is raised, and the later queues are not created.
    """
    for queue in queues:
        with contextlib.suppress(AlreadyExists):
            await backend.create_queue(queue)


class ServedQueues(Background):
    """Creates and checks the queues of one worker, from ``start`` until ``stop``."""

    def __init__(
        self,
        backend: KnowsQueues,
        worker_id: str,
        served: Collection[str],
        declared: Iterable[QueueSpec] = (),
        *,
        on_demand: Collection[str] = (),
    ) -> None:
        """Prepare the checks.

        ``on_demand`` names queues that a server creates with their first job, so that they are
        never reported as missing.
        """
        self._backend = backend
        self._log = WorkerLog(worker_id)
        self._served = [name for name in served if name != ALL_QUEUES and name not in on_demand]
        self._to_create = list(declared)
        self._missing: set[str] = set()
        self._failing = False

    async def start(self) -> None:
        """Create the declared queues, warn of missing queues, and start to check regularly.

        InvalidArgument means that the server refuses the settings of a declared queue.
        """
        await self._create()
        await self._look()
        self._begin(self._follow(), "worker-queues")

    async def _follow(self) -> None:
        pause = GrowingPause(_FIRST_LOOK, _LONGEST_LOOK)
        while True:
            waits = self._missing or self._to_create
            await asyncio.sleep(pause.next() if waits else jittered(_LOOK))
            try:
                await self._create()
                await self._look()
            except Exception:
                self._log.exception(
                    "cannot check the queues of worker %s; trying again", self._log.worker_id
                )

    async def _create(self) -> None:
        """Create the declared queues once, so that a queue that is deleted later stays deleted."""
        if not self._to_create:
            return
        try:
            await create_queues(self._backend, self._to_create)
        except InvalidArgument:
            raise
        except PermissionDenied as error:
            self._log.debug(
                "worker %s may not create the queues that its tasks declare: %s; an operator must"
                " create them",
                self._log.worker_id,
                error,
            )
        except JobQueueError as error:
            if not self._failing:
                self._log.warning(
                    "cannot create the queues that the tasks declare: %s; trying again", error
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
            self._log.debug(
                "cannot check the queues of worker %s: %s; trying again", self._log.worker_id, error
            )
            return
        for name in self._served:
            extra = {"queue": name}
            if name in missing and name not in self._missing:
                self._log.warning(
                    "queue %r does not exist, so worker %s gets no jobs from it; create it with:"
                    " jq-ctl queue create %s",
                    name,
                    self._log.worker_id,
                    name,
                    extra=extra,
                )
            elif name in self._missing and name not in missing:
                self._log.info(
                    "queue %r exists now, and worker %s takes jobs from it",
                    name,
                    self._log.worker_id,
                    extra=extra,
                )
        self._missing = missing
