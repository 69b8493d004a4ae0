"""The processes that layouts are made of: jq-server and jq-worker, wired by environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobqueue.core.errors import InvalidArgument
from jobqueue.topology.layouts.layout import SERVERS, WORKERS, Probe, Process
from jobqueue.topology.layouts.plan import Plan

_MARGIN = 5.0  # for what a process does besides the work that its own deadline bounds
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where one that listens everywhere is asked


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
        module="jobqueue.cli.server",
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


def worker(plan: Plan, name: str, servers: Sequence[str]) -> Process:
    """A jq-worker that takes jobs from any of the servers."""
    settings = plan.settings
    port = plan.ports.take()
    scheme = "grpcs" if settings.tls.cert else "grpc"
    return Process(
        name=name,
        role="worker",
        stage=WORKERS,
        module="jobqueue.cli.worker",
        ports=(port,),
        arguments=plan.arguments,
        environment={
            **plan.environment(),
            "JQ_WORKER_SERVER": f"{scheme}://{','.join(servers)}",
            # The same name after a restart: what the old process held fails over at once.
            "JQ_WORKER_ID": f"{name}-{plan.label}",
            "JQ_WORKER_METRICS_PORT": str(port),
        },
        probe=Probe(settings.worker.metrics_host, port, "/healthz"),
        address=f"http://{_joined(settings.worker.metrics_host, port)}/metrics",
        stop_timeout=settings.worker.shutdown_timeout + _MARGIN,
    )


def _port(plan: Plan, path: str, given: int) -> int:
    return given if path in plan.flags and given else plan.ports.take()


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
