"""Build the layouts of the topologies that `jq-ctl up` can start.

A new topology needs a function here that returns its layout, and an entry in ``LAYOUTS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from jobqueue.connect.urls import is_redis
from jobqueue.core.address import Address
from jobqueue.core.errors import InvalidArgument
from jobqueue.fleet import layout
from jobqueue.fleet.layout import (
    SERVERS,
    SERVICES,
    TASKQUEUE_API,
    WORKERS,
    Layout,
    Probe,
    Process,
    UpRequest,
)
from jobqueue.taskqueue.components.model import TOTAL_WORKER_SLOTS
from jobqueue.taskqueue.designs import catalogue

_MARGIN = 5.0  # seconds that a process may need to end after the shutdown timeout of its work
# The address for calls to a server that listens on all addresses.
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
LOOPBACK = "127.0.0.1"
SERVER = "jobqueue.cli.server"  # module of jq-server

# Settings that need a different value in each process.
_ONE_EACH = ("http.port", "grpc.port", "worker.id", "worker.metrics_port", "worker.server")
# Flags of `jq-ctl up` that a jq-service knows by an environment variable.
_SERVICE_FLAGS = {
    "log.level": "LOG_LEVEL",
    "log.format": "LOG_FORMAT",
    "worker.concurrency": "WORKER_SLOTS",
}
_SHUTDOWN = ("server.shutdown_timeout", "worker.shutdown_timeout")


# The processes, wired by environment.


@dataclass(frozen=True, slots=True)
class Server:
    """Holds a jq-server's process and the addresses of its HTTP and gRPC APIs."""

    process: Process
    http: str | None
    grpc: str | None


def server(
    plan: UpRequest,
    name: str,
    environment: Mapping[str, str],
    needs: Mapping[str, str] | None = None,
    *,
    role: str = "server",
) -> Server:
    """Return the process of a jq-server with its own ports.

    ``needs`` maps an environment variable to the backing service whose URL the variable gets. A
    server with the role ``scheduler`` serves no API, only the HTTP pages of health and metrics.
    """
    settings = plan.settings
    calls = role != "scheduler"
    http_port = _port(plan, "http.port", settings.http.port)
    ports = [http_port, _port(plan, "grpc.port", settings.grpc.port)] if calls else [http_port]
    tls = bool(settings.tls.cert)
    web = _reachable(settings.http.host, http_port)
    http = f"{'https' if tls else 'http'}://{web}" if settings.http.enabled else None
    grpc = _reachable(settings.grpc.host, ports[-1])
    if http is None and not calls:
        raise InvalidArgument(
            "http.enabled", "must be true: a scheduler shows its health over HTTP only"
        )
    if http is None and not settings.grpc.enabled:
        raise InvalidArgument(
            "http.enabled",
            "must be true if grpc.enabled is false: a server needs at least one API",
        )
    told = dict(zip(("JQ_HTTP_PORT", "JQ_GRPC_PORT"), map(str, ports), strict=False))
    process = Process(
        name=name,
        role=role,
        stage=SERVERS,
        module=SERVER,
        ports=tuple(ports),
        arguments=plan.arguments,
        environment={**plan.environment(), **told, **environment},
        needs=needs or {},
        probe=Probe(*web, "/readyz" if calls else "/healthz", tls) if http else Probe(*grpc),
        address=(http or str(grpc)) if calls else f"{http}/metrics",
        stop_timeout=settings.server.shutdown_timeout + _MARGIN,
    )
    return Server(process, http, str(grpc) if settings.grpc.enabled else None)


def _reachable(host: str, port: int) -> Address:
    return Address(_ANY.get(host, host), port)


def worker(
    plan: UpRequest,
    name: str,
    environment: Mapping[str, str],
    needs: Mapping[str, str] | None = None,
) -> Process:
    """Return the process of a jq-worker.

    ``environment`` or ``needs`` names the servers or the store from which the worker gets its jobs.
    """
    settings = plan.settings.worker
    port = plan.ports.take()
    return Process(
        name=name,
        role="worker",
        stage=WORKERS,
        module="jobqueue.cli.worker",
        ports=(port,),
        arguments=plan.arguments,
        environment={
            **plan.environment(),
            # The same name after a restart, so that the old process's jobs fail over at once.
            "JQ_WORKER_ID": f"{name}-{plan.label}",
            "JQ_WORKER_METRICS_PORT": str(port),
            **environment,
        },
        needs=needs or {},
        probe=Probe(settings.metrics_host, port, "/healthz"),
        address=f"http://{Address(settings.metrics_host, port)}/metrics",
        stop_timeout=settings.shutdown_timeout + _MARGIN,
    )


def on_servers(plan: UpRequest, servers: Sequence[str]) -> dict[str, str]:
    """Return the environment variable that connects a worker to any of the given servers."""
    scheme = "grpcs" if plan.settings.tls.cert else "grpc"
    return {"JQ_WORKER_SERVER": f"{scheme}://{','.join(servers)}"}


def _service(
    plan: UpRequest,
    service: catalogue.Service[Any],
    stage: int,
    told: Mapping[str, str],
    *,
    name: str = "",
    port: int | None = None,
) -> Process:
    """Return the process of a jq-service.

    A worker of the task queue listens on no port; the probe checks its coordinator instead.
    """
    works = "worker_id" in service.schema.model_fields
    settings = plan.settings.worker if works else plan.settings.server
    environment = {"SHUTDOWN_TIMEOUT_MS": str(int(settings.shutdown_timeout * 1000)), **told}
    known = {variable.name for variable in service.all_variables}
    for path, variable in _SERVICE_FLAGS.items():
        if path in plan.flags and variable in known and plan.flags[path] != "auto":
            environment[variable] = plan.flags[path]  # `auto` is the service's default
    if service.port is not None and port is not None:
        environment |= {"BIND_HOST": LOOPBACK, service.port.name: str(port)}
        probe, address = Probe(LOOPBACK, port), f"{LOOPBACK}:{port}"
    else:  # a worker of the task queue is healthy while its coordinator can be reached
        probe, address = Probe(*Address.parse(told["COORDINATOR_ADDR"])), ""
    return Process(
        name=name or service.name,
        role=service.name,
        stage=stage,
        module="jobqueue.cli.service",
        arguments=(service.name,),
        environment=environment,
        probe=probe,
        address=address,
        ports=() if port is None else (port,),
        stop_timeout=settings.shutdown_timeout + _MARGIN,
    )


def _port(plan: UpRequest, path: str, given: int) -> int:
    return given if path in plan.flags and given else plan.ports.take()


def _refuse(plan: UpRequest, refused: Mapping[str, str]) -> None:
    for path, why in refused.items():
        if path in plan.flags:
            raise InvalidArgument(path, why)


_NEED_OWN = dict.fromkeys(
    _ONE_EACH,
    "every process needs its own value; give --port-base to choose the ports of all processes",
)


# The topologies.


def embedded(plan: UpRequest) -> Layout:
    """Return the layout of one jq-server that executes jobs itself, with an SQLite file."""
    plan.refuse_all_but("embedded")
    file = quote(str(plan.folder / "jobqueue.db"))
    environment = {} if "db.url" in plan.flags else {"JQ_DB_URL": f"sqlite:///{file}"}
    return _layout("embedded", [server(plan, "server", environment)])


def _layout(
    name: str,
    servers: Sequence[Server],
    others: Sequence[Process] = (),
    services: Sequence[layout.BackingService] = (),
) -> Layout:
    """Return a layout whose clients call the given servers."""
    return Layout(
        name=name,
        processes=(*(made.process for made in servers), *others),
        services=tuple(services),
        http=tuple(made.http for made in servers if made.http),
        grpc=tuple(made.grpc for made in servers if made.grpc),
    )


# The workers execute all jobs: without this, the servers would execute some jobs themselves.
_NO_POOL = {"JQ_WORKER_CONCURRENCY": "0"}
_ON_POSTGRES = {"JQ_DB_URL": "postgres", "JQ_REDIS_URL": "redis"}


def replicated(plan: UpRequest) -> Layout:
    """Return the layout of several jq-servers and jq-workers on PostgreSQL and Redis.

    PostgreSQL is the authoritative store. Redis only coordinates the servers, and may fail.
    """
    plan.refuse_all_but("replicated", "servers", "workers", "postgres", "redis")
    _refuse(plan, _NEED_OWN)
    servers = [
        server(plan, f"server-{number + 1}", _NO_POOL, _ON_POSTGRES)
        for number in range(plan.count("servers", 2, least=1))
    ]
    targets = [made.grpc for made in servers if made.grpc]
    if not targets:
        raise InvalidArgument("grpc.enabled", "must be true: the workers call the servers by gRPC")
    workers = []
    for number in range(plan.count("workers", 2, least=0)):
        first = number % len(targets)  # each worker begins with another server
        environment = on_servers(plan, targets[first:] + targets[:first])
        workers.append(worker(plan, f"worker-{number + 1}", environment))
    db = plan.settings.db.url
    named = db if db.startswith(("postgresql://", "postgres://")) else None
    services = [
        layout.BackingService("postgres", plan.postgres or named),
        layout.BackingService("redis", plan.redis or plan.settings.redis.url or None),
    ]
    return _layout("replicated", servers, workers, services)


_PROFILE = {"JQ_PROFILE": "streaming"}
_KAFKA = {"JQ_KAFKA_BOOTSTRAP": "kafka"}
_ON_REDIS = {"JQ_DB_URL": "redis", **_KAFKA}
# No accepted job is lost: Redis answers a write when it is on the disk, and a full Redis refuses
# writes instead of removing keys.
_DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
_DECIDED = {
    path: f"cannot be set for the streaming topology: {why}"
    for path, why in {
        "profile": "its profile is always `streaming`",
        "kafka.dispatch": "its workers always learn of their jobs by Kafka",
        "server.role": "each process has its own role",
        "db.url": "give the URL of Redis, which is its database, with --redis",
        "redis.url": "give the URL of Redis with --redis",
        "kafka.bootstrap": "give the address of Kafka with --kafka",
    }.items()
}


def streaming(plan: UpRequest) -> Layout:
    """Return the layout of an API server, schedulers and workers on Redis and Kafka.

    One scheduler leads. Redis is the authoritative store. Kafka carries hints and the event stream.
    """
    plan.refuse_all_but("streaming", "schedulers", "workers", "redis", "kafka")
    _refuse(plan, {**_NEED_OWN, **_DECIDED})
    api = server(plan, "api", {**_PROFILE, "JQ_SERVER_ROLE": "api"}, _ON_REDIS)
    schedules = {**_PROFILE, "JQ_SERVER_ROLE": "scheduler"}
    schedulers = [
        server(plan, f"scheduler-{number + 1}", schedules, _ON_REDIS, role="scheduler").process
        for number in range(plan.count("schedulers", 2, least=1))
    ]
    workers = [
        worker(plan, f"worker-{number + 1}", _PROFILE, {"JQ_WORKER_SERVER": "redis", **_KAFKA})
        for number in range(plan.count("workers", 2, least=0))
    ]
    db = plan.settings.db.url
    redis = plan.redis or (db if is_redis(db) else None)
    kafka = plan.kafka or plan.settings.kafka.bootstrap or None
    services = [
        layout.BackingService("redis", redis, _DURABLE),
        layout.BackingService("kafka", kafka),
    ]
    return _layout("streaming", [api], [*schedulers, *workers], services)


def microservices(plan: UpRequest) -> Layout:
    """Return the layout of Design A in docs/taskqueue.md: six services, each in its own process."""
    _check_service_flags(plan, "microservices")
    # In the order of the document: gateway 50051, job 50052, … with --port-base 50051.
    port = {service.name: plan.ports.take() for service in catalogue.DESIGN_A if service.port}
    address = {name: f"{LOOPBACK}:{number}" for name, number in port.items()}
    owners = {
        "JOB_SERVICE_ADDR": address["job"],
        "QUEUE_SERVICE_ADDR": address["queue"],
        "RESULT_SERVICE_ADDR": address["result"],
    }
    work = {
        "COORDINATOR_ADDR": address["coordinator"],
        "WORKER_SLOTS": str(TOTAL_WORKER_SLOTS),
        "WORKER_ID": f"worker-{plan.label}",
    }
    stages = (
        *((owner, SERVICES, {}) for owner in (catalogue.JOB, catalogue.QUEUE, catalogue.RESULT)),
        *((caller, SERVERS, owners) for caller in (catalogue.COORDINATOR, catalogue.GATEWAY)),
        (catalogue.WORKER, WORKERS, work),
    )
    return Layout(
        name="microservices",
        processes=tuple(
            _service(plan, service, stage, told, port=port.get(service.name))
            for service, stage, told in stages
        ),
        grpc=(address["gateway"],),
        api=TASKQUEUE_API,
    )


def nodes(plan: UpRequest) -> Layout:
    """Return the layout of Design B in docs/taskqueue.md: equal nodes, each with all functions."""
    _check_service_flags(plan, "nodes", "nodes")
    count = plan.count("nodes", 6, least=1)
    ports = [plan.ports.take() for _ in range(count)]
    addresses = tuple(f"{LOOPBACK}:{port}" for port in ports)
    each, more = divmod(TOTAL_WORKER_SLOTS, count)  # in total as many slots as Design A has
    return Layout(
        name="nodes",
        processes=tuple(
            _service(
                plan,
                catalogue.NODE,
                SERVERS,
                {
                    "NODES": ",".join(addresses),
                    "NODE_INDEX": str(index),
                    "WORKER_SLOTS": str(max(1, each + (index < more))),
                    "WORKER_ID": f"node-{index}-{plan.label}",
                },
                name=f"node-{index}",
                port=port,
            )
            for index, port in enumerate(ports)
        ),
        grpc=addresses,
        api=TASKQUEUE_API,
    )


def _check_service_flags(plan: UpRequest, name: str, *taken: str) -> None:
    """Raise InvalidArgument for flags and files with settings that a jq-service does not have."""
    plan.refuse_all_but(name, *taken)
    why = (
        f"is not for the {name} topology, whose services are configured by environment variables:"
        " see docs/taskqueue.md"
    )
    if plan.config_file is not None:
        raise InvalidArgument("--config", why)
    _refuse(plan, {path: why for path in plan.flags if path not in (*_SERVICE_FLAGS, *_SHUTDOWN)})


LAYOUTS: dict[str, Callable[[UpRequest], Layout]] = {
    made.__name__: made for made in (embedded, replicated, streaming, microservices, nodes)
}
