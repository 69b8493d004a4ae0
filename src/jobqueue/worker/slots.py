"""Log a warning when all slots of a worker are in use and may never become free."""

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

_PATIENCE = 2.0  # seconds that all slots must wait without a change before the warning


class WaitingSlots:
    """Counts the slots whose handler waits for another job in ``JobHandle.result``.

    When the handlers of all slots begin to wait, a warning is logged: only another worker can run
    the jobs that they wait for. Any thread may use this class.
    """

    def __init__(
        self, settings: WorkerSettings, began: Callable[[int], None] | None = None
    ) -> None:
        self._settings = settings
        self._log = WorkerLog(settings.id)
        self._began = began  # called on the loop when a handler begins to wait, with its lease
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._queues: dict[int, list[str | None]] = {}  # lease -> queues of the jobs awaited
        self._changes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._told = False

    @contextlib.contextmanager
    def waits(self, lease: int, queue: str | None) -> Iterator[None]:
        """Record that the handler with this lease waits for a job of the queue during the block."""
        self.begin(lease, queue)
        try:
            yield
        finally:
            self.end(lease, queue)

    def begin(self, lease: int, queue: str | None) -> None:
        """Record that the handler with this lease begins to wait for a job of the queue.

        A queue that this worker does not serve is ignored, because its jobs need no slot here.
        """
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
        """Record that the handler with this lease no longer waits for a job of the queue."""
        with self._lock:
            waiting = self._queues.get(lease, [])
            if queue in waiting:
                waiting.remove(queue)
            self._changes += 1
            if not waiting:
                self._drop(lease)

    def forget(self, lease: int) -> None:
        """Forget the attempt with this lease, because it has ended."""
        if lease in self._queues:  # false for most jobs
            with self._lock:
                self._drop(lease)

    def close(self) -> None:
        """Stop writing warnings."""
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
            "the handlers in %d of %d slots wait for other jobs%s, and worker %s has no slot left"
            " to run those jobs: unless another worker runs them, the handlers wait forever; raise"
            " concurrency, or give those jobs their own queue and worker",
            len(self._queues),
            slots,
            f" of queue {', '.join(names)}" if names else "",
            self._settings.id,
            extra={"slots": slots, "queues": names},
        )


class OverrunSlots:
    """Counts the slots in which a function still runs although its attempt was given up.

    A thread cannot be stopped. When its job has timed out or its lease is lost, the slot becomes
    free only when the function returns. A worker whose slots are all blocked like this would run
    no jobs, and still look healthy.
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
        self._end = end  # called when no slot is left, if the setting ``recycle`` is on
        self._loop = asyncio.get_running_loop()
        self._told = False

    def count(self) -> int:
        """Return the number of slots in which the function of a given-up attempt still runs.

        Any thread may call this method.
        """
        return sum(execution.over for execution in list(self._running()))

    def watch(self, execution: Execution) -> None:
        """Log a warning if the function still runs ``cancel_grace`` seconds from now."""
        self._loop.call_later(self._settings.cancel_grace, self._look, execution)

    def _look(self, execution: Execution) -> None:
        if execution.ended:
            return
        taken, slots = self.count(), self._settings.concurrency
        job = execution.assignment
        self._log.warning(
            "the function of job %s (%s) still runs %g s after the attempt was given up (%s), and"
            " blocks its slot until it returns: %d of %d slots are blocked like this; let the"
            ' function check ctx.cancelled, or use executor="process"',
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
            "the worker stops now, so that its supervisor starts it again"
            if self._settings.recycle
            else "this worker runs no jobs until one of them returns or the worker is restarted"
        )
        self._log.error(
            "all %d slots of worker %s are blocked by functions that still run although their"
            " attempts were given up; %s",
            slots,
            self._settings.id,
            then,
            extra={"overrun": slots},
        )
        if self._settings.recycle:
            self._end()
