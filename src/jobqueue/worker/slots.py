"""Warns when slots of a worker are taken and nothing will free them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from jobqueue.core.store import ALL_QUEUES
from jobqueue.worker.log import WorkerLog
from jobqueue.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from jobqueue.worker.execution import Execution

_PATIENCE = 2.0  # seconds that all slots wait, without any change, before the warning


class WaitingSlots:
    """Counts the slots whose handler waits in ``JobHandle.result``. Usable from any thread.

    When all of them wait, only another worker can run the jobs that they wait for. That is logged
    once, and once more after the situation has ended and come again.
    """

    def __init__(
        self, settings: WorkerSettings, began: Callable[[int], None] | None = None
    ) -> None:
        self._settings = settings
        self._log = WorkerLog(settings.id)
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
        """A handler begins to wait. A job of a queue served elsewhere needs no slot here."""
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
        with self._lock:
            waiting = self._queues.get(lease, [])
            if queue in waiting:
                waiting.remove(queue)
            self._changes += 1
            if not waiting:
                self._drop(lease)

    def forget(self, lease: int) -> None:
        """The attempt has ended, and waits for nothing."""
        if lease in self._queues:  # false for most jobs
            with self._lock:
                self._drop(lease)

    def close(self) -> None:
        """Write no more warnings."""
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
        self._log.warning(
            "%d of %d slots wait for jobs%s: this worker has no slot left to run them, and unless"
            " another worker does they wait forever; raise concurrency, or give those jobs a queue"
            " and a worker of their own",
            len(self._queues),
            slots,
            f" of queue {', '.join(names)}" if names else "",
            extra={"slots": slots, "queues": names},
        )


class OverrunSlots:
    """Counts the slots of attempts that are over and whose function still runs.

    A thread cannot be stopped. When its job times out, or its lease is lost, the server has given
    the attempt up, but the slot is not free before the function returns. A worker without any
    other slot would do nothing for ever, and look well.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        running: Callable[[], Collection[Execution]],
        end: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._log = WorkerLog(settings.id)
        self._running = running
        self._end = end  # called when no slot is left, if the settings say ``recycle``
        self._loop = asyncio.get_running_loop()
        self._told = False

    def count(self) -> int:
        """Usable from any thread."""
        return sum(execution.over for execution in list(self._running()))

    def watch(self, execution: Execution) -> None:
        """The attempt is over. Its function has ``cancel_grace`` seconds to return."""
        self._loop.call_later(self._settings.cancel_grace, self._look, execution)

    def _look(self, execution: Execution) -> None:
        if execution.ended:
            return
        taken, slots = self.count(), self._settings.concurrency
        job = execution.assignment
        self._log.warning(
            "the function of job %s (%s) still runs %g s after the attempt was over (%s), and keeps"
            " its slot until it returns: %d of %d slots are taken like that; let it look at"
            ' ctx.cancelled, or use executor="process"',
            job.id,
            job.type or job.queue,
            self._settings.cancel_grace,
            execution.stop.value if execution.stop is not None else "",
            taken,
            slots,
            extra={**execution.log_fields(), "overrun": taken},
        )
        if taken < slots:
            self._told = False
        elif not self._told:
            self._told = True
            self._full(slots)

    def _full(self, slots: int) -> None:
        then = (
            "it ends now, to be started again by its supervisor"
            if self._settings.recycle
            else "nothing runs here until one of them returns or this program is started again"
        )
        self._log.error(
            "all %d slots of this worker are taken by functions that did not end when their attempt"
            " was over; %s",
            slots,
            then,
            extra={"overrun": slots},
        )
        if self._settings.recycle:
            self._end()
