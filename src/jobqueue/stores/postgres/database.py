"""A store's ways to its server, and whose clock counts."""

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
# A claim lost in a crash is a job that is handed out again: it need not wait for the disk.
_UNHURRIED: Mapping[str, str] = {**FIXED_PLANS, "synchronous_commit": "off"}
_TIMEOUT = 10.0


class SideLoop:
    """An event loop in a thread: heartbeats survive a blocked loop. Any thread may call ``run``."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=loop.run_forever, name="jobqueue-postgres-pulse", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = _TIMEOUT) -> T:
        """Run something there and wait for it."""
        loop = self._loop
        if loop is None:
            work.close()
            raise Unavailable("PostgreSQL: the store is not open")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise Unavailable(f"PostgreSQL took no heartbeat within {timeout:g} s") from None
        except concurrent.futures.CancelledError:
            raise Unavailable("PostgreSQL: the store is closed") from None

    def stop(self) -> None:
        """End the thread; its tasks are cancelled, and their callers get an error."""
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
        """The runners that are used on the loop that opened the store."""
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
        """The time by this machine's clock, or None where a test brings the store's time."""
        return time.time() if self._clock is None else None
