"""Running a worker inside the user's own program."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING
from uuid import uuid4

from jobqueue import logs
from jobqueue._version import __version__
from jobqueue.client.home import Home
from jobqueue.core.api import Backend
from jobqueue.core.clock import Clock
from jobqueue.core.errors import Conflict, Unavailable
from jobqueue.topology.starting import STOPPED_EARLY, started
from jobqueue.topology.stop_signals import drains, stop_on_signals
from jobqueue.worker.periodic import Periodic
from jobqueue.worker.registry import Registry
from jobqueue.worker.served import ServedQueues
from jobqueue.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from jobqueue.worker.runtime import WorkerRuntime

log = logging.getLogger("jobqueue.worker")

DEFAULT_CONCURRENCY = 10
SERVICE = "worker"


class WorkerBlock:
    """``async with app.worker():`` jobs are executed while the block runs, then drained."""

    def __init__(
        self,
        home: Home,
        registry: Registry,
        queues: tuple[str, ...],
        concurrency: int | None,
        *,
        ticks: bool = True,
        clock: Clock | None = None,
        recycle: bool = False,
    ) -> None:
        self._home = home
        self._registry = registry
        self.settings = WorkerSettings(
            id=f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}",
            queues=queues,
            concurrency=DEFAULT_CONCURRENCY if concurrency is None else concurrency,
            version=__version__,
            recycle=recycle,
        )
        self._ticks = ticks
        self._clock = clock
        self._runtime: WorkerRuntime | None = None
        self._queues: ServedQueues | None = None
        self._periodic: Periodic | None = None

    @property
    def runtime(self) -> WorkerRuntime:
        """The worker, inside the block."""
        assert self._runtime is not None
        return self._runtime

    async def __aenter__(self) -> WorkerRuntime:
        from jobqueue.worker.runtime import WorkerRuntime

        backend = await self._home.call(_itself)
        if self._home.loop is not asyncio.get_running_loop():
            raise Conflict("the app is open on another event loop; run its worker there")
        self._runtime = WorkerRuntime(backend, self._registry, self.settings)
        await self._runtime.start()
        self._home.workers += 1
        registry = self._registry
        self._queues = ServedQueues(
            backend, self.settings.id, self.settings.queues, registry.declared().values()
        )
        try:
            await self._queues.start()
        except BaseException:
            await self._end()
            raise
        if self._ticks:
            self._periodic = Periodic(
                backend,
                registry.schedules.values(),
                catch_up=registry.catch_up,
                clock=self._clock,
            )
            self._periodic.start()
        return self._runtime

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        if self._periodic is not None:
            await self._periodic.stop()
        if self._queues is not None:
            await self._queues.stop()
        if self._runtime is not None:
            try:
                await self._runtime.stop()
            finally:
                self._home.workers -= 1


async def work(block: WorkerBlock, *, signals: bool) -> None:
    """Execute jobs until cancelled, told to stop by a signal, or shut down by an operator."""
    stopping = asyncio.Event()
    told = drains(block.settings.shutdown_timeout)
    heard = stop_on_signals(stopping, log, told) if signals else contextlib.nullcontext()
    with heard:
        async with contextlib.AsyncExitStack() as stack:
            if not await started(stack.enter_async_context(block), stopping):
                log.info(STOPPED_EARLY, extra={"worker_id": block.settings.id})
                return
            ended = asyncio.ensure_future(block.runtime.finished)
            asked = asyncio.ensure_future(stopping.wait())
            try:
                await asyncio.wait([ended, asked], return_when=asyncio.FIRST_COMPLETED)
            finally:
                ended.cancel()
                asked.cancel()
                await asyncio.gather(ended, asked, return_exceptions=True)
            if block.runtime.exhausted:
                raise Unavailable(
                    "all slots of this worker are taken by functions that did not end when their"
                    " attempt was over; start the program again"
                )


def run_worker(block: WorkerBlock, close: Callable[[], Awaitable[None]]) -> None:
    """Execute jobs on a loop of its own until SIGTERM or SIGINT.

    What happens is logged to stdout, unless the program has configured its logging.
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


async def _itself(backend: Backend) -> Backend:
    return backend
