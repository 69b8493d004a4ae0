"""A store's ways to its server, and whose clock counts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
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


class Database:
    """Calls that must not wait for each other have connections of their own."""

    def __init__(
        self, dsn: str, clock: Clock | None, observer: Observer, patience: float, pool_size: int
    ) -> None:
        def runner(size: int, settings: Mapping[str, str]) -> Runner:
            return Runner(Connections(dsn, size, settings, patience), observer, patience)

        self._clock = clock
        # A third for reads, which may take long; the rest for writes.
        reading = max(1, pool_size // 3)
        self.reading = runner(reading, READING)
        self.writing = runner(max(2, pool_size - reading - _CLAIM_CONNECTIONS), FIXED_PLANS)
        self.dispatching = runner(_CLAIM_CONNECTIONS, _UNHURRIED)
        self._beating = runner(_BEAT_CONNECTIONS, FIXED_PLANS)
        self.streaming = runner(1, FIXED_PLANS)  # connects at the leader of a stream only
        self.probing = runner(1, FIXED_PLANS)  # a server whose connections are busy is not away
        self._side = SideLoop()

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

    def beat(self, name: str, work: Work[T]) -> T:
        """Run a write that may be repeated, from any thread, whatever the loop is doing."""
        return self._side.run(self._beating.write(name, work, again=work))

    def now(self) -> float | None:
        """The time to use, or None for the server's own."""
        return None if self._clock is None else self._clock.now()

    def here(self) -> float | None:
        """What this machine's clock shows, where the store's is another one."""
        return time.time() if self._clock is None else None
