"""Connect workers that are woken by hints in Kafka and read their jobs from the store."""

from __future__ import annotations

import logging
from collections.abc import Callable

from jobqueue.core.api import Inbox, Link
from jobqueue.core.dispatch import HintSource, dispatch_of
from jobqueue.core.errors import Conflict, InvalidArgument
from jobqueue.core.job import Transition, WorkerInfo, WorkerStatus
from jobqueue.core.observer import Observer
from jobqueue.core.store import Change, Store
from jobqueue.events.dispatch.link import KafkaLink

_log = logging.getLogger("jobqueue.events.dispatch")

Listen = Callable[[int, Callable[[], None]], HintSource]
"""Returns a reader of a partition of assignments, which calls the given function once it reads."""


class KafkaDispatch:
    """Implements ``core.api.DispatchApi`` on a store that the worker itself uses."""

    def __init__(
        self,
        store: Store,
        listen: Listen,
        observer: Observer | None = None,
        check: Callable[[WorkerInfo], None] | None = None,
    ) -> None:
        self._store = store
        self._dispatch = dispatch_of(store)
        self._listen = listen
        self._observer = observer or Observer()
        self._check = check  # raises InvalidArgument
        self._links: set[KafkaLink] = set()
        self._lives: set[tuple[str, int]] = set()  # incarnations that were registered here
        self._hearing = False

    async def connect(self, info: WorkerInfo, inbox: Inbox) -> Link:
        if self._check is not None:
            self._check(info)
        if not self._hearing:
            self._hearing = True
            self._store.on_change(self._changed)
        if (info.id, info.incarnation) in self._lives:
            await self._check_place(info)
        lost = await self._store.workers.register(info)
        self._lives.add((info.id, info.incarnation))
        if lost:
            error = f"worker {info.id} was started anew"
            await self._store.jobs.apply(
                [Transition.worker_lost(one.seq, one.lease, error) for one in lost]
            )
        partition = await self._dispatch.workers.partition_of(info.id, info.incarnation)
        if partition is None:
            raise InvalidArgument(
                "kafka.dispatch",
                f"is false in the settings with which the store was opened, so that worker"
                f" {info.id!r} has no partition: set it to true",
            )
        _log.info(
            "worker %s reads its assignments from Kafka partition %d",
            info.id,
            partition,
            extra={"worker_id": info.id},
        )
        link = KafkaLink(self._dispatch, info, inbox, self._observer, self._links.discard)
        self._links.add(link)
        link.start(self._listen(partition, link.look))
        return link

    async def _check_place(self, info: WorkerInfo) -> None:
        """Raise Conflict if another process has registered as this worker after this process.

        Otherwise the two processes would register in turn for ever, and each registration would end
        the other's leases. The process that registered last stays.
        """
        for worker in await self._store.workers.all(names=False):
            found = worker.info
            if (
                found.id == info.id
                and found.incarnation != info.incarnation
                and worker.status is not WorkerStatus.OFFLINE
            ):
                raise Conflict(
                    f"another process has registered as worker {info.id!r} at {found.hostname} (pid"
                    f" {found.pid}); give every worker its own id"
                )

    def _changed(self, changed: Change) -> None:
        for link in self._links:
            if Change.CONTROL in changed:
                link.attend()
            if Change.ASSIGNED in changed:
                link.look()
