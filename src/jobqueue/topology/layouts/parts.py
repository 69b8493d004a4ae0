"""The processes that layouts are made of, wired by environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobqueue.core.errors import InvalidArgument
from jobqueue.topology.layouts.layout import SERVERS, WORKERS, Probe, Process
from jobqueue.topology.layouts.plan import Plan
from jobqueue.topology.taskqueue import catalogue
from jobqueue.topology.taskqueue.catalogue import Service
from jobqueue.topology.taskqueue.environment import Variable

_MARGIN = 5.0  # for what a process does besides the work that its own deadline bounds
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where one that listens everywhere is asked

LOOPBACK = "127.0.0.1"
SERVER = "jobqueue.cli.server"  # module of jq-server
# Settings of the command line that a jq-service has too, under another name.
_SHARED_FLAGS: dict[str, Variable[Any]] = {
    "log.level": catalogue.LOG_LEVEL,
    "log.format": catalogue.LOG_FORMAT,
    "worker.concurrency": catalogue.WORKER_SLOTS,
}
# Settings that every process needs another value of.
SEVERAL = ("http.port", "grpc.port", "worker.id", "worker.metrics_port", "worker.server")
_SHUTDOWN = ("server.shutdown_timeout", "worker.shutdown_timeout")


@dataclass(frozen=True, slots=True)
class Server:
    """A jq-server and where it answers."""

    process: Process
    http: str | None
    grpc: str | None


def server(
    plan: Plan,
    name: str,
    environment: Mapping[str, str],
    needs: Mapping[str, str] | None = None,
) -> Server:
    """A jq-server on ports of its own."""
    settings = plan.settings
    tls = bool(settings.tls.cert)
    http_port = _port(plan, "http.port", settings.http.port)
    grpc_port = _port(plan, "grpc.port", settings.grpc.port)
    http_host = _ANY.get(settings.http.host, settings.http.host)
    grpc_host = _ANY.get(settings.grpc.host, settings.grpc.host)
    http = f"{'https' if tls else 'http'}://{_joined(http_host, http_port)}"
    grpc = _joined(grpc_host, grpc_port)
    if settings.http.enabled:
        probe = Probe(http_host, http_port, "/readyz", tls)
    elif settings.grpc.enabled:
        probe = Probe(grpc_host, grpc_port)
    else:
        raise InvalidArgument("http.enabled", "a server without HTTP and gRPC answers nobody")
    process = Process(
        name=name,
        role="server",
        stage=SERVERS,
        module=SERVER,
        ports=(http_port, grpc_port),
        arguments=plan.arguments,
        environment={
            **plan.environment(),
            "JQ_HTTP_PORT": str(http_port),
            "JQ_GRPC_PORT": str(grpc_port),
            **environment,
        },
        needs=needs or {},
        probe=probe,
        address=http if settings.http.enabled else grpc,
        stop_timeout=settings.server.shutdown_timeout + _MARGIN,
    )
    return Server(
        process, http if settings.http.enabled else None, grpc if settings.grpc.enabled else None
    )


def scheduler(
    plan: Plan, name: str, environment: Mapping[str, str], needs: Mapping[str, str]
) -> Process:
    """A jq-server that assigns jobs, and answers nothing but how it is."""
    settings = plan.settings
    if not settings.http.enabled:
        raise InvalidArgument("http.enabled", "must be true: a scheduler tells there how it is")
    tls = bool(settings.tls.cert)
    port = plan.ports.take()
    host = _ANY.get(settings.http.host, settings.http.host)
    return Process(
        name=name,
        role="scheduler",
        stage=SERVERS,
        module=SERVER,
        ports=(port,),
        arguments=plan.arguments,
        environment={**plan.environment(), "JQ_HTTP_PORT": str(port), **environment},
        needs=needs,
        probe=Probe(host, port, "/healthz", tls),
        address=f"{'https' if tls else 'http'}://{_joined(host, port)}/metrics",
        stop_timeout=settings.server.shutdown_timeout + _MARGIN,
    )


def worker(plan: Plan, name: str, servers: Sequence[str]) -> Process:
    """A jq-worker that takes jobs from any of the servers."""
    scheme = "grpcs" if plan.settings.tls.cert else "grpc"
    return worker_on(plan, name, {"JQ_WORKER_SERVER": f"{scheme}://{','.join(servers)}"}, {})


def worker_on(
    plan: Plan, name: str, environment: Mapping[str, str], needs: Mapping[str, str]
) -> Process:
    """A jq-worker that is told where its jobs come from."""
    settings = plan.settings
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
            # The same name after a restart: what the old process held fails over at once.
            "JQ_WORKER_ID": f"{name}-{plan.label}",
            "JQ_WORKER_METRICS_PORT": str(port),
            **environment,
        },
        needs=needs,
        probe=Probe(settings.worker.metrics_host, port, "/healthz"),
        address=f"http://{_joined(settings.worker.metrics_host, port)}/metrics",
        stop_timeout=settings.worker.shutdown_timeout + _MARGIN,
    )


def service(
    plan: Plan,
    chosen: Service,
    stage: int,
    *,
    name: str = "",
    port: int | None = None,
    told: Mapping[str, str],
) -> Process:
    """A jq-service on this machine; one without a port calls the coordinator."""
    works = catalogue.WORKER_ID in chosen.variables
    settings = plan.settings
    shutdown = settings.worker.shutdown_timeout if works else settings.server.shutdown_timeout
    environment = {catalogue.SHUTDOWN_TIMEOUT_MS.name: str(int(shutdown * 1000)), **told}
    for path, variable in _SHARED_FLAGS.items():
        if (path, plan.flags.get(path)) == ("log.format", "auto"):
            continue  # its output is a file: what it writes by default
        if path in plan.flags and variable.name in {one.name for one in chosen.all_variables}:
            environment[variable.name] = plan.flags[path]
    if chosen.port is not None and port is not None:
        environment |= {catalogue.BIND_HOST.name: LOOPBACK, chosen.port.name: str(port)}
        probe, address = Probe(LOOPBACK, port), f"{LOOPBACK}:{port}"
    else:  # as the document says: it is well while it can reach its coordinator
        host, _, number = told[catalogue.COORDINATOR_ADDR.name].rpartition(":")
        probe, address = Probe(host, int(number)), ""
    return Process(
        name=name or chosen.name,
        role=chosen.name,
        stage=stage,
        module="jobqueue.cli.service",
        arguments=(chosen.name,),
        environment=environment,
        probe=probe,
        address=address,
        ports=() if port is None else (port,),
        stop_timeout=shutdown + _MARGIN,
    )


def check_service_flags(plan: Plan, layout: str) -> None:
    """Refuse settings that a jq-service does not have."""
    why = f"is not for the {layout} topology: docs/taskqueue.md has the variables of its services"
    if plan.config_file is not None:
        raise InvalidArgument("--config", why)
    for path in plan.flags:
        if path not in _SHARED_FLAGS and path not in _SHUTDOWN:
            raise InvalidArgument(path, why)


def refuse_one_for_all(plan: Plan) -> None:
    """Say so when one value is given to processes that need different ones."""
    for path in SEVERAL:
        if path in plan.flags:
            raise InvalidArgument(
                path, "every process needs its own; --port-base chooses the ports of all"
            )


def _port(plan: Plan, path: str, given: int) -> int:
    return given if path in plan.flags and given else plan.ports.take()


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
