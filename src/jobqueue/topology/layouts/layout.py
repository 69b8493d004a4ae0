"""What a topology is made of: its processes, the services behind them, and their order."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

# The gRPC packages that a layout may answer.
JQ_API = "jq.v1"
TASKQUEUE_API = "taskqueue.v1"

# The order of a start; a stop goes the other way. A stage begins when the one before is ready.
SERVICES = 0
SERVERS = 1
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Probe:
    """How health is asked: a page that answers 200 or, without a path, a port that connects."""

    host: str
    port: int
    path: str = ""
    tls: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """One process. What it is told travels by environment: a command line is no secret."""

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
        """Its command line."""
        return (sys.executable, "-m", self.module, *self.arguments)


@dataclass(frozen=True, slots=True)
class Service:
    """A database or the like. One with a URL is somebody else's: used, and left alone."""

    name: str
    url: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # of one of our own


@dataclass(frozen=True, slots=True)
class Layout:
    """A topology on this machine."""

    name: str
    processes: tuple[Process, ...]
    services: tuple[Service, ...] = ()
    http: tuple[str, ...] = ()  # URLs where HTTP answers
    grpc: tuple[str, ...] = ()  # HOST:PORT where gRPC answers
    api: str = JQ_API  # what answers there
