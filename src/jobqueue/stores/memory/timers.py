"""When waiting jobs are due: retries, expiries, delays."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from jobqueue.stores.memory.ready import SLACK
from jobqueue.stores.memory.records import Record

Timer = tuple[float, int, int]
"""due, seq, version: it counts only while the job is still at that version."""


class Timers:
    """A heap of times; entries that no longer count are swept out as it grows."""

    def __init__(self, look_up: Callable[[int], Record | None]) -> None:
        self._look_up = look_up
        self._heap: list[Timer] = []
        self._kept = 0

    def arm(self, record: Record) -> None:
        """Wake for this record when it is due."""
        if record.due is None:
            return
        heapq.heappush(self._heap, (record.due, record.seq, record.version))
        if len(self._heap) > 2 * self._kept + SLACK:
            self._heap = [timer for timer in self._heap if self._armed(timer) is not None]
            heapq.heapify(self._heap)
            self._kept = len(self._heap)

    def next_at(self) -> float | None:
        """When the next record is due."""
        while self._heap and self._armed(self._heap[0]) is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Record | None:
        """Take the next record that is due."""
        at = self.next_at()
        if at is None or at > now:
            return None
        return self._armed(heapq.heappop(self._heap))

    def _armed(self, timer: Timer) -> Record | None:
        due, seq, version = timer
        record = self._look_up(seq)
        if record is None or record.version != version or record.lease is not None:
            return None
        return record if record.due == due else None
