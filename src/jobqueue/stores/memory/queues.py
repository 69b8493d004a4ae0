"""Keep the queues of a memory store, with their settings and figures."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jobqueue.core.lifecycle import TERMINAL
from jobqueue.core.queue import KeyState, LimitState, Queue, QueueStats, WaitingType
from jobqueue.core.stream import QueueChange
from jobqueue.stores.memory.contents import MemoryPart, MemoryQueue


class MemoryQueues(MemoryPart):
    """Implements ``core.store.QueueStore``."""

    async def create(self, queue: Queue) -> bool:
        if queue.name in self._queues:
            return False
        queue.created_at = self._clock.now()
        revived = self._contents.gone.pop(queue.name, None)
        self._queues[queue.name] = revived or MemoryQueue(queue, self._contents.type_of)
        self._queues[queue.name].configure(queue)
        self._log.put_queue(QueueChange.CREATED, queue, queue.created_at)
        return True

    async def update(self, name: str, values: Mapping[str, Any]) -> Queue | None:
        queue = self._queues.get(name)
        if queue is None:
            return None
        changed = replace(queue.settings, **values)
        if changed != queue.settings:
            queue.configure(changed)
            self._log.put_queue(QueueChange.CHANGED, changed, self._clock.now())
        return replace(changed)

    async def pause(self, name: str, paused: bool) -> bool:
        queue = self._queues.get(name)
        if queue is not None and queue.settings.paused != paused:
            queue.settings.paused = paused
            self._log.put_queue(QueueChange.CHANGED, queue.settings, self._clock.now())
        return queue is not None

    async def delete(self, name: str) -> int | None:
        queue = self._queues.get(name)
        if queue is None:
            return None
        unfinished = queue.stats().unfinished
        if not unfinished:
            self._contents.gone[name] = self._queues.pop(name)
            self._log.put_queue(QueueChange.DELETED, queue.settings, self._clock.now())
        return unfinished

    async def unfinished(self, queue: str, limit: int) -> list[int]:
        wanted = (
            record.seq
            for record in self._by_seq.values()
            if record.spec.queue == queue and record.state not in TERMINAL
        )
        return list(itertools.islice(wanted, limit))

    async def stats(self, queue: str | None = None) -> list[QueueStats]:
        names = sorted(self._queues) if queue is None else [queue]
        return [self._queues[name].stats() for name in names if name in self._queues]

    async def waiting_types(self, count_to: int, queue: str | None = None) -> list[WaitingType]:
        return [
            WaitingType(name, type, jobs)
            for name, known in sorted(self._queues.items())
            if queue in (None, name)
            for type, jobs in sorted(known.waiting_types(count_to).items())
        ]

    async def limit_states(self, queue: str | None = None) -> list[LimitState]:
        now = self._clock.now()
        return [
            LimitState(name, known.held, known.full_at, now)
            for name, known in sorted(self._queues.items())
            if queue in (None, name) and known.limits is not None
        ]

    async def key_states(self, queue: str, count_to: int, key: str | None = None) -> list[KeyState]:
        known = self._queues.get(queue)
        if known is None or known.keyed is None:
            return []
        return known.keyed.states(count_to, key, self._clock.now())
