"""Locks that advise dispatch. They keep servers out of each other's way and never decide.

A claim reads candidates, takes their locks, and writes the assignments of those it won. Whether a
job is really assigned is decided by that write alone: a lock that is lost, doubled or missing
costs time, never a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobqueue.core.job import ComponentHealth


class Locks(Protocol):
    """Per-job locks for a whole batch. Nothing here raises because their server is away."""

    async def open(self) -> None:
        """Connect if that is possible now; otherwise it is tried again in the background."""
        ...

    async def close(self) -> None:
        """Release everything. May be called twice, or before open. Held locks run out."""
        ...

    async def take(self, names: Sequence[str], wanted: int) -> list[int] | None:
        """Lock names in order until ``wanted`` are won; returns the positions of those won.

        None: no answer in time, go on without. A name is text without white space that is used
        once, like a job's id and the number of its next attempt: nobody gives a lock back, it
        runs out. Whoever holds a lock wins it again, so that a write that failed can be repeated.
        """
        ...

    def health(self) -> ComponentHealth:
        """Whether the locks work; the detail says what it means when they do not."""
        ...
