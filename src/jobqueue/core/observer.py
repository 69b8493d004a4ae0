"""Hooks: metrics listen to the engine and the stores, tests step in at named places."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from jobqueue.core.lifecycle import State
from jobqueue.core.store import Lag


class Observer:
    """Ignores everything; metrics override the methods that they count.

    The engine and the stores call it once for a batch, never once for a job, from any thread.
    """

    def entered(self, queue: str, state: State, count: int) -> None:
        """Jobs of a queue entered a state."""

    def ran(self, queue: str, seconds: Sequence[float]) -> None:
        """Attempts ended after running for these times."""

    def scheduled(self, seconds: float, assigned: dict[str, int]) -> None:
        """A scheduling cycle ended; ``assigned`` counts jobs by queue."""

    def queried(self, name: str, seconds: float) -> None:
        """A statement of the store ended."""

    def locked(self, operation: str, seconds: float) -> None:
        """The lock server answered a call."""

    def lock_failed(self, error: str) -> None:
        """A call to the lock server failed: ``timeout``, ``connection``, ``refused`` …"""

    def locks_up(self, up: bool) -> None:
        """The lock server went away or came back."""

    def published(self, topic: str, count: int) -> None:
        """Records are safe in the event stream."""

    def publish_failed(self, topic: str, count: int) -> None:
        """Records were refused, or wait because the event stream does not answer."""

    def stream_lag(self, lag: Lag | None) -> None:
        """The event stream is this far behind; None: another server publishes."""

    def stream_refused(self, refused: bool) -> None:
        """Publishing stopped (or resumed): the topics hold (no longer) another store's records."""

    def hints_dropped(self, count: int) -> None:
        """Hints were repeated or too late, as the store showed."""

    def leading(self, epoch: int | None) -> None:
        """This process leads in this epoch; None: it stands by."""


_armed: dict[str, Callable[[], Awaitable[None]]] = {}


async def reach(failpoint: str) -> None:
    """Pass a failpoint, and run the action that a test has armed it with."""
    action = _armed.get(failpoint)
    if action is not None:
        await action()


@contextmanager
def armed(failpoint: str, action: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Run ``action`` each time the failpoint is passed, while the block runs."""
    _armed[failpoint] = action
    try:
        yield
    finally:
        del _armed[failpoint]
