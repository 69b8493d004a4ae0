"""How much the types and queues that workers name may take, registered and in lists."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from weakref import WeakValueDictionary

from jobqueue.core.errors import too_many_names
from jobqueue.core.job import Held, Worker, WorkerInfo, WorkerStatus, is_limited
from jobqueue.core.store import Store

MIB = 1024 * 1024
MAX_OWNER_BYTES = 128 * MIB  # in memory, of all workers of one owner
_NAME_BYTES = 64  # what a name takes in memory beside its text
# Workers that take less are not looked at: their number is limited.
_FEW_BYTES = 8 * 1024
# Of the names in a list of workers: of one worker, of all of them, and of one in any case.
_SHOWN_BYTES = 64 * 1024
_ALL_SHOWN_BYTES = 16 * MIB
_LEAST_SHOWN_BYTES = 256


class WorkerNames:
    """Registers workers whose lists have room with those of their owner's other workers."""

    def __init__(self, store: Store, most: int = MAX_OWNER_BYTES) -> None:
        self._store = store
        self._most = most
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by owner

    async def register(self, info: WorkerInfo) -> list[Held]:
        """See ``Store.register_worker``."""
        if not is_limited(info.owner) or _size(info) <= _FEW_BYTES:
            return await self._store.register_worker(info)
        lock = self._locks.get(info.owner)
        if lock is None:
            lock = self._locks[info.owner] = asyncio.Lock()
        async with lock:  # one at a time
            await self._make_room(info)
            return await self._store.register_worker(info)

    async def _make_room(self, info: WorkerInfo) -> None:
        others = [
            worker
            for worker in await self._store.workers()
            if worker.info.owner == info.owner and worker.info.id != info.id
        ]
        over = _size(info) + sum(_size(worker.info) for worker in others) - self._most
        for worker in others:
            if over <= 0:
                return
            gone = worker.status is WorkerStatus.OFFLINE and not worker.running
            if gone and await self._store.forget_worker(worker.info.id):
                over -= _size(worker.info)
        if over > 0:
            raise too_many_names(info.owner, self._most)


def shorten(workers: list[Worker]) -> list[Worker]:
    """Leave long lists of names out in part, so that a list of all workers can be sent and read."""
    each = max(_LEAST_SHOWN_BYTES, min(_SHOWN_BYTES, _ALL_SHOWN_BYTES // (len(workers) or 1)))
    return [_shortened(worker, each) for worker in workers]


def _shortened(worker: Worker, most: int) -> Worker:
    info = worker.info
    types = sorted(info.types or ())
    queues, shown = _first(info.queues, most // 2), _first(types, most // 2)
    if len(queues) == len(info.queues) and len(shown) == len(types):
        return worker
    return dataclasses.replace(
        worker,
        info=dataclasses.replace(
            info, queues=tuple(queues), types=None if info.types is None else frozenset(shown)
        ),
        queues_left_out=len(info.queues) - len(queues),
        types_left_out=len(types) - len(shown),
    )


def _first(names: Iterable[str], most: int) -> list[str]:
    """The first of them, one at least."""
    first: list[str] = []
    size = 0
    for name in names:
        size += len(name.encode())
        if first and size > most:
            break
        first.append(name)
    return first


def _size(info: WorkerInfo) -> int:
    """What the names of a worker take."""
    return sum(_NAME_BYTES + len(name.encode()) for name in (*info.queues, *(info.types or ())))
