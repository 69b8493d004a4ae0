"""The parts of a topology on one machine, and the wishes that it is made from."""

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

# The gRPC packages that a layout may answer.
JQ_API = "jq.v1"
TASKQUEUE_API = "taskqueue.v1"

# The order of a start; a stop goes the other way. A stage begins when the one before is ready.
SERVICES = 0
SERVERS = 1
WORKERS = 2

MOST = 100  # of servers or workers on one machine


@dataclass(frozen=True, slots=True)
class Probe:
    """A question for health: a page that answers 200 or, without a path, a port that connects."""

    host: str
    port: int
    path: str = ""
    tls: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """One process. It gets its settings by environment: other users can read a command line."""

    name: str
    role: str
    stage: int
    module: str
    environment: Mapping[str, str]
    probe: Probe
    address: str
    stop_timeout: float
    ports: tuple[int, ...] = ()  # where it listens
    arguments: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)  # variable: the service whose URL it is

    @property
    def command(self) -> tuple[str, ...]:
        # -P: a module in the folder that we are called in must not take the place of ours.
        return (sys.executable, "-P", "-m", self.module, *self.arguments)


@dataclass(frozen=True, slots=True)
class BackingService:
    """A database or the like: a private one or, with a URL, one of the user's, left alone."""

    name: str
    url: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # of a private one


@dataclass(frozen=True, slots=True)
class Layout:
    """A topology on this machine."""

    name: str
    processes: tuple[Process, ...]
    services: tuple[BackingService, ...] = ()
    http: tuple[str, ...] = ()  # URLs where HTTP answers
    grpc: tuple[str, ...] = ()  # HOST:PORT where gRPC answers
    api: str = JQ_API  # the gRPC package that answers there


_TAKERS = {"servers": "replicated", "workers": "replicated", "postgres": "replicated",
           "redis": "replicated", "kafka": "streaming", "schedulers": "streaming",
           "nodes": "nodes"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class UpRequest:
    """The wishes behind one `up`. None: the user did not say."""

    folder: Path
    settings: Settings
    ports: Ports = field(default_factory=Ports)
    flags: Mapping[str, str] = field(default_factory=dict)  # the command line's, by full name
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
        """Distinguishes the workers of this machine and folder from others on the same database."""
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:4]
        return f"{socket.gethostname()}-{digest}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command line of every process."""
        return ("--config", str(self.config_file)) if self.config_file else ()

    def environment(self) -> dict[str, str]:
        """Return the settings of the command line, for every process."""
        return {keys()[path].env: value for path, value in self.flags.items()}

    def refuse_all_but(self, layout: str, *taken: str) -> None:
        """Raise InvalidArgument for a wish that the layout does not have."""
        for name, taker in _TAKERS.items():
            if name not in taken and getattr(self, name) is not None:
                raise InvalidArgument(
                    f"--{name}", f"is not for the {layout} topology; `up {taker}` takes it"
                )

    def count(self, name: str, default: int, least: int) -> int:
        """Return how many of these were asked for; InvalidArgument where that is out of bounds."""
        value = getattr(self, name)
        if value is None:
            return default
        if not least <= value <= MOST:
            raise InvalidArgument(f"--{name}", f"must be {least} to {MOST}")
        return int(value)
