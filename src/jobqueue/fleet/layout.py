"""Describe a topology on one machine: the user's request, and its processes and services."""

from __future__ import annotations

import hashlib
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jobqueue.config import Settings, keys
from jobqueue.core.errors import InvalidArgument
from jobqueue.fleet.ports import Ports

# The gRPC packages that the servers of a layout may serve.
JQ_API = "jq.v1"
TASKQUEUE_API = "taskqueue.v1"

# The stages of a start. A stage begins when the earlier stage is ready; a stop reverses the order.
SERVICES = 0
SERVERS = 1
WORKERS = 2

MOST = 100  # the most servers, or workers, on one machine


@dataclass(frozen=True, slots=True)
class Probe:
    """Describes a health check of a process.

    With a ``path``, an HTTP GET must return status 200. Without a path, a TCP connection must
    succeed.
    """

    host: str
    port: int
    path: str = ""
    tls: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """Describes a process of a topology.

    A process gets its settings as environment variables, because other users could read its command
    line.
    """

    name: str
    role: str
    stage: int
    module: str
    environment: Mapping[str, str]
    probe: Probe
    address: str
    stop_timeout: float
    ports: tuple[int, ...] = ()  # on which the process listens
    arguments: tuple[str, ...] = ()
    # Environment variables, each with the name of the backing service whose URL it gets.
    needs: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> tuple[str, ...]:
        # -P: a module in the current folder must not replace a module of this package.
        return (sys.executable, "-P", "-m", self.module, *self.arguments)


@dataclass(frozen=True, slots=True)
class BackingService:
    """Describes a database or Kafka behind a topology.

    With a ``url``, it is a server of the user, which the topology does not start or stop. Without a
    URL, it is a private server that the topology starts.
    """

    name: str
    url: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # of a private server


@dataclass(frozen=True, slots=True)
class Layout:
    """Describes a topology on this machine: its processes, services and addresses."""

    name: str
    processes: tuple[Process, ...]
    services: tuple[BackingService, ...] = ()
    http: tuple[str, ...] = ()  # URLs of the servers' HTTP APIs
    grpc: tuple[str, ...] = ()  # HOST:PORT of the servers' gRPC APIs
    api: str = JQ_API  # the gRPC package of these servers


_TAKERS = {"servers": "replicated", "workers": "replicated", "postgres": "replicated",
           "redis": "replicated", "kafka": "streaming", "schedulers": "streaming",
           "nodes": "nodes"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class UpRequest:
    """Holds the flags and settings of one `jq-ctl up`. A flag that was not given is None."""

    folder: Path
    settings: Settings
    ports: Ports = field(default_factory=Ports)
    flags: Mapping[str, str] = field(default_factory=dict)  # flags of settings, by full name
    config_file: Path | None = None
    servers: int | None = None
    workers: int | None = None
    postgres: str | None = None
    redis: str | None = None
    kafka: str | None = None
    schedulers: int | None = None
    nodes: int | None = None

    @property
    def label(self) -> str:
        """Return a text for worker ids that identifies this machine and this folder.

        With this text, two topologies on the same database do not have workers with the same id.
        """
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:4]
        return f"{socket.gethostname()}-{digest}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the command-line arguments that every process gets."""
        return ("--config", str(self.config_file)) if self.config_file else ()

    def environment(self) -> dict[str, str]:
        """Return the settings of the command line as environment variables for every process."""
        return {keys()[path].env: value for path, value in self.flags.items()}

    def refuse_all_but(self, layout: str, *taken: str) -> None:
        """Raise InvalidArgument if the user gave a flag of another topology.

        ``taken`` names the flags that the given layout accepts.
        """
        for name, taker in _TAKERS.items():
            if name not in taken and getattr(self, name) is not None:
                raise InvalidArgument(
                    f"--{name}", f"is not for the {layout} topology, but for `up {taker}`"
                )

    def count(self, name: str, default: int, least: int) -> int:
        """Return the number that the user gave with the flag ``name``, or the default.

        Raise InvalidArgument if the number is less than ``least`` or more than ``MOST``.
        """
        value = getattr(self, name)
        if value is None:
            return default
        if not least <= value <= MOST:
            raise InvalidArgument(f"--{name}", f"must be {least} to {MOST}")
        return int(value)
