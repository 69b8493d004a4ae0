"""Create the settings of each part of a process from the settings tree."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from jobqueue._version import __version__
from jobqueue.access.limits import Limiter
from jobqueue.access.policy import Access
from jobqueue.access.tls import ServerTls
from jobqueue.api.http.connections import budgets_within, most_connections
from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.api.listening import Endpoint
from jobqueue.config import Loaded, Settings
from jobqueue.connect.backends import create_locks
from jobqueue.connect.urls import SHARED, parse_url, with_password
from jobqueue.core.api import Backend
from jobqueue.core.job import DEFAULT_QUEUE, ComponentHealth
from jobqueue.core.observer import Observer
from jobqueue.core.queue import SETTINGS, Queue
from jobqueue.core.schedule import CATCH_UP
from jobqueue.core.store import Locks, Rules
from jobqueue.engine.settings import Dispatch, EngineSettings
from jobqueue.metrics import Metrics, ScrapedBackend
from jobqueue.server import security
from jobqueue.taskqueue import engine_job
from jobqueue.worker.periodic import CodeSchedules
from jobqueue.worker.registry import Registry
from jobqueue.worker.settings import WorkerSettings


def rules(settings: Settings) -> Rules:
    return Rules(
        assignment_timeout=settings.scheduler.assignment_timeout,
        key_ttl=settings.queue.key_ttl,
        poison_after=settings.queue.poison_after,
        workers_per_owner=settings.limits.workers_per_caller,
    )


def db_url(settings: Settings, url: str | None = None) -> str:
    """Return the store's URL with the password. Logs and errors must not show it."""
    return with_password(url or settings.db.url, security.password(settings.db, "db"))


def locks(settings: Settings, observer: Observer, url: str | None = None) -> Locks | None:
    """Create the locks in Redis; return None if the settings name no Redis."""
    chosen = with_password(url or settings.redis.url, security.password(settings.redis, "redis"))
    return create_locks(chosen, timeout=settings.redis.timeout, observer=observer)


def pool_concurrency(settings: Settings) -> int:
    """Return how many jobs a server's built-in worker runs at once; 0 means no such worker.

    On PostgreSQL and Redis, the built-in worker runs only if worker.app or worker.concurrency is
    set. Other servers may share such a store, and a worker without an app would claim jobs whose
    tasks only the workers of other servers know.
    """
    if settings.server.role != "all":
        return 0
    worker = settings.worker
    asked = bool(worker.app) or "concurrency" in worker.model_fields_set
    shared = parse_url(settings.db.url, "db.url").scheme in SHARED
    return 0 if shared and not asked else worker.concurrency


def queues(settings: Settings, app: Registry | None = None) -> tuple[str, ...]:
    """Return the queues that a worker serves.

    These are the queues in worker.queues if that is set. Otherwise they are the app's queues
    (without an app, ``default``) and the queue of taskqueue.v1.
    """
    worker = settings.worker
    if "queues" in worker.model_fields_set:
        return tuple(worker.queues)
    return (*(worker.queues if app is None else app.queues()), engine_job.QUEUE)


def queue(settings: Settings, name: str = DEFAULT_QUEUE) -> Queue:
    """Return a queue with the configured default settings."""
    given = settings.queue
    # The retention is not copied into the queue: it follows the server's setting.
    inherited = [one for one in SETTINGS if hasattr(given, one) and not one.endswith("retention")]
    return Queue(name=name, **{one: getattr(given, one) for one in inherited})


def dispatch(settings: Settings) -> Dispatch:
    if settings.server.role == "api":
        return Dispatch.ELSEWHERE
    return Dispatch.ROSTER if settings.kafka.dispatch else Dispatch.LINKS


def engine(
    settings: Settings, dispatch: Dispatch = Dispatch.LINKS, version: str = __version__
) -> EngineSettings:
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
        catch_up=CATCH_UP if settings.cron.catch_up is None else settings.cron.catch_up,
        key_ttl=settings.queue.key_ttl,
        version=version,
    )


def code_schedules(settings: Settings, registry: Registry, backend: Backend) -> CodeSchedules:
    said = settings.cron.catch_up
    late = registry.catch_up if said is None else said
    return CodeSchedules(
        backend,
        registry.schedules.values(),
        catch_up=min(late, settings.queue.key_ttl),  # later, a job could be submitted twice
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
    figures: ScrapedBackend,
    *,
    access: Access,
    limiter: Limiter | None,
    tls: ServerTls | None,
    failed_parts: Callable[[], Sequence[ComponentHealth]],
    sources: Mapping[str, str] | None = None,
) -> HttpFaceSettings:
    connections = most_connections(settings.http.max_connections)
    return HttpFaceSettings(
        max_connections=connections,
        max_connections_per_address=min(connections, settings.http.max_connections_per_address),
        host=settings.http.host,
        allowed_hosts=tuple(settings.http.allowed_hosts),
        max_payload_bytes=settings.queue.max_payload_bytes,
        view=settings.http.view,
        metrics=lambda: metrics.render(figures),
        failed_parts=failed_parts,
        access=access,
        limiter=limiter,
        budgets=budgets_within(connections, security.budgets(settings)),
        tls=tls,
        console=settings.http.console,
        configuration=Loaded(settings, sources=dict(sources or {})).shown(),
    )


def endpoint(settings: Settings, face: Literal["http", "grpc"]) -> Endpoint:
    """Return the address on which a face listens."""
    chosen = settings.http if face == "http" else settings.grpc
    how = f" with --{face}-port or JQ_{face.upper()}_PORT (0 takes a free one)"
    return Endpoint(chosen.host, chosen.port, f"{face}.host", f"{face}.port", how)


def metrics_endpoint(settings: Settings) -> Endpoint:
    """Return the address on which a jq-worker serves /metrics."""
    return Endpoint(
        settings.worker.metrics_host,
        settings.worker.metrics_port,
        "worker.metrics_host",
        "worker.metrics_port",
        " with --metrics-port or JQ_WORKER_METRICS_PORT (0 = none)",
    )


def pool_id(settings: Settings) -> str:
    """Return the id of a server's built-in worker.

    The id is the same after a restart. When the new process registers the id, the killed process
    loses its leases, so that its jobs are retried without waiting for a timeout. Several servers on
    one machine have different ports, and so different ids.
    """
    if settings.worker.id:
        return settings.worker.id
    port = settings.http.port or settings.grpc.port or os.getpid()
    return f"server-{socket.gethostname()}-{port}"


def worker_id(settings: Settings) -> str:
    return settings.worker.id or f"{socket.gethostname()}-{os.getpid()}"
