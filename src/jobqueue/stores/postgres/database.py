"""A store's ways to its server, and whose clock counts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from jobqueue.core.clock import Clock
from jobqueue.core.errors import JobQueueError
from jobqueue.core.observer import Observer
from jobqueue.stores.postgres.connections import FIXED_PLANS, READING, Connections
from jobqueue.stores.postgres.pulse import SideLoop
from jobqueue.stores.postgres.runner import Runner, Work

T = TypeVar("T")
_log = logging.getLogger("jobqueue.stores.postgres")
_CLAIM_CONNECTIONS = 2
_BEAT_CONNECTIONS = 2
# A claim lost in a crash is a job that is handed out again: it need not wait for the disk.
_UNHURRIED: Mapping[str, str] = {**FIXED_PLANS, "synchronous_commit": "off"}


class Unanswered:
    """Writes that callers wait for. How long the oldest waits says whether writes go through."""

    def __init__(self) -> None:
        self._since: dict[object, float] = {}

    @contextlib.contextmanager
    def write(self) -> Iterator[None]:
        """One is under way."""
        key = object()
        self._since[key] = time.monotonic()
        try:
            yield
        finally:
            del self._since[key]

    @property
    def seconds(self) -> float:
        """Since when the oldest one has waited."""
        return time.monotonic() - next(iter(self._since.values()), math.inf)


class Database:
    """Calls that must not wait for each other have connections of their own."""

    def __init__(
        self, dsn: str, clock: Clock | None, observer: Observer, patience: float, pool_size: int
    ) -> None:
        def runner(
            size: int, settings: Mapping[str, str], silent: Callable[[], None] | None = None
        ) -> Runner:
            return Runner(Connections(dsn, size, settings, patience), observer, patience, silent)

        self._clock = clock
        # A third for reads, which may take long; the rest for writes.
        reading = max(1, pool_size // 3)
        self.reading = runner(reading, READING, self._distrust)
        writing = max(2, pool_size - reading - _CLAIM_CONNECTIONS)
        self.writing = runner(writing, FIXED_PLANS, self._distrust)
        self.dispatching = runner(_CLAIM_CONNECTIONS, _UNHURRIED, self._distrust)
        self._beating = runner(_BEAT_CONNECTIONS, FIXED_PLANS)  # on a loop of its own
        # Connects at the leader of a stream only.
        self.streaming = runner(1, FIXED_PLANS, self._distrust)
        # A server whose connections are busy is not away.
        self.probing = runner(1, FIXED_PLANS, self._distrust)
        self._side = SideLoop()
        self.unanswered = Unanswered()

    def open(self) -> None:
        """Let calls through; connections are made as they are needed."""
        for runner in (*self._own(), self._beating):
            runner.connections.open()
        self._side.start()

    async def close(self) -> None:
        """End every connection."""
        try:
            await asyncio.to_thread(self._side.run, self._beating.connections.close())
        except JobQueueError:
            _log.debug("the heartbeats' connection did not close in time")
        await asyncio.to_thread(self._side.stop)
        for runner in self._own():
            await runner.connections.close()

    def _own(self) -> tuple[Runner, ...]:
        """What is used on the loop that opened it."""
        return self.probing, self.streaming, self.dispatching, self.writing, self.reading

    def _distrust(self) -> None:
        """A line went dead without a word: make new ones before the others are found dead, too."""
        for runner in self._own():
            runner.connections.distrust()

    def beat(self, name: str, work: Work[T]) -> T:
        """Run a write that may be repeated, from any thread, whatever the loop is doing."""
        return self._side.run(self._beating.write(name, work, again=work))

    def now(self) -> float | None:
        """The time to use, or None for the server's own."""
        return None if self._clock is None else self._clock.now()

    def here(self) -> float | None:
        """What this machine's clock shows, where the store's is another one."""
        return time.time() if self._clock is None else None
