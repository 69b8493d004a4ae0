"""Run the process of a jq-worker: its backend, its worker runtime and its /metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from jobqueue.access.tls import Credentials
from jobqueue.config import Settings
from jobqueue.connect.backends import create_backend, create_store
from jobqueue.connect.starting import when_reached
from jobqueue.connect.transactions import OwnTransactions
from jobqueue.connect.urls import parse_url
from jobqueue.core.api import Backend, DispatchApi
from jobqueue.core.errors import JobQueueError
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import Dispatch
from jobqueue.metrics import Metrics
from jobqueue.redaction import redact_value
from jobqueue.server import options, stream
from jobqueue.server.metrics_listener import MetricsListener
from jobqueue.taskqueue import engine_job
from jobqueue.worker.registry import Registry
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.served import ServedQueues

log = logging.getLogger("jobqueue.worker")
_STOP_BACKEND = 5.0


class WorkerProcess:
    """Starts the parts of a jq-worker in order, and stops them in reverse order.

    ``stop`` may be called twice.
    """

    def __init__(
        self,
        settings: Settings,
        url: str,
        *,
        queues: Sequence[str],
        registry: Registry | None = None,
        exec_command: Sequence[str] | None = None,
        credentials: Credentials | None = None,
        redis_url: str | None = None,
    ) -> None:
        self._settings = settings
        self._url = url
        self._queues = tuple(queues)
        self.metrics = Metrics()
        # The engine of a store counts the attempts. Without a store, this worker counts its own.
        self._owns_store = parse_url(url).scheme != "grpc"
        by_kafka = settings.kafka.dispatch
        if by_kafka:
            stream.check_dispatch(settings, url, "worker.server")
        self._backend, workers_side = self._connect(credentials, redis_url)
        registry = registry or Registry()
        registry.provide(engine_job.task())
        self._schedules = options.code_schedules(settings, registry, self._backend)
        self.runtime = WorkerRuntime(
            workers_side,
            registry,
            options.worker(
                settings,
                id=options.worker_id(settings),
                queues=queues,
                shutdown_timeout=settings.worker.shutdown_timeout,
                exec_command=exec_command,
                recycle=True,
            ),
            None if self._owns_store and not by_kafka else self.metrics,
            OwnTransactions(url),
        )
        self.metrics.watch_overruns(self.runtime.settings.id, lambda: self.runtime.overrun)
        self.metrics.watch_breakers(self.runtime.settings.id, self.runtime.breakers)
        self._served = ServedQueues(
            self._backend,
            self.runtime.settings.id,
            self._queues,
            registry.declared().values(),
            on_demand=registry.provided_queues(),
        )
        self._listener = MetricsListener(self._render)

    def _connect(
        self, credentials: Credentials | None, redis_url: str | None
    ) -> tuple[Backend, DispatchApi]:
        """Create the worker's backend, and the API through which the worker gets its jobs."""
        settings = self._settings
        url, rules = options.db_url(settings, self._url), options.rules(settings)
        locks = options.locks(settings, self.metrics, redis_url) if self._owns_store else None
        if settings.kafka.dispatch:
            store = create_store(
                url,
                rules=rules,
                observer=self.metrics,
                locks=locks,
                partitions=stream.partitions(settings),
            )
            elsewhere = options.engine(settings, Dispatch.ELSEWHERE)
            engine = Engine(store, elsewhere, observer=self.metrics)
            return engine, stream.worker_dispatch(settings, store, self.metrics)
        backend = create_backend(
            url,
            settings=options.engine(settings, Dispatch.LINKS),
            rules=rules,
            observer=self.metrics,
            credentials=credentials,
            locks=locks,
            pool_size=settings.db.pool_size,
        )
        return backend, backend

    @property
    def unended(self) -> int:
        """Return the number of the worker's jobs whose end the server has not acknowledged."""
        return self.runtime.unended

    async def start(self) -> None:
        try:
            await when_reached(self._backend.start, self._settings.db.start_timeout, log)
            await self.runtime.start()
            await self._served.start()
            self._schedules.start()
        except BaseException:
            await self.stop()
            raise
        log.info(
            "ready: taking jobs from %s",
            redact_value(self._url),
            extra={
                "worker_id": self.runtime.settings.id,
                "queues": list(self._queues),
                "concurrency": self.runtime.settings.concurrency,
                "metrics_port": await self._start_listener(),
            },
        )

    async def _start_listener(self) -> int | None:
        """Start /metrics and return its port, or None if it is disabled or the port is taken."""
        if not self._settings.worker.metrics_port:
            return None
        try:
            return await self._listener.start(options.metrics_endpoint(self._settings))
        except JobQueueError as error:
            log.warning("this worker has no /metrics: %s", error.message)
            return None

    async def _render(self) -> tuple[bytes, str]:
        """Render the metrics of this worker; metrics of the store are shown by servers only."""
        self.metrics.set_worker(self.runtime.settings.id, self.runtime.running)
        return await self.metrics.render(None)

    async def stop(self) -> None:
        """Drain and deregister the worker within the shutdown timeout, then disconnect."""
        await self._schedules.stop()
        await self._served.stop()
        await self.runtime.stop()
        await self._listener.stop()
        try:
            async with asyncio.timeout(_STOP_BACKEND):
                await self._backend.stop()
        except TimeoutError:
            log.warning(
                "the connection to %s did not close within %g s; the process ends without closing"
                " it",
                redact_value(self._url),
                _STOP_BACKEND,
            )
