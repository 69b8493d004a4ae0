"""Notices that every slot of a worker waits for jobs that need a slot themselves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from jobqueue.core.store import ALL_QUEUES
from jobqueue.worker.settings import WorkerSettings

log = logging.getLogger("jobqueue.worker")

_PATIENCE = 2.0  # seconds without any change before it is said


class WaitingSlots:
    """Counts the slots whose handler waits in ``JobHandle.result``. Usable from any thread.

    When all of them wait, only another worker can run the jobs that they wait for. That is logged
    once, and once more after the situation has ended and come again.
    """

    def __init__(
        self, settings: WorkerSettings, began: Callable[[int], None] | None = None
    ) -> None:
        self._settings = settings
        self._began = began  # called on the loop with the lease of a handler that begins to wait
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._queues: dict[int, list[str | None]] = {}  # lease -> queues of the jobs awaited
        self._changes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._told = False

    @contextlib.contextmanager
    def waits(self, lease: int, queue: str | None) -> Iterator[None]:
        """The handler that holds the lease waits for a job while the block runs."""
        self.begin(lease, queue)
        try:
            yield
        finally:
            self.end(lease, queue)

    def begin(self, lease: int, queue: str | None) -> None:
        """The handler begins to wait. A job of a queue served elsewhere takes no slot here."""
        if not self._served(queue):
            return
        with self._lock:
            self._queues.setdefault(lease, []).append(queue)
            self._changes += 1
            full = self._full()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if full:
                self._loop.call_soon_threadsafe(self._watch)
            if self._began is not None:
                self._loop.call_soon_threadsafe(self._began, lease)

    def end(self, lease: int, queue: str | None) -> None:
        """The handler has stopped to wait."""
        with self._lock:
            waiting = self._queues.get(lease, [])
            if queue in waiting:
                waiting.remove(queue)
            self._changes += 1
            if not waiting:
                self._drop(lease)

    def forget(self, lease: int) -> None:
        """The attempt has ended, whatever its handler waited for."""
        if lease in self._queues:  # of most jobs it is not
            with self._lock:
                self._drop(lease)

    def close(self) -> None:
        """Say nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._told = True

    def _served(self, queue: str | None) -> bool:
        served = self._settings.queues
        return queue is None or queue in served or ALL_QUEUES in served

    def _drop(self, lease: int) -> None:
        self._queues.pop(lease, None)
        if not self._full():
            self._told = False

    def _full(self) -> bool:
        return len(self._queues) >= self._settings.concurrency

    def _watch(self) -> None:
        if self._timer is None and not self._told:
            self._timer = self._loop.call_later(_PATIENCE, self._look, self._changes)

    def _look(self, changes: int) -> None:
        self._timer = None
        with self._lock:
            full, moved = self._full(), self._changes != changes
            names = sorted({q for queues in self._queues.values() for q in queues if q})
        if not full or self._told:
            return
        if moved:
            self._watch()
            return
        self._told = True
        slots = self._settings.concurrency
        of = f" of queue {', '.join(names)}" if names else ""
        log.warning(
            "%d of %d slots wait for jobs%s: this worker has no slot left to run them, and unless"
            " another worker does they wait forever; raise concurrency, or give those jobs a queue"
            " and a worker of their own",
            len(self._queues),
            slots,
            of,
            extra={"worker_id": self._settings.id, "slots": slots, "queues": names},
        )
