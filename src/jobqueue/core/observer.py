"""What the engine and the stores tell about themselves. Metrics implement it; the default is deaf.

Called once for a batch, never once for a job, and from any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobqueue.core.lifecycle import State
from jobqueue.core.store import Lag


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

    def locked(self, operation: str, seconds: float) -> None:
        """The locks' server answered a call."""
        ...

    def lock_failed(self, error: str) -> None:
        """A call to the locks' server failed: ``timeout``, ``connection``, ``refused`` …"""
        ...

    def locks_up(self, up: bool) -> None:
        """The locks' server went away or came back."""
        ...

    def published(self, topic: str, count: int) -> None:
        """Records are safe in the event stream."""
        ...

    def publish_failed(self, topic: str, count: int) -> None:
        """Records were refused, or wait for a stream that does not answer."""
        ...

    def stream_lag(self, lag: Lag | None) -> None:
        """How far the event stream is behind; None: it is not this server that publishes."""
        ...

    def stream_refused(self, refused: bool) -> None:
        """Whether nothing is published because the topics hold another store's records."""
        ...

    def hints_dropped(self, count: int) -> None:
        """Hints came twice, or too late: the store said so."""
        ...

    def leading(self, epoch: int | None) -> None:
        """This process leads since that epoch; None: it stands for the lead, and does not."""
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

    def locked(self, operation: str, seconds: float) -> None:
        """Ignore."""

    def lock_failed(self, error: str) -> None:
        """Ignore."""

    def locks_up(self, up: bool) -> None:
        """Ignore."""

    def published(self, topic: str, count: int) -> None:
        """Ignore."""

    def publish_failed(self, topic: str, count: int) -> None:
        """Ignore."""

    def stream_lag(self, lag: Lag | None) -> None:
        """Ignore."""

    def stream_refused(self, refused: bool) -> None:
        """Ignore."""

    def hints_dropped(self, count: int) -> None:
        """Ignore."""

    def leading(self, epoch: int | None) -> None:
        """Ignore."""
