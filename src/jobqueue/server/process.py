"""Run the process of a jq-server: a store, its engine, and the parts of the server's role."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from jobqueue._version import __version__
from jobqueue.access.budgets import Budgets
from jobqueue.config import Settings
from jobqueue.connect.backends import create_store
from jobqueue.connect.starting import when_reached
from jobqueue.core.api import Backend
from jobqueue.core.store import Store
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import Dispatch
from jobqueue.metrics import Metrics
from jobqueue.redaction import redact_value
from jobqueue.server import options, security, stream
from jobqueue.server.parts import (
    Base,
    Grpc,
    Http,
    Part,
    Pool,
    SchedulerPages,
    Schedules,
    Stage,
    StopTime,
)
from jobqueue.taskqueue import engine_job
from jobqueue.worker.registry import Registry
from jobqueue.worker.served import create_queues

log = logging.getLogger("jobqueue.server")

# The parts of a server in addition to the engine, by ``server.role``, in the order of their start.
ROLES: Mapping[str, tuple[type[Part], ...]] = {
    "all": (Grpc, Http, Pool, Schedules),
    "api": (Grpc, Http, Schedules),
    "scheduler": (SchedulerPages, Schedules),
}


class ServerProcess:
    """Starts the parts of a jq-server in order, and stops them stage by stage.

    ``stop`` may be called twice.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        registry: Registry | None = None,
        version: str = __version__,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        """Create the parts. ``sources`` says where settings come from, for the console."""
        registry = registry or Registry()
        registry.provide(engine_job.task())
        access, tls = security.access(settings), security.server_tls(settings)
        limiter = security.limiter(settings)
        budgets = Budgets(security.budgets(settings))
        security.check_exposure(settings, access, tls)
        stream.check_dispatch(settings, settings.db.url, "db.url")
        dispatch = options.dispatch(settings)
        self.metrics = Metrics()
        access.refusals.on_failure = self.metrics.login_failed
        store = create_store(
            options.db_url(settings),
            rules=options.rules(settings),
            observer=self.metrics,
            field="db.url",
            locks=options.locks(settings, self.metrics),
            pool_size=settings.db.pool_size,
            partitions=stream.partitions(settings),
            max_payload_bytes=settings.queue.max_payload_bytes,
        )
        engine = Engine(
            store,
            options.engine(settings, dispatch, version),
            observer=self.metrics,
            stream=stream.runner(settings, self.metrics),
            hints=stream.scheduler_hints(settings) if dispatch is Dispatch.ROSTER else None,
        )
        self._base = Base(
            settings, registry, store, engine, dispatch, self.metrics, access, limiter, budgets,
            tls, sources or {},
        )  # fmt: skip
        self._parts = [part(self._base) for part in ROLES[settings.server.role]]
        self._begun: list[Part] = []
        self._ready = False

    @property
    def backend(self) -> Backend:
        """Return the engine, for callers in the same process."""
        return self._base.engine

    @property
    def http_url(self) -> str:
        """Return the URL of HTTP; empty if HTTP is disabled."""
        return "".join(part.http_url for part in self._parts)

    @property
    def grpc_target(self) -> str:
        """Return the address of gRPC as HOST:PORT; empty if gRPC is disabled."""
        return "".join(part.grpc_target for part in self._parts)

    async def start(self) -> None:
        """Start all parts. If a part fails, stop the others and raise the error."""
        try:
            for part in reversed(self._parts):  # checked before the store is opened or created
                await part.check()
            await when_reached(self._open, self._base.settings.db.start_timeout, log)
            for part in self._parts:
                self._begun.append(part)
                await part.start()
        except BaseException:
            await self.stop()
            raise
        self._ready = True
        self._log_ready()

    async def _open(self) -> None:
        await self._base.engine.start()
        await create_queues(self._base.engine, self._base.registry.declared().values())
        await self._warn_of_an_abandoned_stream()

    async def _warn_of_an_abandoned_stream(self) -> None:
        """Log a warning if jobs stay until their events are published, but Kafka is not set."""
        kafka = self._base.settings.kafka
        if kafka.bootstrap or kafka.abandon:
            return
        lag = await self._base.store.stream.lag()
        if lag is not None:
            log.warning(
                "the %s store keeps jobs until their events are published to Kafka, but"
                " kafka.bootstrap is not set: the jobs of %d events cannot be removed; set"
                " kafka.bootstrap to publish the events, or kafka.abandon to give them up",
                self._base.store.name,
                lag.events,
            )

    def _log_ready(self) -> None:
        base, settings, store = self._base, self._base.settings, self._base.store
        concurrency = options.pool_concurrency(settings)
        lacks_pool = Pool in ROLES[settings.server.role] and not concurrency
        log.info(
            "ready: %s store, %s%s",
            store.name,
            "durable" if store.durable else _not_durable(store),
            "; no built-in pool: jobs wait for a jq-worker" if lacks_pool else "",
            extra={
                "http": self.http_url,
                "grpc": self.grpc_target,
                "role": settings.server.role,
                "store": store.name,
                "durable": store.durable,
                "redis": redact_value(settings.redis.url),
                "kafka": settings.kafka.bootstrap,
                "concurrency": concurrency,
                "queues": list(base.pool_queues),
                "tls": base.tls is not None,
                "authentication": base.access.required,
            },
        )

    async def stop(self) -> None:
        """Refuse new work, wait for requests and jobs to end, and close the store.

        The stop takes at most about the shutdown timeout.
        """
        time = StopTime(self._base.settings.server.shutdown_timeout)
        parts, self._begun = self._begun, []
        for part in parts:
            part.refuse()
        for stage in Stage:
            await asyncio.gather(*(part.stop(time) for part in parts if part.stage is stage))
        left = max(1.0, time.left())
        try:
            async with asyncio.timeout(left):
                await self._base.engine.stop()
        except TimeoutError:
            log.error(  # noqa: TRY400
                "the %s store did not close within %.1f s; the process ends without closing it",
                self._base.store.name,
                left,
            )
        if self._ready:  # a failed start has logged its error
            log.info("stopped", extra={"seconds": round(time.passed, 3)})


def _not_durable(store: Store) -> str:
    if store.name == "memory":
        return "NOT DURABLE: jobs are lost when this process ends"
    return f"NOT DURABLE: jobs may be lost, depending on how {store.name} is configured"
