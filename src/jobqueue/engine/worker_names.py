"""How much the types and queues that workers name may take, registered and in lists."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from weakref import WeakValueDictionary

from jobqueue.core.errors import too_many_names
from jobqueue.core.job import Held, Worker, WorkerInfo, WorkerStatus, is_limited
from jobqueue.core.store import Store
from jobqueue.core.waiting import WORKER, in_turns, turn

_Registration = tuple[str, int, int]
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
        self._sizes: dict[_Registration, int] = {}  # of those that were counted

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
        await turn()
        workers = await self._store.workers()
        others = [
            worker
            for worker in workers
            if worker.info.owner == info.owner and worker.info.id != info.id
        ]
        sizes = await self._count([worker.info for worker in others])
        over = _size(info) + sum(sizes) - self._most
        for worker, size in zip(others, sizes, strict=True):
            if over <= 0:
                break
            gone = worker.status is WorkerStatus.OFFLINE and not worker.running
            if gone and await self._store.forget_worker(worker.info.id):
                over -= size
        if over > 0:
            raise too_many_names(info.owner, self._most)
        if len(self._sizes) > 2 * len(workers):
            here = {_registration(worker.info) for worker in workers}
            self._sizes = {one: size for one, size in self._sizes.items() if one in here}

    async def _count(self, infos: list[WorkerInfo]) -> list[int]:
        """What the names of each take. A registration is counted once."""
        sizes = self._sizes
        new = [info for info in infos if _registration(info) not in sizes]
        for info, size in zip(new, await in_turns(_size, new, WORKER), strict=True):
            sizes[_registration(info)] = size
        return [sizes[_registration(info)] for info in infos]


async def shorten(workers: list[Worker]) -> list[Worker]:
    """Leave long lists of names out in part, so that a list of all workers can be sent and read."""
    each = max(_LEAST_SHOWN_BYTES, min(_SHOWN_BYTES, _ALL_SHOWN_BYTES // (len(workers) or 1)))
    return await in_turns(lambda worker: _shortened(worker, each), workers, WORKER)


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
    names = (*info.queues, *(info.types or ()))
    return _NAME_BYTES * len(names) + len("".join(names).encode())


def _registration(info: WorkerInfo) -> _Registration:
    return info.id, info.incarnation, info.link
