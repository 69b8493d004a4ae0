"""Per-job locks that advise the dispatch of several servers; they never decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobqueue.core.job import ComponentHealth


class Locks(Protocol):
    """Keeps two servers from reaching for the same jobs."""

    async def open(self) -> None:
        """Make ready. Never raises because the other side is away."""
        ...

    async def close(self) -> None:
        """Release everything."""
        ...

    async def take(self, names: Sequence[str], wanted: int) -> list[int] | None:
        """Positions of the names won, in order, at most ``wanted``; None: go on without."""
        ...

    def health(self) -> ComponentHealth:
        """How it is, for people."""
        ...
