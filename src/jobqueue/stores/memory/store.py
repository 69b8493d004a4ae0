"""Assemble the memory store: its parts share heaps and dictionaries, and nothing is durable."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from jobqueue.core.clock import Clock, SystemClock
from jobqueue.core.identity import Identity, new_store_id
from jobqueue.core.job import ComponentHealth
from jobqueue.core.rebuild import Restored, Told, led, not_empty, standing, unused
from jobqueue.core.store import Change, Rules
from jobqueue.stores.memory.contents import Contents, MemoryJob, MemoryQueue
from jobqueue.stores.memory.jobs import MemoryJobs, MemoryUpkeep
from jobqueue.stores.memory.queues import MemoryQueues
from jobqueue.stores.memory.reads import MemoryReads
from jobqueue.stores.memory.schedules import MemorySchedules
from jobqueue.stores.memory.streaming import MemoryStream
from jobqueue.stores.memory.workers import MemoryWorkers


class MemoryStore:
    """Implements ``core.store.Store`` in memory. Its jobs are lost when the process ends."""

    name = "memory"
    location = "memory of this process"
    durable = False
    parallel = False
    dispatch = None

    def __init__(self, rules: Rules | None = None, clock: Clock | None = None) -> None:
        self._contents = contents = Contents(
            rules or Rules(), clock or SystemClock(), Identity(new_store_id())
        )
        self.jobs = MemoryJobs(contents)
        self.reads = MemoryReads(contents)
        self.upkeep = MemoryUpkeep(contents)
        self.queues = MemoryQueues(contents)
        self.workers = MemoryWorkers(contents)
        self.leadership = contents.leadership
        self.schedules = MemorySchedules(contents)
        self.stream = MemoryStream(contents)

    async def open(self) -> None:
        """Do nothing, because memory needs no preparation."""

    async def close(self) -> None:
        """Do nothing, because there is nothing to release."""

    def on_change(self, heard: Callable[[Change], None]) -> None:
        """Do nothing, because no other process can change this store."""

    async def ping(self, patience: float | None = None) -> None:
        """Do nothing, because memory can always be written."""

    def components(self) -> list[ComponentHealth]:
        return []

    async def restore(self, state: Restored, told: Told) -> None:
        # Nothing in here waits, so no other task runs meanwhile.
        contents, now = self._contents, self._contents.clock.now()
        if self.leadership.held():
            raise led()
        if contents.jobs or contents.keys:
            raise not_empty("jobs" if contents.jobs else "idempotency keys")
        if contents.schedules:
            raise not_empty("schedules")
        if contents.gone or not unused(await self.queues.stats()):
            raise not_empty("queues")
        contents.queues.clear()
        for one in state.queues:
            queue = MemoryQueue(replace(one.queue), contents.type_of)
            queue.succeeded, queue.failed = one.figures.succeeded, one.figures.failed
            queue.run_seconds = one.figures.run_seconds
            (contents.gone if one.deleted else contents.queues)[one.queue.name] = queue
        queues = contents.gone | contents.queues
        for rebuilt in state.jobs:
            record, ready = standing(rebuilt, now, contents.rules, MemoryJob)
            created_at, queue = rebuilt.created_at, queues[rebuilt.spec.queue]
            record.keep(rebuilt.id, rebuilt.spec, queue, ready, created_at)
            contents.add(record)
            contents.log.write(rebuilt.entries, record.events)
        for key in state.keys:
            contents.keys.put(key.queue, key.key, key.job_id, key.fingerprint, key.expires_at)
        contents.schedules.update({one.name: one for one in state.schedules})
        contents.seq = itertools.count(state.last_seq + 1)
        contents.log.resume(state.last_number, published=state.published)
        contents.identity = state.identity
        told(len(state.jobs))
