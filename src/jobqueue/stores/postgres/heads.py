"""Where claimable jobs may be: by queue and priority, and from which number on.

A claim leaves dead entries in the index of what is ready, and a long transaction anywhere in the
database keeps them there. So a claim begins where the one before it found its first job, not at
the beginning. Whoever makes a lower number claimable says so here; what came back (a retry, a
delayed job) lies in a stretch of its own, which is always read from its beginning. A full look,
now and then, catches what nobody told us.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable

Head = tuple[int, int]
"""A queue's number, and 9 - priority: heads sort in claim order within a queue."""

NOTHING_NEW = (1 << 62) - 1
"""A floor above every number: only what came back is read."""

_LOOK_INTERVAL = 0.5
_SLOW_LOOK = 0.02
_LOOK_SHARE = 20  # a look that is slow is made seldom: at most a twentieth of the time


class Heads:
    """One claim at a time reads and advances it; anybody may lower it at any moment."""

    def __init__(self) -> None:
        self._floors: dict[Head, int] = {}
        self._meanwhile: dict[Head, int] = {}
        self._looked_at = float("-inf")
        self._look_took = 0.0
        self._forgotten = False  # since the claim or look under way began

    def lower(self, head: Head, seq: int = NOTHING_NEW) -> None:
        """Jobs from this number on may be claimable; without one, some that came back."""
        self._floors[head] = min(seq, self._floors.get(head, seq))
        self._meanwhile[head] = min(seq, self._meanwhile.get(head, seq))

    def forget(self) -> None:
        """Something may have been missed: look before the next claim."""
        self._forgotten = True
        self._looked_at = float("-inf")
        self._look_took = 0.0

    @property
    def slow(self) -> bool:
        """Whether the last full look had to wade through dead rows."""
        return self._look_took > _SLOW_LOOK

    def begin(self) -> None:
        """A claim or a look begins: what is said from now on, it may not have seen."""
        self._meanwhile.clear()
        self._forgotten = False

    def of(self, queues: Container[int]) -> dict[Head, int]:
        """The heads of these queues that may have something, most urgent first."""
        return dict(
            sorted(
                ((head, floor) for head, floor in self._floors.items() if head[0] in queues),
                key=lambda entry: (entry[0][1], entry[0][0]),
            )
        )

    def advance(self, head: Head, floor: int | None) -> None:
        """The claim saw everything below ``floor``; None: everything there is."""
        said = self._meanwhile.get(head)
        if floor is None:
            floor = said
        elif said is not None:
            floor = min(floor, said)
        if floor is None:
            self._floors.pop(head, None)
        else:
            self._floors[head] = floor

    def wants_look(self, known: bool) -> bool:
        """Whether a full look is due; sooner if nothing is known to be there."""
        pause = _LOOK_SHARE * self._look_took
        if known:
            pause = max(pause, _LOOK_INTERVAL)
        return time.monotonic() >= self._looked_at + pause

    def looked(self, found: Iterable[tuple[int, int, int | None]], took: float) -> None:
        """A full look ended: it found these heads, each with its first fresh job."""
        if not self._forgotten:  # otherwise it may have looked too early
            self._looked_at = time.monotonic()
            self._look_took = took
        floors = {(queue, prio): NOTHING_NEW if seq is None else seq for queue, prio, seq in found}
        for head, seq in self._meanwhile.items():
            floors[head] = min(seq, floors.get(head, seq))
        self._floors = floors
