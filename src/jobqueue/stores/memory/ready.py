"""A queue's claimable jobs: for each priority, one heap of sequence numbers for each type.

An entry whose job is no longer claimable stays until it is popped, or until such entries
outnumber the rest; so the cost per job stays bounded however many are cancelled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping

from jobqueue.core.job import MAX_PRIORITY
from jobqueue.core.weights import share

SLACK = 1024  # dead entries that are not worth a rebuild

Types = frozenset[str] | None
Lanes = dict[str, list[int]]


class Ready:
    """Sequence numbers in claim order."""

    __slots__ = ("_alive", "_dead", "_levels", "_size")

    def __init__(self, alive: Callable[[int], bool]) -> None:
        self._alive = alive
        self._levels: list[Lanes] = [{} for _ in range(MAX_PRIORITY + 1)]  # highest first
        self._size = 0
        self._dead = 0

    def push(self, priority: int, seq: int, type: str) -> None:
        """A job became claimable."""
        lanes = self._levels[MAX_PRIORITY - priority]
        lane = lanes.get(type)
        if lane is None:
            lanes[type] = [seq]
        else:
            heapq.heappush(lane, seq)
        self._size += 1

    def bury(self) -> None:
        """A claimable job was taken away other than by ``pop``."""
        self._dead += 1
        if self._dead > SLACK and self._dead * 2 > self._size:
            # A job can be in twice if it left and came back; once is enough.
            self._levels = [
                {
                    type: left
                    for type, lane in lanes.items()
                    if (left := sorted({s for s in lane if self._alive(s)}))
                }
                for lanes in self._levels
            ]
            self._size = sum(len(lane) for lanes in self._levels for lane in lanes.values())
            self._dead = 0

    def head(self, types: Types) -> tuple[int, int] | None:
        """(rank, seq) of the next job of these types: the lower, the sooner."""
        for rank, lanes in enumerate(self._levels):
            if lanes and (lane := self._first(lanes, types)) is not None:
                return rank, lane[1]
        return None

    def pop(self, rank: int, weights: Mapping[int, int] | None, types: Types) -> int:
        """Take the next job: strictly by priority, or by weight. ``rank``: as ``head`` found it."""
        if weights:
            present = [
                MAX_PRIORITY - place
                for place, lanes in enumerate(self._levels)
                if lanes and self._first(lanes, types) is not None
            ]
            rank = MAX_PRIORITY - next(iter(share(weights, present, 1)))
        lanes = self._levels[rank]
        first = self._first(lanes, types)
        assert first is not None
        self._size -= 1
        return self._take(lanes, first[0])

    def counts(self, count_to: int) -> dict[str, int]:
        """The claimable jobs by type, each counted up to a limit."""
        found: dict[str, int] = {}
        for lanes in self._levels:
            for type, lane in lanes.items():
                for seq in lane:
                    if found.get(type, 0) >= count_to:
                        break
                    if self._alive(seq):
                        found[type] = found.get(type, 0) + 1
        return found

    def _first(self, lanes: Lanes, types: Types) -> tuple[str, int] | None:
        """The type and number of the next job of these types on one level."""
        best: tuple[str, int] | None = None
        for type in _known(lanes, types):
            lane = lanes[type]
            while lane and not self._alive(lane[0]):
                self._take(lanes, type)
                self._size -= 1
                self._dead = max(0, self._dead - 1)
            if lane and (best is None or lane[0] < best[1]):
                best = type, lane[0]
        return best

    @staticmethod
    def _take(lanes: Lanes, type: str) -> int:
        lane = lanes[type]
        seq = heapq.heappop(lane)
        if not lane:
            del lanes[type]
        return seq


def _known(lanes: Lanes, types: Types) -> Iterable[str]:
    """The types of these lanes that are known; the lanes may be removed meanwhile."""
    if types is None:
        return tuple(lanes)
    fewer: Iterator[str] = (
        (type for type in tuple(lanes) if type in types)
        if len(lanes) < len(types)
        else (type for type in types if type in lanes)
    )
    return fewer
