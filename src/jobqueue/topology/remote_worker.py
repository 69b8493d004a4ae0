"""A worker in a process of its own: backend, runtime, /metrics. Wiring only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from jobqueue.access.tls import Credentials
from jobqueue.config import Settings
from jobqueue.core.api import DispatchApi
from jobqueue.core.errors import JobQueueError
from jobqueue.core.observer import Deaf
from jobqueue.engine import admission
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import Dispatch
from jobqueue.metrics import Metrics
from jobqueue.redaction import redact_value
from jobqueue.topology import options, stream
from jobqueue.topology.connect import create_backend, parse_url
from jobqueue.topology.metered import Metered
from jobqueue.topology.metrics_listener import MetricsListener
from jobqueue.topology.starting import when_reached
from jobqueue.worker.registry import Registry
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.served import ServedQueues

log = logging.getLogger("jobqueue.worker")
_STOP_BACKEND = 5.0


class RemoteWorker:
    """Starts its parts in order and stops them in reverse. ``stop`` may be called twice."""

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
        # A store opened here is observed by its engine; behind a server, this worker looks at
        # what passes through its own link.
        self._owns_store = parse_url(url).scheme != "grpc"
        by_kafka = settings.kafka.dispatch
        if by_kafka:
            stream.check_dispatch(settings, url, "worker.server")
        locks = options.locks(settings, self.metrics, redis_url) if self._owns_store else None
        self._backend = create_backend(
            options.db_url(settings, url),
            settings=options.engine(settings, Dispatch.ELSEWHERE if by_kafka else Dispatch.LINKS),
            rules=options.rules(settings),
            observer=self.metrics,
            credentials=credentials,
            locks=locks,
            pool_size=settings.db.pool_size,
            partitions=stream.partitions(settings),
        )
        observer = Deaf() if self._owns_store and not by_kafka else self.metrics
        self._dispatch = Metered(self._workers_side(), observer)
        registry = registry or Registry()
        self._periodic = options.periodic(settings, registry, self._backend)
        self.runtime = WorkerRuntime(
            self._dispatch,
            registry,
            options.worker(
                settings,
                id=options.worker_id(settings),
                queues=queues,
                shutdown_timeout=settings.worker.shutdown_timeout,
                exec_command=exec_command,
                recycle=True,
            ),
        )
        self.metrics.watch_overruns(self.runtime.settings.id, lambda: self.runtime.overrun)
        self._served = ServedQueues(
            self._backend, self.runtime.settings.id, self._queues, registry.declared().values()
        )
        self._listener = MetricsListener(self._render)

    def _workers_side(self) -> DispatchApi:
        if not self._settings.kafka.dispatch:
            return self._backend
        assert isinstance(self._backend, Engine)
        return stream.worker_dispatch(
            self._settings, self._backend.store, self.metrics, admission.check_worker
        )

    @property
    def unended(self) -> int:
        """Jobs left behind: taken, and their end never reported."""
        return self._dispatch.unended

    async def start(self) -> None:
        """Connect and take jobs."""
        try:
            await when_reached(self._backend.start, self._settings.db.start_timeout, log)
            await self.runtime.start()
            await self._served.start()
            self._periodic.start()
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
        """The port of /metrics. A worker works without one, too."""
        if not self._settings.worker.metrics_port:
            return None
        try:
            return await self._listener.start(options.metrics_endpoint(self._settings))
        except JobQueueError as error:
            log.warning("this worker has no /metrics: %s", error.message)
            return None

    async def _render(self) -> tuple[bytes, str]:
        """A worker shows its own figures; a server's are for the server to show."""
        self.metrics.set_worker(self.runtime.settings.id, self.runtime.running)
        return await self.metrics.render(None)

    async def stop(self) -> None:
        """Drain and deregister within the shutdown timeout, then disconnect."""
        await self._periodic.stop()
        await self._served.stop()
        await self.runtime.stop()
        await self._listener.stop()
        try:
            async with asyncio.timeout(_STOP_BACKEND):
                await self._backend.stop()
        except TimeoutError:
            log.warning("the connection did not close within %g s", _STOP_BACKEND)
