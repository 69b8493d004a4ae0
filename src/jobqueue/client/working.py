"""Run a worker inside the user's own program."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from uuid import uuid4

from jobqueue import logs
from jobqueue._version import __version__
from jobqueue.client.shared_backend import SharedBackend
from jobqueue.connect.starting import STOPPED_EARLY, drains, started, stop_on_signals
from jobqueue.core.errors import Conflict, Unavailable
from jobqueue.taskqueue import engine_job
from jobqueue.worker.periodic import CodeSchedules
from jobqueue.worker.registry import Registry
from jobqueue.worker.served import ServedQueues
from jobqueue.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from jobqueue.worker.completing import Transactions
    from jobqueue.worker.runtime import WorkerRuntime

log = logging.getLogger("jobqueue.worker")

DEFAULT_CONCURRENCY = 10
SERVICE = "worker"


class WorkerBlock:
    """The block ``async with app.worker():``, which executes jobs while it runs, then drains."""

    def __init__(
        self,
        shared: SharedBackend,
        registry: Registry,
        queues: tuple[str, ...],
        concurrency: int | None,
        *,
        ticks: bool = True,
        recycle: bool = False,
        transactions: Transactions | None = None,
    ) -> None:
        self._shared = shared
        self._transactions = transactions
        self._registry = registry
        self.settings = WorkerSettings(
            id=f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}",
            queues=queues,
            concurrency=DEFAULT_CONCURRENCY if concurrency is None else concurrency,
            version=__version__,
            recycle=recycle,
        )
        self._ticks = ticks
        self._runtime: WorkerRuntime | None = None

    @property
    def runtime(self) -> WorkerRuntime:
        """Return the worker. May only be called inside the block."""
        assert self._runtime is not None
        return self._runtime

    async def __aenter__(self) -> WorkerRuntime:
        from jobqueue.worker.runtime import WorkerRuntime

        backend = await self._shared.open()
        if self._shared.loop is not asyncio.get_running_loop():
            raise Conflict("the app is open on another event loop; run its worker on that loop")
        registry, settings = self._registry, self.settings
        registry.provide(engine_job.task())
        async with contextlib.AsyncExitStack() as stack:
            self._runtime = WorkerRuntime(
                backend, registry, settings, transactions=self._transactions
            )
            await self._runtime.start()
            self._shared.workers += 1
            stack.callback(self._leave)
            stack.push_async_callback(self._runtime.stop)
            declared, provided = registry.declared().values(), registry.provided_queues()
            queues = ServedQueues(
                backend, settings.id, settings.queues, declared, on_demand=provided
            )
            stack.push_async_callback(queues.stop)
            await queues.start()
            if self._ticks:
                late = registry.catch_up
                schedules = CodeSchedules(backend, registry.schedules.values(), catch_up=late)
                stack.push_async_callback(schedules.stop)
                schedules.start()
            self._started = stack.pop_all()
        return self._runtime

    async def __aexit__(self, *_: object) -> None:
        await self._started.aclose()

    def _leave(self) -> None:
        self._shared.workers -= 1


async def work(block: WorkerBlock, *, signals: bool) -> None:
    """Execute jobs until the call is cancelled or an operator shuts the worker down.

    With ``signals``, SIGTERM and SIGINT also end the call. Raises Unavailable if every slot is
    blocked by a function that still runs although its attempt was given up.
    """
    stopping = asyncio.Event()
    told = drains(block.settings.shutdown_timeout)
    heard = stop_on_signals(stopping, log, told) if signals else contextlib.nullcontext()
    with heard:
        async with contextlib.AsyncExitStack() as stack:
            if not await started(stack.enter_async_context(block), stopping):
                log.info(STOPPED_EARLY, extra={"worker_id": block.settings.id})
                return
            await block.runtime.finished_or(stopping)
            if block.runtime.exhausted:
                raise Unavailable(
                    "all slots of this worker are blocked by functions that still run although"
                    " their attempts were given up; start the program again"
                )


def run_worker(block: WorkerBlock, close: Callable[[], Awaitable[None]]) -> None:
    """Execute jobs on a new event loop until SIGTERM or SIGINT, then call ``close``.

    Log lines are written to stdout, unless the program has configured its logging.
    """
    logs.configure_unless_done(SERVICE)

    async def main() -> None:
        try:
            await work(block, signals=True)
        finally:
            await close()

    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        runner.run(main())


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
