"""What the engine and the stores tell about themselves. Metrics implement it; the default is deaf.

Called once for a batch, never once for a job, and from any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobqueue.core.lifecycle import State


class Observer(Protocol):
    """Listens to what happens."""

    def entered(self, queue: str, state: State, count: int) -> None:
        """Jobs of a queue entered a state."""
        ...

    def ran(self, queue: str, seconds: Sequence[float]) -> None:
        """Attempts ended after running that long."""
        ...

    def scheduled(self, seconds: float, assigned: dict[str, int]) -> None:
        """A scheduling cycle ended; jobs assigned by queue."""
        ...

    def queried(self, name: str, seconds: float) -> None:
        """A statement of the store ended."""
        ...


class Deaf:
    """An observer that ignores everything."""

    def entered(self, queue: str, state: State, count: int) -> None:
        """Ignore."""

    def ran(self, queue: str, seconds: Sequence[float]) -> None:
        """Ignore."""

    def scheduled(self, seconds: float, assigned: dict[str, int]) -> None:
        """Ignore."""

    def queried(self, name: str, seconds: float) -> None:
        """Ignore."""
