"""Limit the size of the lists of types and queues that workers register with."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar
from weakref import WeakValueDictionary

from jobqueue.core.errors import too_many_names
from jobqueue.core.job import Held, Worker, WorkerInfo, WorkerStatus, is_limited
from jobqueue.core.store import WorkerStore
from jobqueue.core.waiting import WORKER, in_turns, turn

_Registration = tuple[str, int, int]
MIB = 1024 * 1024
MAX_OWNER_BYTES = 128 * MIB  # in memory, of all workers of one owner
_NAME_BYTES = 64  # of a name in memory beside its text
_FEW_BYTES = 8 * 1024  # workers with fewer are not checked: their number is limited
# In a list of workers: of one worker, of all workers, and what one worker may have in any case.
_SHOWN_BYTES = 64 * 1024
_ALL_SHOWN_BYTES = 16 * MIB
_LEAST_SHOWN_BYTES = 256
_READ_AT_ONCE = 20  # workers whose names are read together; each may have thousands
T = TypeVar("T")


class WorkerNames:
    """Registers workers, and limits the memory for the lists of all workers of an owner."""

    def __init__(self, workers: WorkerStore, most: int = MAX_OWNER_BYTES) -> None:
        self._workers = workers
        self._most = most
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by owner
        self._sizes: dict[_Registration, int] = {}  # of the registrations measured before

    async def register(self, info: WorkerInfo) -> list[Held]:
        if not is_limited(info.owner) or _size(info) <= _FEW_BYTES:
            return await self._workers.register(info)
        lock = self._locks.get(info.owner)
        if lock is None:
            lock = self._locks[info.owner] = asyncio.Lock()
        async with lock:  # one registration of an owner at a time
            await self._make_room(info)
            return await self._workers.register(info)

    async def _make_room(self, info: WorkerInfo) -> None:
        await turn()
        workers = await self._workers.all(names=False)
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
            if gone and await self._workers.forget(worker.info.id):
                over -= size
        if over > 0:
            raise too_many_names(info.owner, self._most)
        if len(self._sizes) > 2 * len(workers):
            here = {_registration(worker.info) for worker in workers}
            self._sizes = {one: size for one, size in self._sizes.items() if one in here}

    async def _count(self, infos: list[WorkerInfo]) -> list[int]:
        sizes = self._sizes
        new = [info.id for info in infos if _registration(info) not in sizes]
        for part in _parts(new):
            found = await self._workers.infos(part)
            for info, size in zip(found, await in_turns(_size, found, WORKER), strict=True):
                sizes[_registration(info)] = size
        # A worker that has registered anew meanwhile, or has left, is not counted.
        return [sizes.get(_registration(info), 0) for info in infos]


async def list_shortened(workers: WorkerStore) -> list[Worker]:
    """Return every worker, with lists of names that are shortened if they are long.

    So one message has room for all. The names of a few workers are read at a time.
    """
    found = await workers.all(names=False)
    each = max(_LEAST_SHOWN_BYTES, min(_SHOWN_BYTES, _ALL_SHOWN_BYTES // (len(found) or 1)))
    listed: list[Worker] = []
    for part in _parts(found):
        infos = {info.id: info for info in await workers.infos([one.info.id for one in part])}
        there = [
            dataclasses.replace(worker, info=infos[worker.info.id])
            for worker in part
            if worker.info.id in infos  # else it has left meanwhile
        ]
        listed += await in_turns(lambda worker: _shortened(worker, each), there, WORKER)
    return listed


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + _READ_AT_ONCE] for start in range(0, len(items), _READ_AT_ONCE))


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
    first: list[str] = []
    size = 0
    for name in names:
        size += len(name.encode())
        if first and size > most:
            break
        first.append(name)
    return first


def _size(info: WorkerInfo) -> int:
    names = (*info.queues, *(info.types or ()))
    return _NAME_BYTES * len(names) + len("".join(names).encode())


def _registration(info: WorkerInfo) -> _Registration:
    return info.id, info.incarnation, info.link
