"""Define hooks: an observer for metrics, and failpoints at which tests run an action."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from jobqueue.core.lifecycle import State
from jobqueue.core.store import Lag


class Observer:
    """Receives what the engine and the stores do. This base class ignores every call.

    Metrics override the methods that they need. The engine and the stores call a method once per
    batch, not once per job, and from any thread.
    """

    def entered(self, queue: str, state: State, count: int) -> None:
        """Record that ``count`` jobs of a queue entered a state."""

    def ran(self, queue: str, seconds: Sequence[float]) -> None:
        """Record that attempts ended; ``seconds`` has the run time of each attempt."""

    def scheduled(self, seconds: float, assigned: dict[str, int]) -> None:
        """Record a scheduling cycle; ``assigned`` has the number of jobs assigned, by queue."""

    def queried(self, name: str, seconds: float) -> None:
        """Record the duration of a statement in the store's database."""

    def locked(self, operation: str, seconds: float) -> None:
        """Record the duration of a call that the lock server answered."""

    def lock_failed(self, error: str) -> None:
        """Record that a call to the lock server failed.

        ``error`` is the kind of failure: ``timeout``, ``connection``, ``refused`` …
        """

    def locks_up(self, up: bool) -> None:
        """Record that the lock server became reachable (True) or unreachable (False)."""

    def published(self, topic: str, count: int) -> None:
        """Record that Kafka acknowledged ``count`` records of a topic."""

    def publish_failed(self, topic: str, count: int) -> None:
        """Record that Kafka refused ``count`` records of a topic, or did not answer."""

    def stream_lag(self, lag: Lag | None) -> None:
        """Record the lag of the event stream; None means that another server publishes."""

    def stream_refused(self, refused: bool) -> None:
        """Record whether publishing is stopped because another store wrote into the topics."""

    def hints_dropped(self, count: int) -> None:
        """Record that ``count`` hints were dropped because they were repeated or out of date."""

    def leading(self, epoch: int | None) -> None:
        """Record the epoch of this process's term, or None if this process does not lead."""


_armed: dict[str, Callable[[], Awaitable[None]]] = {}


async def reach(failpoint: str) -> None:
    """Run the action that a test has set for this failpoint, if any."""
    action = _armed.get(failpoint)
    if action is not None:
        await action()


@contextmanager
def armed(failpoint: str, action: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Set ``action`` to run each time code reaches the failpoint, until the block ends."""
    _armed[failpoint] = action
    try:
        yield
    finally:
        del _armed[failpoint]
