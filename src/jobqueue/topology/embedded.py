"""One process: store, engine, worker pool, HTTP and gRPC. Wiring only."""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from typing import TYPE_CHECKING

from jobqueue._version import __version__
from jobqueue.access import audit
from jobqueue.access.budgets import Budgets
from jobqueue.access.submits import for_callers
from jobqueue.api import listening
from jobqueue.api.grpc.channel import MESSAGE_MARGIN
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.config import Settings
from jobqueue.core.api import Backend, DispatchApi
from jobqueue.core.queue import QueueSpec
from jobqueue.core.store import Store
from jobqueue.engine import admission
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import Dispatch
from jobqueue.metrics import Metrics
from jobqueue.redaction import redact_value
from jobqueue.services.on_engine import EngineTaskQueue
from jobqueue.topology import options, security, stream
from jobqueue.topology.connect import create_store
from jobqueue.topology.metrics_listener import MetricsListener
from jobqueue.topology.starting import when_reached
from jobqueue.worker.registry import Registry
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.served import ServedQueues, create_queues

if TYPE_CHECKING:
    from jobqueue.api.http.face import HttpFace

log = logging.getLogger("jobqueue.server")

# How a stop's time is shared out: requests, then jobs; the rest is the streams' and the store's.
_FACES_SHARE = 0.25
_JOBS_SHARE = 0.85  # counted from the beginning
_STREAMS_SHARE = 0.05


_NO_POOL = {"all": "; no built-in pool: jobs wait for a jq-worker"}


class Embedded:
    """Starts its parts in order and stops them in reverse. ``stop`` may be called twice."""

    def __init__(
        self, settings: Settings, *, registry: Registry | None = None, version: str = __version__
    ) -> None:
        self._settings = settings
        self._registry = registry or Registry()
        self._access = security.access(settings)
        self._limiter = security.limiter(settings)
        self._budgets = Budgets(security.budgets(settings))
        self._tls = security.server_tls(settings)
        security.check_exposure(settings, self._access, self._tls)
        stream.check_dispatch(settings, settings.db.url, "db.url")
        self._dispatch = options.dispatch(settings)
        self.metrics = Metrics()
        self._access.refusals.on_failure = self.metrics.login_failed
        self._store = create_store(
            options.db_url(settings),
            rules=options.rules(settings),
            observer=self.metrics,
            field="db.url",
            locks=options.locks(settings, self.metrics),
            pool_size=settings.db.pool_size,
            partitions=stream.partitions(settings),
        )
        assigns = self._dispatch is Dispatch.ROSTER
        self._engine = Engine(
            self._store,
            options.engine(settings, self._dispatch, version),
            observer=self.metrics,
            stream=stream.runner(settings, self.metrics),
            hints=stream.scheduler_hints(settings) if assigns else None,
        )
        self._periodic = options.periodic(settings, self._registry, self._engine)
        self._pool: WorkerRuntime | None = None
        self._served: ServedQueues | None = None
        self._pages: MetricsListener | None = None
        self._http: HttpFace | None = None
        self._grpc: GrpcFace | None = None
        self._ready = False
        self.http_url = ""
        self.grpc_target = ""

    @property
    def backend(self) -> Backend:
        """The engine, for whoever runs in the same process."""
        return self._engine

    async def start(self) -> None:
        """Start everything, or nothing."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        settings, engine = self._settings, self._engine
        await self._check_ports()
        await when_reached(self._open, settings.db.start_timeout, log)
        if settings.server.role == "scheduler":
            await self._start_pages()
            self._periodic.start()
            self._say_ready()
            return
        if settings.grpc.enabled:
            self._grpc = GrpcFace(
                engine,
                taskqueue=EngineTaskQueue(
                    engine,
                    submit=for_callers(engine.submit, self._limiter),
                    create_queue=self._create_queue,
                ),
                max_message_bytes=settings.queue.max_payload_bytes + MESSAGE_MARGIN,
                reflection=settings.grpc.reflection,
                on_call=self.metrics.on_call,
                access=self._access,
                limiter=self._limiter,
                budgets=self._budgets,
                tls=self._tls,
            )
            port = await self._grpc.start(settings.grpc.host, settings.grpc.port)
            self.grpc_target = _joined(settings.grpc.host, port)
        if settings.http.enabled:
            await self._start_http()
        await self._start_pool()
        self._periodic.start()
        self._say_ready()

    async def _start_http(self) -> None:
        """After gRPC: what HTTP needs takes longest to load, and workers do not wait for it."""
        settings = self._settings
        loaded = await asyncio.to_thread(importlib.import_module, "jobqueue.api.http.face")
        http = options.http(
            settings,
            self.metrics,
            self._engine,
            access=self._access,
            limiter=self._limiter,
            tls=self._tls,
        )
        face: HttpFace = loaded.HttpFace(self._engine, http)
        self._http = face
        port = await face.start(settings.http.host, settings.http.port)
        self.http_url = self._url(port)

    def _url(self, port: int) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{_joined(self._settings.http.host, port)}"

    async def _open(self) -> None:
        await self._engine.start()
        await create_queues(self._engine, self._registry.declared().values())
        await self._look_for_a_stream()

    async def _check_ports(self) -> None:
        """A port that is taken is found out before a store is opened or created."""
        settings = self._settings
        if settings.http.enabled:
            await listening.check(options.http_endpoint(settings))
        if settings.grpc.enabled and settings.server.role != "scheduler":
            await listening.check(options.grpc_endpoint(settings))

    async def _start_pool(self) -> None:
        """The pool comes last: a server that loses the race for a port must not take over, by
        the name that the port gives, the pool of the server that has it."""
        settings = self._settings
        if not options.pool_concurrency(settings):
            return
        self._pool = WorkerRuntime(
            self._workers_side(),
            self._registry,
            options.worker(
                settings,
                id=options.pool_id(settings),
                queues=self._pool_queues(),
                shutdown_timeout=settings.server.shutdown_timeout,
                fallback=not settings.worker.app,  # it knows the built-in tasks alone
            ),
        )
        self.metrics.watch_overruns(self._pool.settings.id, self._overrun)
        await self._pool.start()
        self._served = ServedQueues(self._engine, self._pool.settings.id, self._pool_queues())
        await self._served.start()

    def _overrun(self) -> int:
        return 0 if self._pool is None else self._pool.overrun

    def _pool_queues(self) -> tuple[str, ...]:
        app = self._registry if self._settings.worker.app else None
        return options.queues(self._settings, app)

    def _workers_side(self) -> DispatchApi:
        if self._dispatch is Dispatch.LINKS:
            return self._engine
        return stream.worker_dispatch(
            self._settings, self._store, self.metrics, admission.check_worker
        )

    async def _create_queue(self, spec: QueueSpec) -> None:
        """For a caller who submits a task to a queue that is not there."""
        with audit.change("queue.create", spec.name):
            await self._engine.create_queue(spec)

    async def _start_pages(self) -> None:
        """A scheduler is asked for nothing but its health and figures."""
        if not self._settings.http.enabled:
            return
        self._pages = MetricsListener(
            lambda: self.metrics.render(self._engine), access=self._access, tls=self._tls
        )
        port = await self._pages.start(options.http_endpoint(self._settings))
        self.http_url = self._url(port)

    async def _look_for_a_stream(self) -> None:
        """Jobs that are kept for a stream that nobody publishes are kept for ever."""
        kafka = self._settings.kafka
        if kafka.bootstrap or kafka.abandon:
            return
        lag = await self._store.stream_lag()
        if lag is not None:
            log.warning(
                "this store was published to Kafka and is not any more: jobs that are not in the"
                " stream (%d events) can neither be pruned nor deleted; name kafka.bootstrap, or"
                " set kafka.abandon to give the stream up",
                lag.events,
            )

    def _say_ready(self) -> None:
        settings = self._settings
        store = self._store
        self._ready = True
        log.info(
            "ready: %s store, %s%s",
            store.name,
            "durable" if store.durable else _not_durable(store),
            "" if self._pool else _NO_POOL.get(settings.server.role, ""),
            extra={
                "http": self.http_url,
                "grpc": self.grpc_target,
                "role": settings.server.role,
                "store": store.name,
                "durable": store.durable,
                "redis": redact_value(settings.redis.url),
                "kafka": settings.kafka.bootstrap,
                "concurrency": options.pool_concurrency(settings),
                "queues": list(self._pool_queues()),
                "tls": self._tls is not None,
                "authentication": self._access.required,
            },
        )

    async def stop(self) -> None:
        """Refuse new work, let requests and jobs end, close the store; within the timeout."""
        timeout = self._settings.server.shutdown_timeout
        began = time.monotonic()
        http, grpc, pool, pages = self._http, self._grpc, self._pool, self._pages
        self._http = self._grpc = self._pool = self._pages = None
        grace = timeout * _FACES_SHARE
        await self._periodic.stop()
        if self._served is not None:
            await self._served.stop()
        if grpc is not None:
            grpc.begin_stop()
        if http is not None:
            await http.stop(grace)
        if pages is not None:
            await pages.stop()
        left = max(0.0, timeout * _JOBS_SHARE - (time.monotonic() - began))
        draining = None if pool is None else asyncio.create_task(pool.stop(left))
        if grpc is not None:
            await self._engine.see_workers_off(grpc.connected, left)
            left = timeout * _FACES_SHARE - (time.monotonic() - began)
            await grpc.stop(max(left, timeout * _STREAMS_SHARE))
        if draining is not None:
            await draining
        left = max(1.0, timeout - (time.monotonic() - began))
        try:
            async with asyncio.timeout(left):
                await self._engine.stop()
        except TimeoutError:
            log.error("the store did not close within %.1f s", left)  # noqa: TRY400
        if self._ready:  # one that never was has its error to tell, and nothing else
            log.info("stopped", extra={"seconds": round(time.monotonic() - began, 3)})


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _not_durable(store: Store) -> str:
    if store.name == "memory":
        return "NOT DURABLE: jobs are lost when this process ends"
    return f"NOT DURABLE: jobs are as safe as {store.name} is set up to keep them"
