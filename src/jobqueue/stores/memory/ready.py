"""Keep the claimable jobs of a queue: a heap of job numbers for each priority and type.

A *dead* entry is that of a job that is no longer claimable. A dead entry stays until it is the
first of its heap, or until more than half of all entries are dead. So the cost of each job is
bounded, even if most jobs are cancelled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from jobqueue.core.queue import MAX_PRIORITY, share

SLACK = 1024  # a rebuild is not worth its cost for fewer dead entries
_RANKS = range(MAX_PRIORITY + 1)  # the highest priority first

Types = frozenset[str] | None
First = tuple[int, int, str]
"""The rank, the number and the type of the next job. The highest priority has rank 0."""


class _Heap(list[int]):
    """Holds the numbers of a queue's jobs of one priority and type."""

    __slots__ = ("entry",)
    entry: int  # of this heap in ``ReadyJobs._firsts``; not above the number of the first job


class ReadyJobs:
    """Keeps the numbers of a queue's claimable jobs in claim order.

    ``type_of`` returns None for a job that is not claimable.
    """

    __slots__ = ("_counts", "_covered", "_dead", "_firsts", "_heaps", "_size", "_type_of")

    def __init__(self, type_of: Callable[[int], str | None]) -> None:
        self._type_of = type_of
        self._heaps: list[dict[str, _Heap]] = [{} for _ in _RANKS]
        # For claims of all types, which must not read the heap of each type: each rank has a heap
        # of types, ordered by a number that is not above the type's first job. Only the latest
        # entry of a type is valid.
        self._firsts: list[list[tuple[int, str]]] = [[] for _ in _RANKS]
        self._counts: dict[str, int] = {}  # claimable jobs by type
        self._covered: Types = None  # a list of types that contains all types in ``_counts``
        self._size = 0
        self._dead = 0

    def __bool__(self) -> bool:
        """Return True if there are claimable jobs."""
        return bool(self._counts)

    def push(self, priority: int, seq: int, type: str) -> None:
        """Add a job that has become claimable."""
        count = self._counts.get(type)
        if count is None:
            count, self._covered = 0, None
        self._counts[type] = count + 1
        self._size += 1
        rank = MAX_PRIORITY - priority
        heaps = self._heaps[rank]
        heap = heaps.get(type)
        if heap is None:
            heap = heaps[type] = _Heap((seq,))
        else:
            heapq.heappush(heap, seq)
            if heap.entry <= seq:
                return
        heap.entry = seq
        heapq.heappush(self._firsts[rank], (seq, type))
        if len(self._firsts[rank]) > 2 * len(heaps) + SLACK:
            self._rebuild(rank)

    def bury(self, type: str) -> None:
        """Record that a job of a type is no longer claimable, though it was not claimed."""
        self._count_left(type)
        self._dead += 1
        if self._dead > SLACK and self._dead * 2 > self._size:
            for rank in _RANKS:
                self._rebuild(rank)
            self._dead = 0

    def first(self, types: Types) -> First | None:
        """Return the next job of the given types in order of priority, or None."""
        types = self._not_covered(types)
        for rank, heaps in enumerate(self._heaps):
            if heaps and (found := self._next(rank, types)) is not None:
                return rank, *found
        return None

    def has(self, rank: int) -> bool:
        """Return True if there may be claimable jobs of a rank."""
        return bool(self._heaps[rank])

    def first_of(self, rank: int, types: Types) -> tuple[int, str] | None:
        """Return number and type of the next job of a rank and the given types, or None."""
        return self._next(rank, self._not_covered(types)) if self._heaps[rank] else None

    def draw(self, weights: Mapping[int, int], types: Types) -> First:
        """Choose a priority at random by its weight and return the next job of this priority.

        At least one job of the given types must be claimable.
        """
        types = self._not_covered(types)
        present = {
            MAX_PRIORITY - rank: (rank, *found)
            for rank, heaps in enumerate(self._heaps)
            if heaps and (found := self._next(rank, types)) is not None
        }
        return present[next(iter(share(weights, list(present), 1)))]

    def take(self, rank: int, type: str) -> None:
        """Remove the first job of a priority's rank and a type, because it is claimed."""
        self._count_left(type)
        heap, firsts = self._pop(rank, type), self._firsts[rank]
        if heap and heap.entry == firsts[0][0]:
            heap.entry = heap[0]
            heapq.heapreplace(firsts, (heap.entry, type))

    def counts(self, count_to: int) -> dict[str, int]:
        """Return the number of claimable jobs by type, each number limited to ``count_to``."""
        return {type: min(count, count_to) for type, count in self._counts.items()}

    def _count_left(self, type: str) -> None:
        self._counts[type] -= 1
        if not self._counts[type]:
            del self._counts[type]

    def _pop(self, rank: int, type: str) -> _Heap:
        self._size -= 1
        heap = self._heaps[rank][type]
        heapq.heappop(heap)
        if not heap:
            del self._heaps[rank][type]
        return heap

    def _not_covered(self, types: Types) -> Types:
        """Return ``types``, or None (all types) if no claimable job has another type."""
        if types is None or types is self._covered:
            return None
        if self._counts.keys() <= types:
            self._covered = types
            return None
        return types

    def _next(self, rank: int, types: Types) -> tuple[int, str] | None:
        """Return the number and type of the next claimable job of a rank and the given types."""
        heaps = self._heaps[rank]
        if types is not None:
            each = [(self._alive(rank, type), type) for type in heaps.keys() & types]
            return min(((seq, type) for seq, type in each if seq is not None), default=None)
        firsts = self._firsts[rank]
        while firsts:
            first = firsts[0]
            entry, type = first
            heap = heaps.get(type)
            seq = None
            if heap and heap.entry == entry:
                seq = self._alive(rank, type) if self._dead else heap[0]
            if heap is None or seq is None:
                heapq.heappop(firsts)
            elif seq == entry:
                return first
            else:  # the job of the entry was taken
                heap.entry = seq
                heapq.heapreplace(firsts, (seq, type))
        return None

    def _alive(self, rank: int, type: str) -> int | None:
        """Return the first claimable job of a rank and a type; drop the dead entries before it."""
        heap = self._heaps[rank].get(type)
        while heap:
            if self._type_of(heap[0]) is not None:
                return heap[0]
            self._pop(rank, type)
            self._dead = max(0, self._dead - 1)
        return None

    def _rebuild(self, rank: int) -> None:
        kept: dict[str, _Heap] = {}
        for type, heap in self._heaps[rank].items():
            # A job may have two entries, if it became claimable a second time. Keep one of them.
            alive = sorted({seq for seq in heap if self._type_of(seq) is not None})
            self._size -= len(heap) - len(alive)
            if alive:
                kept[type] = _Heap(alive)
                kept[type].entry = alive[0]
        self._heaps[rank] = kept
        self._firsts[rank] = sorted((heap.entry, type) for type, heap in kept.items())
