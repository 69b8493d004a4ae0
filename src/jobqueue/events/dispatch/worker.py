"""The worker's side: hints say where to look, the store says what is to be done."""

from __future__ import annotations

import logging
from collections.abc import Callable

from jobqueue.core.api import Inbox, Link
from jobqueue.core.dispatch import DispatchStore, HintSource
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import Transition, WorkerInfo
from jobqueue.core.observer import Deaf, Observer
from jobqueue.core.store import Change
from jobqueue.events.dispatch.link import KafkaLink

_log = logging.getLogger("jobqueue.events.dispatch")

Listen = Callable[[int, Callable[[], None]], HintSource]
"""Reads one partition of the assignments, and tells when it has begun."""


class KafkaDispatch:
    """Implements ``core.api.DispatchApi`` on a store that the worker talks to itself."""

    def __init__(
        self,
        store: DispatchStore,
        listen: Listen,
        observer: Observer | None = None,
        check: Callable[[WorkerInfo], None] | None = None,
    ) -> None:
        self._store = store
        self._listen = listen
        self._observer = observer or Deaf()
        self._check = check  # raises InvalidArgument
        self._links: set[KafkaLink] = set()
        self._hearing = False

    async def connect(self, info: WorkerInfo, inbox: Inbox) -> Link:
        """See ``DispatchApi.connect``."""
        if self._check is not None:
            self._check(info)
        if not self._hearing:
            self._hearing = True
            self._store.on_change(self._changed)
        lost = await self._store.register_worker(info)
        if lost:
            error = f"worker {info.id} was started anew"
            await self._store.apply(
                [Transition.worker_lost(one.seq, one.lease, error) for one in lost]
            )
        partition = await self._store.partition_of(info.id, info.incarnation)
        if partition is None:
            raise InvalidArgument(
                "kafka.dispatch", "is off in the process that keeps the store: no partition"
            )
        _log.info("assignments are read from partition %d", partition, extra={"worker_id": info.id})
        link = KafkaLink(self._store, info, inbox, self._observer, self._links.discard)
        self._links.add(link)
        link.start(self._listen(partition, link.look))
        return link

    def _changed(self, changed: Change) -> None:
        if Change.CONTROL in changed:
            for link in self._links:
                link.attend()
