"""A queue's claimable jobs: one heap of sequence numbers for each priority.

As long as every claim means all types that are here, they stay together. The first claim that
does not sorts them by type, one heap for each priority and type, until nothing is left: from then
on jobs of other types are never looked at.

An entry whose job is no longer claimable stays until it is popped, or until such entries
outnumber the rest; so the cost per job stays bounded however many are cancelled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

from jobqueue.core.queue import MAX_PRIORITY
from jobqueue.core.weights import share

SLACK = 1024  # dead entries that are not worth a rebuild

Types = frozenset[str] | None
Lanes = dict[str, list[int]]


class Ready:
    """Sequence numbers in claim order. ``type_of`` is None for a job that is claimable no more."""

    __slots__ = ("_counts", "_covered", "_dead", "_heads", "_heaps", "_lanes", "_size", "_type_of")

    def __init__(self, type_of: Callable[[int], str | None]) -> None:
        self._type_of = type_of
        self._heaps: list[list[int]] = [[] for _ in range(MAX_PRIORITY + 1)]  # highest first
        self._lanes: list[Lanes] | None = None  # in place of the heaps, once they were sorted
        # Beside the lanes, once a claim of all types was there: for each lane an entry that is not
        # behind its first job, so that such a claim does not look at every lane.
        self._heads: list[list[tuple[int, str]]] | None = None
        self._counts: dict[str, int] = {}  # claimable jobs by type; 0: there were some
        self._covered: Types = None  # a list of types that has all of these
        self._size = 0
        self._dead = 0

    def push(self, priority: int, seq: int, type: str) -> None:
        """A job became claimable."""
        rank = MAX_PRIORITY - priority
        count = self._counts.get(type)
        if count is None:
            count = 0
            self._covered = None
        self._counts[type] = count + 1
        if self._lanes is None:
            heapq.heappush(self._heaps[rank], seq)
        else:
            lane = self._lanes[rank].setdefault(type, [])
            heapq.heappush(lane, seq)
            if self._heads is not None and lane[0] == seq:
                self._add_head(rank, seq, type)
        self._size += 1

    def bury(self, type: str) -> None:
        """A claimable job was taken away other than by ``pop``."""
        self._counts[type] -= 1
        self._dead += 1
        if self._dead > SLACK and self._dead * 2 > self._size:
            # A job can be in twice if it left and came back; once is enough.
            alive = [sorted({s for s in self._all(rank) if self._alive(s)}) for rank in _RANKS]
            self._heaps, self._lanes, self._heads = alive, None, None
            self._size = sum(map(len, alive))
            self._dead = 0

    def head(self, types: Types) -> tuple[int, int] | None:
        """(rank, seq) of the next job of these types: the lower, the sooner."""
        if self._lanes is not None or not (
            types is None or types is self._covered or self._cover(types)
        ):
            return self._head_of(types)
        for rank, heap in enumerate(self._heaps):
            while heap:
                if self._type_of(heap[0]) is not None:
                    return rank, heap[0]
                self._drop(heap)
        return None

    def pop(self, rank: int, weights: Mapping[int, int] | None, types: Types) -> int:
        """Take the next job: strictly by priority, or by weight. ``rank``: as ``head`` found it."""
        if weights:
            rank = self._draw(weights, types)
        self._size -= 1
        if self._lanes is None:
            seq = heapq.heappop(self._heaps[rank])
            type = self._type_of(seq)
        else:
            type = self._first(rank, types)
            assert type is not None
            seq = _take(self._lanes[rank], type)
        self._counts[type or ""] -= 1
        return seq

    def counts(self, count_to: int) -> dict[str, int]:
        """The claimable jobs by type, each counted up to a limit."""
        return {type: min(count, count_to) for type, count in self._counts.items() if count}

    def _alive(self, seq: int) -> bool:
        return self._type_of(seq) is not None

    def _all(self, rank: int) -> Iterable[int]:
        if self._lanes is None:
            return self._heaps[rank]
        return (seq for lane in self._lanes[rank].values() for seq in lane)

    def _cover(self, types: frozenset[str]) -> bool:
        """Whether these are all types that are here; if not, sort by type."""
        self._counts = {type: count for type, count in self._counts.items() if count}
        if self._counts.keys() <= types:
            self._covered = types
            return True
        self._lanes = [{} for _ in _RANKS]
        for rank, heap in enumerate(self._heaps):
            for seq in sorted(set(heap)):
                if (type := self._type_of(seq)) is not None:
                    self._lanes[rank].setdefault(type, []).append(seq)
            heap.clear()
        self._size = sum(len(lane) for lanes in self._lanes for lane in lanes.values())
        self._dead = 0
        return False

    def _head_of(self, types: Types) -> tuple[int, int] | None:
        assert self._lanes is not None
        for rank, lanes in enumerate(self._lanes):
            if lanes and (type := self._first(rank, types)) is not None:
                return rank, lanes[type][0]
        if not self._size:
            self._lanes = self._heads = None
        return None

    def _first(self, rank: int, types: Types) -> str | None:
        """The type of the next job of these types on one level."""
        assert self._lanes is not None
        lanes = self._lanes[rank]
        if types is None:
            return self._first_of_all(rank, lanes)
        best: str | None = None
        lowest = 0
        for type in _known(lanes, types):
            lane = lanes[type]
            if self._type_of(lane[0]) is None:
                self._drop_dead(lanes, type)
            if lane and (best is None or lane[0] < lowest):
                best, lowest = type, lane[0]
        return best

    def _first_of_all(self, rank: int, lanes: Lanes) -> str | None:
        if self._heads is None:
            assert self._lanes is not None
            self._heads = [_heads_of(some) for some in self._lanes]
        heads = self._heads[rank]
        while heads:
            seq, type = heads[0]
            lane = lanes.get(type)
            if lane:
                self._drop_dead(lanes, type)
            if not lane:
                heapq.heappop(heads)
            elif lane[0] == seq:
                return type
            else:  # its first jobs were taken
                heapq.heapreplace(heads, (lane[0], type))
        return None

    def _drop_dead(self, lanes: Lanes, type: str) -> None:
        lane = lanes[type]
        while lane and not self._alive(lane[0]):
            _take(lanes, type)
            self._size -= 1
            self._dead = max(0, self._dead - 1)

    def _add_head(self, rank: int, seq: int, type: str) -> None:
        assert self._lanes is not None
        assert self._heads is not None
        heads, lanes = self._heads[rank], self._lanes[rank]
        heapq.heappush(heads, (seq, type))
        if len(heads) > 2 * len(lanes) + SLACK:  # most are of lanes that were emptied since
            self._heads[rank] = _heads_of(lanes)

    def _draw(self, weights: Mapping[int, int], types: Types) -> int:
        present = [MAX_PRIORITY - rank for rank in _RANKS if self._has(rank, types)]
        return MAX_PRIORITY - next(iter(share(weights, present, 1)))

    def _has(self, rank: int, types: Types) -> bool:
        if self._lanes is not None:
            return self._first(rank, types) is not None
        heap = self._heaps[rank]
        while heap and not self._alive(heap[0]):
            self._drop(heap)
        return bool(heap)

    def _drop(self, heap: list[int]) -> None:
        heapq.heappop(heap)
        self._size -= 1
        self._dead = max(0, self._dead - 1)


_RANKS = range(MAX_PRIORITY + 1)


def _take(lanes: Lanes, type: str) -> int:
    lane = lanes[type]
    seq = heapq.heappop(lane)
    if not lane:
        del lanes[type]
    return seq


def _heads_of(lanes: Lanes) -> list[tuple[int, str]]:
    return sorted((lane[0], type) for type, lane in lanes.items())


def _known(lanes: Lanes, types: frozenset[str]) -> list[str]:
    """The types of these lanes that are meant."""
    if len(lanes) < len(types):
        return [type for type in lanes if type in types]
    return [type for type in types if type in lanes]
