"""From the settings tree to the settings of each part."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from jobqueue._version import __version__
from jobqueue.access.limits import Limiter
from jobqueue.access.policy import Access
from jobqueue.access.tls import ServerTls
from jobqueue.api.http.connections import budgets_within, most_connections
from jobqueue.api.http.settings import HttpSettings
from jobqueue.api.listening import Endpoint
from jobqueue.config import Settings
from jobqueue.core.api import Backend
from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.core.locks import Locks
from jobqueue.core.observer import Observer
from jobqueue.core.queue import SETTINGS, Queue
from jobqueue.core.store import Rules
from jobqueue.engine.settings import Dispatch, EngineSettings
from jobqueue.metrics import Figures, Metrics
from jobqueue.services import engine_job
from jobqueue.topology import security
from jobqueue.topology.connect import SHARED, create_locks, parse_url, with_password
from jobqueue.worker.periodic import Periodic
from jobqueue.worker.registry import Registry
from jobqueue.worker.settings import WorkerSettings


def rules(settings: Settings) -> Rules:
    """What the store applies."""
    return Rules(
        assignment_timeout=settings.scheduler.assignment_timeout,
        key_ttl=settings.queue.key_ttl,
        poison_after=settings.queue.poison_after,
        workers_per_owner=settings.limits.workers_per_caller,
    )


def db_url(settings: Settings, url: str | None = None) -> str:
    """The address of the store with its password: for connecting, not for showing."""
    return with_password(url or settings.db.url, security.password(settings.db, "db"))


def locks(settings: Settings, observer: Observer, url: str | None = None) -> Locks | None:
    """The locks in Redis, if one is named."""
    chosen = with_password(url or settings.redis.url, security.password(settings.redis, "redis"))
    return create_locks(chosen, timeout=settings.redis.timeout, observer=observer)


def pool_concurrency(settings: Settings) -> int:
    """Jobs that a server's built-in pool runs at once; 0: it has none.

    On PostgreSQL and Redis there are other servers, and the pool sees only the workers of its own:
    without an app it would take jobs from workers that know their tasks. There it must be asked
    for.
    """
    if settings.server.role != "all":
        return 0
    worker = settings.worker
    asked = bool(worker.app) or "concurrency" in worker.model_fields_set
    shared = parse_url(settings.db.url, "db.url").scheme in SHARED
    return 0 if shared and not asked else worker.concurrency


def queues(settings: Settings, app: Registry | None = None) -> tuple[str, ...]:
    """What a pool or worker takes from. Who names queues gets those, and nothing else; without
    that the jobs of taskqueue.v1 are run beside those of the app, or of ``default``."""
    worker = settings.worker
    if "queues" in worker.model_fields_set:
        return tuple(worker.queues)
    return (*(worker.queues if app is None else app.queues()), engine_job.QUEUE)


def queue(settings: Settings, name: str = DEFAULT_QUEUE) -> Queue:
    """A queue with the configured defaults."""
    given = settings.queue
    # How long jobs are kept is not the queue's own: it follows the server's as that changes.
    inherited = [one for one in SETTINGS if hasattr(given, one) and not one.endswith("retention")]
    return Queue(name=name, **{one: getattr(given, one) for one in inherited})


def dispatch(settings: Settings) -> Dispatch:
    """Who gets jobs to workers."""
    if settings.server.role == "api":
        return Dispatch.ELSEWHERE
    return Dispatch.ROSTER if settings.kafka.dispatch else Dispatch.LINKS


def engine(
    settings: Settings, dispatch: Dispatch = Dispatch.LINKS, version: str = __version__
) -> EngineSettings:
    """What the engine is told."""
    return EngineSettings(
        dispatch=dispatch,
        resend_after=settings.kafka.resend_after,
        queue=queue(settings),
        max_payload_bytes=settings.queue.max_payload_bytes,
        batch_size=settings.scheduler.batch_size,
        interval=settings.scheduler.interval,
        heartbeat_interval=settings.worker.heartbeat_interval,
        heartbeat_timeout=settings.worker.heartbeat_timeout,
        leader_ttl=settings.scheduler.leader_ttl,
        retention=settings.queue.retention,
        dead_letter_retention=settings.queue.dead_letter_retention,
        version=version,
    )


def periodic(settings: Settings, registry: Registry, backend: Backend) -> Periodic:
    """The ticker of an app's schedules."""
    said = settings.cron.catch_up
    late = registry.catch_up if said is None else said
    return Periodic(
        backend,
        registry.schedules.values(),
        catch_up=min(late, settings.queue.key_ttl),  # after that the key protects no longer
    )


def worker(
    settings: Settings,
    *,
    id: str,
    queues: Sequence[str],
    shutdown_timeout: float,
    exec_command: Sequence[str] | None = None,
    fallback: bool = False,
    recycle: bool = False,
) -> WorkerSettings:
    """What a worker is told."""
    return WorkerSettings(
        id=id,
        queues=tuple(queues),
        concurrency=settings.worker.concurrency,
        heartbeat_interval=settings.worker.heartbeat_interval,
        shutdown_timeout=shutdown_timeout,
        exec_command=list(exec_command) if exec_command else None,
        version=__version__,
        fallback=fallback,
        recycle=recycle,
    )


def http(
    settings: Settings,
    metrics: Metrics,
    figures: Figures,
    *,
    access: Access,
    limiter: Limiter | None,
    tls: ServerTls | None,
) -> HttpSettings:
    """What the HTTP face is told."""
    connections = most_connections(settings.http.max_connections)
    return HttpSettings(
        max_connections=connections,
        max_connections_per_address=min(connections, settings.http.max_connections_per_address),
        host=settings.http.host,
        allowed_hosts=tuple(settings.http.allowed_hosts),
        max_payload_bytes=settings.queue.max_payload_bytes,
        view=settings.http.view,
        metrics=lambda: metrics.render(figures),
        access=access,
        limiter=limiter,
        budgets=budgets_within(connections, security.budgets(settings)),
        tls=tls,
    )


def http_endpoint(settings: Settings) -> Endpoint:
    """Where HTTP listens."""
    how = " with --http-port or JQ_HTTP_PORT (0 takes a free one)"
    return Endpoint(settings.http.host, settings.http.port, "http.host", "http.port", how)


def grpc_endpoint(settings: Settings) -> Endpoint:
    """Where gRPC listens."""
    how = " with --grpc-port or JQ_GRPC_PORT (0 takes a free one)"
    return Endpoint(settings.grpc.host, settings.grpc.port, "grpc.host", "grpc.port", how)


def metrics_endpoint(settings: Settings) -> Endpoint:
    """Where a jq-worker shows its figures."""
    return Endpoint(
        settings.worker.metrics_host,
        settings.worker.metrics_port,
        "worker.metrics_host",
        "worker.metrics_port",
        " with --metrics-port or JQ_WORKER_METRICS_PORT (0 = none)",
    )


def pool_id(settings: Settings) -> str:
    """The name of a server's built-in pool.

    It is the same after a restart: a new incarnation under the old name takes over at once what
    a killed server was running. Servers side by side differ by their ports.
    """
    if settings.worker.id:
        return settings.worker.id
    port = settings.http.port or settings.grpc.port or os.getpid()
    return f"server-{socket.gethostname()}-{port}"


def worker_id(settings: Settings) -> str:
    """The name of a jq-worker."""
    return settings.worker.id or f"{socket.gethostname()}-{os.getpid()}"
