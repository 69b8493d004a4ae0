"""Keeps the lowest number at which each worker may hold a job, and the ids of jobs in held rows.

Every job that ends leaves a dead entry in the index of held jobs, and a long transaction anywhere
in the database keeps it there (see ``heads.py``). The whole index is read while this is fast. Once
it is slow, held jobs are read from each worker's lowest job number on. The claims of this process
lower these numbers, and a rare full look finds the claims of other processes. A job that runs for
long keeps its worker's number low. Then these reads are slow, and the sweeper reads less often.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from jobqueue.core.job import Assignment
from jobqueue.stores.postgres.heads import NOTHING_NEW
from jobqueue.stores.postgres.leases import base_of

_SLOW = 0.02
_COSTLY = 0.25  # not even an operator's question is worth it
_MOST_ROWS = 20_000  # whose ids are kept
_SHARE = 20  # slow looks take at most a twentieth of the time


class Holding:
    """Keeps the lowest job number that each worker holds, by the worker's number.

    Any thread may read these floors; only the event loop changes them.
    """

    def __init__(self) -> None:
        self._floors: dict[int, int] = {}
        self._meanwhile: dict[int, int] = {}
        self._looked_at = float("-inf")
        self._took = 0.0
        self._readable_at = float("-inf")
        self.slow = False
        self._ids: dict[int, dict[int, str]] = {}  # by the base of held rows

    def claimed(self, assigned: Sequence[Assignment], numbers: Mapping[str, int]) -> None:
        """Record that a claim assigned these jobs."""
        lowest: dict[str, int] = {}
        for one in assigned:
            if one.seq < lowest.get(one.worker_id, one.seq + 1):
                lowest[one.worker_id] = one.seq
            if (base := base_of(one.seq, one.lease)) is not None:
                self._ids.setdefault(base, {})[one.seq] = one.id
        while len(self._ids) > _MOST_ROWS:
            del self._ids[next(iter(self._ids))]
        for name, seq in lowest.items():
            worker = numbers.get(name)
            if worker is None:  # the cache of numbers was emptied meanwhile: a full look finds it
                self._looked_at = float("-inf")
                continue
            for floors in (self._floors, self._meanwhile):
                floors[worker] = min(seq, floors.get(worker, seq))

    def ids(self, base: int) -> dict[int, str] | None:
        """Return the ids, by number, of the jobs in the held row with this base.

        Jobs that have left the row are missing, as far as this process knows. Return None if
        another process made the row, or if the ids of the row were dropped to save memory.
        """
        return self._ids.get(base)

    def left(self, base: int, seqs: Iterable[int], *, all: bool = False) -> None:
        """Forget the ids of jobs that have left a held row, or of the whole row (``all``)."""
        ids = self._ids.get(base)
        if ids is None:
            return
        if all:
            del self._ids[base]
            return
        for seq in seqs:
            ids.pop(seq, None)
        if not ids:
            self._ids[base] = {}  # an emptied dictionary keeps its memory

    def measured(self, took: float) -> None:
        """Record how many seconds it took to read all held jobs."""
        if took > _SLOW and not self.slow:
            self.slow = True
            self._looked_at = float("-inf")

    def wants_look(self) -> bool:
        """Return True if it is time for a full look."""
        return time.monotonic() >= self._looked_at + _SHARE * self._took

    def begin(self) -> None:
        """Record that a full look begins. It may miss jobs that are claimed from now on."""
        self._meanwhile.clear()

    def looked(self, found: Iterable[tuple[int, int]], took: float) -> None:
        """Record the lowest number of each worker, as a full look found it in ``took`` seconds."""
        floors = dict(found)
        for worker, seq in self._meanwhile.items():
            floors[worker] = min(seq, floors.get(worker, seq))
        self._floors = floors
        self._looked_at = time.monotonic()
        self._took = took
        self.slow = took > _SLOW

    @property
    def costly(self) -> bool:
        """Return True if a full look takes too long even when an operator lists the workers."""
        return self.slow and self._took > _COSTLY

    def pause(self) -> float:
        """Return for how many seconds the sweeper should not read the held jobs again."""
        return max(0.0, self._readable_at - time.monotonic())

    def read(self, found: Iterable[tuple[int, int]], took: float) -> None:
        """Record held jobs that were read from the floors on, and how many seconds that took.

        The lowest job of each worker is the worker's new floor.
        """
        if took > _SLOW:
            self._readable_at = time.monotonic() + _SHARE * took
        floors: dict[int, int] = {}
        for worker, seq in [*found, *self._meanwhile.items()]:
            floors[worker] = min(seq, floors.get(worker, seq))
        self._floors = floors

    def floor(self, worker: int | None) -> int:
        """Return the number from which to read a worker's jobs: 0 while reading all is fast."""
        if not self.slow or worker is None:
            return 0
        return self._floors.get(worker, NOTHING_NEW)

    def columns(self) -> tuple[list[int], list[int]]:
        """Return the workers' numbers and, in the same order, their floors."""
        floors = dict(self._floors)
        return list(floors), list(floors.values())
