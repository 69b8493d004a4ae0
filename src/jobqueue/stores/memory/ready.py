"""The claimable jobs of a queue: a heap of sequence numbers for each priority and type.

An entry whose job is no longer claimable stays until it comes first, or until such entries
outnumber the others: so the cost of a job stays bounded however many jobs are cancelled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from jobqueue.core.queue import MAX_PRIORITY, share

SLACK = 1024  # so many dead entries are not worth a rebuild
_RANKS = range(MAX_PRIORITY + 1)  # the highest priority first

Types = frozenset[str] | None
First = tuple[int, int, str]
"""The next job: its rank, its number and its type."""


class _Heap(list[int]):
    """The jobs of one rank and type; ``entry`` is its number in ``_firsts``."""

    __slots__ = ("entry",)
    entry: int


class ReadyJobs:
    """Sequence numbers in claim order. ``type_of`` returns None for a job that is not claimable."""

    __slots__ = ("_counts", "_covered", "_dead", "_firsts", "_heaps", "_size", "_type_of")

    def __init__(self, type_of: Callable[[int], str | None]) -> None:
        self._type_of = type_of
        self._heaps: list[dict[str, _Heap]] = [{} for _ in _RANKS]
        # For claims of all types, which must not look at each: a heap of types for each rank, by a
        # number that is not behind their first job. Other entries than a type's latest are dead.
        self._firsts: list[list[tuple[int, str]]] = [[] for _ in _RANKS]
        self._counts: dict[str, int] = {}  # claimable jobs by type
        self._covered: Types = None  # a list of types that has all of these
        self._size = 0
        self._dead = 0

    def push(self, priority: int, seq: int, type: str) -> None:
        """Add a job that became claimable."""
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
        """Count a claimable job that was taken away other than by ``take``."""
        self._count_left(type)
        self._dead += 1
        if self._dead > SLACK and self._dead * 2 > self._size:
            for rank in _RANKS:
                self._rebuild(rank)
            self._dead = 0

    def first(self, types: Types) -> First | None:
        """Return the next job of these types by priority."""
        types = self._not_covered(types)
        for rank, heaps in enumerate(self._heaps):
            if heaps and (found := self._next(rank, types)) is not None:
                return rank, *found
        return None

    def draw(self, weights: Mapping[int, int], types: Types) -> First:
        """Return the next job of a priority that is drawn by weight; there must be a job."""
        types = self._not_covered(types)
        present = {
            MAX_PRIORITY - rank: (rank, *found)
            for rank, heaps in enumerate(self._heaps)
            if heaps and (found := self._next(rank, types)) is not None
        }
        return present[next(iter(share(weights, list(present), 1)))]

    def take(self, rank: int, type: str) -> None:
        """Remove the first job of a rank and a type: it is claimed."""
        self._count_left(type)
        heap, firsts = self._pop(rank, type), self._firsts[rank]
        if heap and heap.entry == firsts[0][0]:
            heap.entry = heap[0]
            heapq.heapreplace(firsts, (heap.entry, type))

    def counts(self, count_to: int) -> dict[str, int]:
        """Return the number of claimable jobs of each type, counted up to a limit."""
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
        """Return None for types that all jobs here are of."""
        if types is None or types is self._covered:
            return None
        if self._counts.keys() <= types:
            self._covered = types
            return None
        return types

    def _next(self, rank: int, types: Types) -> tuple[int, str] | None:
        """Return number and type of the next claimable job of a rank, of one of these types."""
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
        """Return the first claimable job of a rank and a type; drop the dead ones before it."""
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
            # A job can be in twice if it left and came back; once is enough.
            alive = sorted({seq for seq in heap if self._type_of(seq) is not None})
            self._size -= len(heap) - len(alive)
            if alive:
                kept[type] = _Heap(alive)
                kept[type].entry = alive[0]
        self._heaps[rank] = kept
        self._firsts[rank] = sorted((heap.entry, type) for type, heap in kept.items())
