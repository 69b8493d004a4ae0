"""Apply the limits of a queue to the claims of one write in the memory store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from jobqueue.core.job import Assignment
from jobqueue.core.store import Claimed
from jobqueue.core.turns import KeyAllowances, Turns
from jobqueue.stores.memory.contents import MemoryQueue
from jobqueue.stores.memory.keyed import KeyLine, lines_of
from jobqueue.stores.memory.ready import First, Types


class LimitedClaim:
    """Counts what the limits of a queue still allow, and chooses its jobs if keys matter."""

    def __init__(self, queue: MemoryQueue, now: float) -> None:
        assert queue.limits is not None
        self._queue = queue
        self._limits = limits = queue.limits
        self.allowance = limits.allowance(queue.held, queue.full_at, now)
        self.keys: KeyAllowances[str | None] | None = None
        self._turns: Turns[str | None, KeyLine] | None = None
        if limits.keyed and (keyed := queue.keyed) is not None:
            held: dict[str | None, int] = dict(keyed.held.items())
            held[None] = queue.held - sum(held.values())
            full_at = cast("Mapping[str | None, float]", keyed.full_at)  # no job changes it
            self.keys = KeyAllowances(limits, held, full_at, now)

    @property
    def left(self) -> float:
        """Return the number of starts that the limits of the whole queue still allow."""
        return self.allowance.left

    def begin(self, types: Types) -> bool:
        """Prepare for a claim of these types. Return False if the limits allow no start."""
        queue = self._queue
        if self.keys is not None and queue.keyed is not None:
            lines = [*lines_of(None, queue.ready, types), *queue.keyed.lines(types)]
            weights = queue.settings.priority_weights
            self._turns = Turns(lines, self.keys, self._limits.shares, weights)
        return self.left > 0

    def first(self, types: Types) -> First | None:
        """Return the most urgent job that the limits allow, or None."""
        if self._turns is None:
            return self._queue.first(types)
        found = self._turns.urgency()
        return None if found is None else (*found, "")

    def next(self) -> KeyLine | None:
        """Return the line whose first job is next, or None if the claim need not ask."""
        return None if self._turns is None else self._turns.next()

    def took(self, line: KeyLine | None, *, started: bool) -> None:
        """Record that a job was taken, from the line that was next, and perhaps started."""
        if started:
            self.allowance.started += 1
        if line is not None and self._turns is not None:
            line.look()
            self._turns.took(line, started=started)


def finished(
    assigned: list[Assignment], limited: Mapping[MemoryQueue, LimitedClaim], now: float
) -> list[Assignment]:
    """Store the new state of the queues' buckets, and return what the claims got."""
    held_back: dict[str, float] = {}
    for queue, claim in limited.items():
        if (full_at := claim.allowance.full_at) is not None:
            queue.full_at = full_at
        opens_in = None if claim.allowance.left else claim.allowance.opens_in
        if claim.keys is not None and queue.keyed is not None:
            spent = {key: at for key, at in claim.keys.spent.items() if key is not None}
            queue.keyed.spend(spent, now)
            opens_in = claim.keys.opens_in if opens_in is None else opens_in
        if opens_in is not None and queue.waits:
            held_back[queue.settings.name] = opens_in
    return Claimed(assigned, held_back) if held_back else assigned
