"""Hold a store's pools of connections to PostgreSQL, and the clock that the store uses."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from jobqueue.core.clock import Clock
from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.core.observer import Observer
from jobqueue.stores.postgres.connections import FIXED_PLANS, READING, Connections
from jobqueue.stores.postgres.runner import Runner, Work

T = TypeVar("T")
_log = logging.getLogger("jobqueue.stores.postgres")
_CLAIM_CONNECTIONS = 2
_BEAT_CONNECTIONS = 2
_LOOKUP_CONNECTIONS = 2
# Claims do not wait for the disk: if a crash loses a claim, its jobs are assigned again.
_UNHURRIED: Mapping[str, str] = {**FIXED_PLANS, "synchronous_commit": "off"}
_TIMEOUT = 10.0


class SideLoop:
    """Runs an event loop in a thread of its own, for heartbeats.

    So heartbeats continue while the main event loop is blocked. Any thread may call ``run``.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread with its event loop."""
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=loop.run_forever, name="jobqueue-postgres-pulse", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = _TIMEOUT) -> T:
        """Run a coroutine on this event loop, block until it ends, and return its result."""
        loop = self._loop
        if loop is None:
            work.close()
            raise Unavailable("PostgreSQL: the store is not open")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise Unavailable(f"PostgreSQL did not answer within {timeout:g} s") from None
        except concurrent.futures.CancelledError:
            raise Unavailable("PostgreSQL: the store is closed") from None

    def stop(self) -> None:
        """End the thread. Its tasks are cancelled, and their callers get Unavailable."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_cut_off(), loop)
            thread.join(_TIMEOUT)
            loop.close()


async def _cut_off() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=_TIMEOUT / 2)
    asyncio.get_running_loop().stop()


class Unanswered:
    """Records the writes in progress, so that a health check sees how long the oldest has run."""

    def __init__(self) -> None:
        self._since: dict[object, float] = {}

    @contextlib.contextmanager
    def write(self) -> Iterator[None]:
        """Count a write as in progress while the context is open."""
        key = object()
        self._since[key] = time.monotonic()
        try:
            yield
        finally:
            del self._since[key]

    @property
    def seconds(self) -> float:
        """Return how long the oldest write in progress has run; -inf if no write is in progress."""
        return time.monotonic() - next(iter(self._since.values()), math.inf)


class Database:
    """Holds a store's pools of connections: one pool for each kind of call.

    So a call of one kind, for example a claim, never waits for calls of another kind.
    """

    def __init__(
        self,
        dsn: str,
        clock: Clock | None,
        observer: Observer,
        patience: float,
        pool_size: int,
        undone: Callable[[], None],
    ) -> None:
        def runner(
            size: int, settings: Mapping[str, str], silent: Callable[[], None] | None = None
        ) -> Runner:
            connections = Connections(dsn, size, settings, patience)
            return Runner(connections, observer, patience, silent, undone)

        self._clock = clock
        # A third for reads, which may take long; the rest for writes.
        reading = max(1, pool_size // 3)
        self.reading = runner(reading, READING, self._distrust)
        # Reads by key use fixed plans: PostgreSQL takes longer to plan ``get`` than to run it.
        self.looking_up = runner(_LOOKUP_CONNECTIONS, FIXED_PLANS, self._distrust)
        writing = max(2, pool_size - reading - _CLAIM_CONNECTIONS)
        self.writing = runner(writing, FIXED_PLANS, self._distrust)
        self.dispatching = runner(_CLAIM_CONNECTIONS, _UNHURRIED, self._distrust)
        self._beating = runner(_BEAT_CONNECTIONS, FIXED_PLANS)  # on a loop of its own
        # Connects only if this server leads and has an event stream.
        self.streaming = runner(1, FIXED_PLANS, self._distrust)
        # For health checks: a server whose other connections are busy is still available.
        self.probing = runner(1, FIXED_PLANS, self._distrust)
        self._side = SideLoop()
        self.unanswered = Unanswered()

    def open(self) -> None:
        """Allow calls. Each connection is opened when it is first needed."""
        for runner in (*self._own(), self._beating):
            runner.connections.open()
        self._side.start()

    async def close(self) -> None:
        """Close all connections and stop the thread for heartbeats."""
        try:
            await asyncio.to_thread(self._side.run, self._beating.connections.close())
        except JobQueueError:
            _log.debug(
                "%s: the connections for heartbeats did not close in time; dropping them",
                self._beating.connections.location,
            )
        await asyncio.to_thread(self._side.stop)
        for runner in self._own():
            await runner.connections.close()

    def _own(self) -> tuple[Runner, ...]:
        return (
            self.probing,
            self.streaming,
            self.dispatching,
            self.writing,
            self.looking_up,
            self.reading,
        )

    def _distrust(self) -> None:
        # After one connection was cut off silently, others probably were, too: do not reuse them.
        for runner in self._own():
            runner.connections.distrust()

    def beat(self, name: str, work: Work[T]) -> T:
        """Run a heartbeat's write on the thread for heartbeats, and return its result.

        The call blocks, and any thread may make it. The write must be safe to repeat.
        """
        return self._side.run(self._beating.write(name, work, again=work))

    def now(self) -> float | None:
        """Return the time of a test's clock, or None if the PostgreSQL server's time is used."""
        return None if self._clock is None else self._clock.now()

    def here(self) -> float | None:
        """Return the time of this machine, or None if a test's clock is used."""
        return time.time() if self._clock is None else None
