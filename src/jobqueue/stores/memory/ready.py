"""A queue's claimable jobs: one heap of sequence numbers for each priority.

An entry whose job is no longer claimable stays until it is popped, or until such entries
outnumber the rest; so the cost per job stays bounded however many are cancelled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from jobqueue.core.job import MAX_PRIORITY
from jobqueue.core.weights import share

SLACK = 1024  # dead entries that are not worth a rebuild


class Ready:
    """Sequence numbers in claim order."""

    __slots__ = ("_alive", "_dead", "_heaps", "_size")

    def __init__(self, alive: Callable[[int], bool]) -> None:
        self._alive = alive
        self._heaps: list[list[int]] = [[] for _ in range(MAX_PRIORITY + 1)]  # highest first
        self._size = 0
        self._dead = 0

    def push(self, priority: int, seq: int) -> None:
        """A job became claimable."""
        heapq.heappush(self._heaps[MAX_PRIORITY - priority], seq)
        self._size += 1

    def bury(self) -> None:
        """A claimable job was taken away other than by ``pop``."""
        self._dead += 1
        if self._dead > SLACK and self._dead * 2 > self._size:
            # A job can be in twice if it left and came back; once is enough.
            self._heaps = [sorted({s for s in heap if self._alive(s)}) for heap in self._heaps]
            self._size = sum(map(len, self._heaps))
            self._dead = 0

    def head(self) -> tuple[int, int] | None:
        """(rank, seq) of the next job: the lower, the sooner."""
        for rank, heap in enumerate(self._heaps):
            while heap:
                if self._alive(heap[0]):
                    return rank, heap[0]
                self._drop(heap)
        return None

    def pop(self, weights: Mapping[int, int] | None) -> int:
        """Take the next job: strictly by priority, or by weight. Call after ``head`` found one."""
        rank = next(rank for rank, heap in enumerate(self._heaps) if heap)
        if weights:
            rank = self._draw(weights)
        self._size -= 1
        return heapq.heappop(self._heaps[rank])

    def _draw(self, weights: Mapping[int, int]) -> int:
        for heap in self._heaps:
            while heap and not self._alive(heap[0]):
                self._drop(heap)
        present = [MAX_PRIORITY - rank for rank, heap in enumerate(self._heaps) if heap]
        return MAX_PRIORITY - next(iter(share(weights, present, 1)))

    def _drop(self, heap: list[int]) -> None:
        heapq.heappop(heap)
        self._size -= 1
        self._dead = max(0, self._dead - 1)
