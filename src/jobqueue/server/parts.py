"""Define the parts of a jq-server around its engine: faces, metrics pages, workers, schedules.

``process.ROLES`` lists the parts of each role.
"""

from __future__ import annotations

import asyncio
import enum
import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from jobqueue.access import audit
from jobqueue.access.budgets import Budgets
from jobqueue.access.limits import Limiter, for_callers
from jobqueue.access.policy import Access
from jobqueue.access.tls import ServerTls
from jobqueue.api import listening
from jobqueue.api.grpc.channel import MESSAGE_MARGIN
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.config import Settings
from jobqueue.connect.transactions import OwnTransactions
from jobqueue.core.address import Address
from jobqueue.core.api import DispatchApi
from jobqueue.core.job import ComponentHealth
from jobqueue.core.queue import QueueSpec
from jobqueue.core.store import Store
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import Dispatch
from jobqueue.metrics import Metrics
from jobqueue.server import options, stream
from jobqueue.server.metrics_listener import MetricsListener
from jobqueue.taskqueue.grpc.servicers import taskqueue_service
from jobqueue.taskqueue.on_engine import EngineTaskQueue
from jobqueue.worker.registry import Registry
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.served import ServedQueues

if TYPE_CHECKING:
    from jobqueue.api.http.face import HttpFace

# Shares of the shutdown timeout: for requests, then jobs; the rest is for streams and the store.
_FACES_SHARE = 0.25
_JOBS_SHARE = 0.85  # counted from the beginning of the stop
_STREAMS_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Base:
    """Holds the objects that all parts of a server share."""

    settings: Settings
    registry: Registry
    store: Store
    engine: Engine
    dispatch: Dispatch
    metrics: Metrics
    access: Access
    limiter: Limiter | None
    budgets: Budgets
    tls: ServerTls | None
    sources: Mapping[str, str]  # of the settings that are not defaults, by name
    # Each returns the failure of a part that has ended by itself, or None if the part works.
    failures: list[Callable[[], ComponentHealth | None]] = field(default_factory=list)

    def failed_parts(self) -> list[ComponentHealth]:
        """Return the parts that have ended by themselves."""
        found = [failure() for failure in self.failures]
        return [one for one in found if one is not None]

    @property
    def pool_queues(self) -> tuple[str, ...]:
        """Return the queues that the server's built-in worker serves."""
        return options.queues(self.settings, self.registry if self.settings.worker.app else None)

    def url(self, port: int) -> str:
        """Return the URL of HTTP on this port."""
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{Address(self.settings.http.host, port)}"


class StopTime:
    """Measures how much of the shutdown timeout is left, from the beginning of the stop."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.monotonic()

    @property
    def passed(self) -> float:
        return time.monotonic() - self._began

    def left(self, share: float = 1.0) -> float:
        """Return the seconds until ``share`` of the shutdown timeout has passed, at least 0."""
        return max(0.0, self.seconds * share - self.passed)


class Stage(enum.IntEnum):
    """The order in which parts stop. Parts of one stage stop at the same time."""

    SUBMITS = 0  # the declaration of schedules
    REQUESTS = 1
    JOBS = 2


class Part:
    """A base class for one part of a server.

    ``refuse`` and ``stop`` may be called before ``start``.
    """

    stage: ClassVar[Stage]
    http_url = ""
    grpc_target = ""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._settings = base.settings

    async def check(self) -> None:
        """Raise Unavailable if the part's port is taken."""

    async def start(self) -> None:
        """Start the part, unless the settings disable it."""
        raise NotImplementedError

    def refuse(self) -> None:
        """Refuse new work from now on. The server calls this on all parts before it stops any."""

    async def stop(self, time: StopTime) -> None:
        """Finish the work under way and stop, within the part's share of the shutdown timeout."""
        raise NotImplementedError


class Grpc(Part):
    """Serves jq.v1 and taskqueue.v1 over gRPC. ``stop`` waits until its workers have drained."""

    stage = Stage.JOBS
    _face: GrpcFace | None = None

    async def check(self) -> None:
        if self._settings.grpc.enabled:
            await listening.check(options.endpoint(self._settings, "grpc"))

    async def start(self) -> None:
        base, settings = self._base, self._settings
        if not settings.grpc.enabled:
            return
        taskqueue = EngineTaskQueue(
            base.engine,
            submit=for_callers(base.engine.submit, base.limiter),
            create_queue=self._create_queue,
        )
        self._face = GrpcFace(
            base.engine,
            services=taskqueue_service(taskqueue),
            max_message_bytes=settings.queue.max_payload_bytes + MESSAGE_MARGIN,
            reflection=settings.grpc.reflection,
            on_call=base.metrics.on_call,
            access=base.access,
            limiter=base.limiter,
            budgets=base.budgets,
            tls=base.tls,
        )
        port = await self._face.start(settings.grpc.host, settings.grpc.port)
        self.grpc_target = str(Address(settings.grpc.host, port))
        base.failures.append(self._failure)

    def _failure(self) -> ComponentHealth | None:
        if self._face is None or not self._face.has_ended:
            return None
        return ComponentHealth("grpc", False, "the gRPC server has ended; restart this process")

    async def _create_queue(self, spec: QueueSpec) -> None:
        """Create the queue of taskqueue.v1 for its first job, whose caller the audit log names."""
        with audit.change("queue.create", spec.name):
            await self._base.engine.create_queue(spec)

    def refuse(self) -> None:
        if self._face is not None:
            self._face.begin_stop()

    async def stop(self, time: StopTime) -> None:
        face, self._face = self._face, None
        if face is not None:
            await self._base.engine.see_workers_off(face.connected, time.left(_JOBS_SHARE))
            await face.stop(max(time.left(_FACES_SHARE), time.seconds * _STREAMS_SHARE))


class _OnHttpPort(Part):
    """A base class for a part that listens on the port of HTTP."""

    stage = Stage.REQUESTS

    async def check(self) -> None:
        if self._settings.http.enabled:
            await listening.check(options.endpoint(self._settings, "http"))

    async def start(self) -> None:
        if self._settings.http.enabled:
            self.http_url = self._base.url(await self._listen())

    async def _listen(self) -> int:
        """Start to listen, and return the port."""
        raise NotImplementedError


class Http(_OnHttpPort):
    """Serves the HTTP face.

    This part starts after gRPC, because its libraries load slowly and workers need only gRPC.
    """

    _face: HttpFace | None = None

    async def _listen(self) -> int:
        base, settings = self._base, self._settings
        loaded = await asyncio.to_thread(importlib.import_module, "jobqueue.api.http.face")
        told = options.http(
            settings,
            base.metrics,
            base.engine,
            access=base.access,
            limiter=base.limiter,
            tls=base.tls,
            failed_parts=base.failed_parts,
            sources=base.sources,
        )
        face: HttpFace = loaded.HttpFace(base.engine, told)
        self._face = face
        return await face.start(settings.http.host, settings.http.port)

    async def stop(self, time: StopTime) -> None:
        face, self._face = self._face, None
        if face is not None:
            await face.stop(time.seconds * _FACES_SHARE)


class SchedulerPages(_OnHttpPort):
    """Serves /healthz and /metrics in a scheduler process, which has no HTTP face."""

    _listener: MetricsListener | None = None

    async def _listen(self) -> int:
        base = self._base
        self._listener = MetricsListener(
            lambda: base.metrics.render(base.engine), access=base.access, tls=base.tls
        )
        return await self._listener.start(options.endpoint(self._settings, "http"))

    async def stop(self, time: StopTime) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()


class Pool(Part):
    """Runs the server's built-in worker.

    The worker starts after the faces, because its id contains the port. A server that does not get
    the port must not register the same worker id as the server that has the port.
    """

    stage = Stage.JOBS
    _runtime: WorkerRuntime | None = None
    _served: ServedQueues | None = None

    async def start(self) -> None:
        base, settings = self._base, self._settings
        if not options.pool_concurrency(settings):
            return
        told = options.worker(
            settings,
            id=options.pool_id(settings),
            queues=base.pool_queues,
            shutdown_timeout=settings.server.shutdown_timeout,
            fallback=not settings.worker.app,  # without an app, only the built-in tasks are known
        )
        workers_side: DispatchApi = base.engine
        if base.dispatch is not Dispatch.LINKS:
            workers_side = stream.worker_dispatch(settings, base.store, base.metrics)
        transactions = OwnTransactions(settings.db.url)
        self._runtime = WorkerRuntime(workers_side, base.registry, told, transactions=transactions)
        base.metrics.watch_overruns(told.id, self._overrun)
        base.metrics.watch_breakers(told.id, self._breakers)
        await self._runtime.start()
        self._served = ServedQueues(
            base.engine, told.id, base.pool_queues, on_demand=base.registry.provided_queues()
        )
        await self._served.start()

    def _breakers(self) -> Mapping[str, int]:
        return {} if self._runtime is None else self._runtime.breakers()

    def _overrun(self) -> int:
        return 0 if self._runtime is None else self._runtime.overrun

    async def stop(self, time: StopTime) -> None:
        if self._served is not None:
            await self._served.stop()
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.stop(time.left(_JOBS_SHARE))


class Schedules(Part):
    """Declares the schedules of the app's code."""

    stage = Stage.SUBMITS

    def __init__(self, base: Base) -> None:
        super().__init__(base)
        self._schedules = options.code_schedules(base.settings, base.registry, base.engine)

    async def start(self) -> None:
        self._schedules.start()

    async def stop(self, time: StopTime) -> None:
        await self._schedules.stop()
