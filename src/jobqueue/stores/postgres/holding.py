"""Keeps the lowest number at which each worker may hold a job.

As with ``heads.py``: every job that ends leaves a dead entry in the index of what is held, and a
long transaction anywhere in the database keeps it there. As long as reading that index is fast it
is read as it is. Once it is slow, what is held is read from each worker's lowest number on: this
process's claims are added to it, and a full look, seldom, finds those of others. A job that runs
for long keeps that number low; then the sweeper's looks are few as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from jobqueue.core.job import Assignment
from jobqueue.stores.postgres.heads import NOTHING_NEW

_SLOW = 0.02
_COSTLY = 0.25  # not even an operator's question is worth it
_SHARE = 20  # slow looks take at most a twentieth of the time


class Holding:
    """Lowest numbers held, by the worker's number. Read from any thread, changed on the loop."""

    def __init__(self) -> None:
        self._floors: dict[int, int] = {}
        self._meanwhile: dict[int, int] = {}
        self._looked_at = float("-inf")
        self._took = 0.0
        self._readable_at = float("-inf")
        self.slow = False

    def claimed(self, assigned: Sequence[Assignment], numbers: Mapping[str, int]) -> None:
        """These were assigned just now."""
        lowest: dict[str, int] = {}
        for one in assigned:
            if one.seq < lowest.get(one.worker_id, one.seq + 1):
                lowest[one.worker_id] = one.seq
        for name, seq in lowest.items():
            for floors in (self._floors, self._meanwhile):
                worker = numbers[name]
                floors[worker] = min(seq, floors.get(worker, seq))

    def measured(self, took: float) -> None:
        """Everything was read, in so many seconds."""
        if took > _SLOW and not self.slow:
            self.slow = True
            self._looked_at = float("-inf")

    def wants_look(self) -> bool:
        """Tell whether it is time for a full look."""
        return time.monotonic() >= self._looked_at + _SHARE * self._took

    def begin(self) -> None:
        """A full look begins: what is claimed from now on, it may not see."""
        self._meanwhile.clear()

    def looked(self, found: Iterable[tuple[int, int]], took: float) -> None:
        """It ended."""
        floors = dict(found)
        for worker, seq in self._meanwhile.items():
            floors[worker] = min(seq, floors.get(worker, seq))
        self._floors = floors
        self._looked_at = time.monotonic()
        self._took = took
        self.slow = took > _SLOW

    @property
    def costly(self) -> bool:
        """Tell whether to count only the jobs that are known here: a full look takes too long."""
        return self.slow and self._took > _COSTLY

    def pause(self) -> float:
        """For how long the sweeper should not read what is held from the floors on."""
        return max(0.0, self._readable_at - time.monotonic())

    def read(self, found: Iterable[tuple[int, int]], took: float) -> None:
        """Take in what was read from the floors on: the next read can begin higher."""
        if took > _SLOW:
            self._readable_at = time.monotonic() + _SHARE * took
        floors: dict[int, int] = {}
        for worker, seq in [*found, *self._meanwhile.items()]:
            floors[worker] = min(seq, floors.get(worker, seq))
        self._floors = floors

    def floor(self, worker: int | None) -> int:
        """Return the number from which to read a worker's jobs: 0, unless that is slow."""
        if not self.slow or worker is None:
            return 0
        return self._floors.get(worker, NOTHING_NEW)

    def columns(self) -> tuple[list[int], list[int]]:
        """Workers, and where to begin for each."""
        floors = dict(self._floors)
        return list(floors), list(floors.values())
