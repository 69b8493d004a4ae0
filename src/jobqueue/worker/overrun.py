"""Slots of attempts that are over, and whose function still runs.

A thread cannot be stopped. When its job times out, or its lease is lost, the server has given the
attempt up, but the slot is not free before the function returns. When no other slot is left, the
worker would stand there for ever, and look well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from jobqueue.worker.execution import Execution
from jobqueue.worker.settings import WorkerSettings

log = logging.getLogger("jobqueue.worker")


class Overruns:
    """Says which slots are taken that way, and tells when no other one is left."""

    def __init__(
        self,
        settings: WorkerSettings,
        running: Callable[[], Collection[Execution]],
        end: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._running = running
        self._end = end  # called when no slot is left and the worker is to end then
        self._loop = asyncio.get_running_loop()
        self._told = False

    def count(self) -> int:
        """Slots that are taken that way now. From any thread."""
        return sum(execution.over for execution in list(self._running()))

    def watch(self, execution: Execution) -> None:
        """The attempt is over: it has the time of a process that is asked to stop to end."""
        self._loop.call_later(self._settings.cancel_grace, self._look, execution)

    def _look(self, execution: Execution) -> None:
        if execution.ended:
            return
        taken, slots = self.count(), self._settings.concurrency
        job = execution.assignment
        extra = {**execution.log_fields(), "worker_id": self._settings.id, "overrun": taken}
        log.warning(
            "the function of job %s (%s) still runs %g s after the attempt was over (%s), and keeps"
            " its slot until it returns: %d of %d slots are taken like that; let it look at"
            ' ctx.cancelled, or use executor="process"',
            job.id,
            job.type or job.queue,
            self._settings.cancel_grace,
            execution.stop.value if execution.stop is not None else "",
            taken,
            slots,
            extra=extra,
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
        log.error(
            "all %d slots of this worker are taken by functions that did not end when their attempt"
            " was over; %s",
            slots,
            then,
            extra={"worker_id": self._settings.id, "overrun": slots},
        )
        if self._settings.recycle:
            self._end()
