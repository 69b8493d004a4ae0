"""What a person asked for, as the layouts read it."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jobqueue.config import Settings, keys
from jobqueue.core.errors import InvalidArgument
from jobqueue.topology.layouts.ports import Ports

MOST = 100  # of servers or workers on one machine


@dataclass(frozen=True, slots=True)
class Plan:
    """The wishes behind one ``up``; None means that nobody said."""

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
        """Tells this machine's and this folder's workers from others on the same database."""
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:4]
        return f"{socket.gethostname()}-{digest}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """What every process is told on its command line."""
        return ("--config", str(self.config_file)) if self.config_file else ()

    def environment(self) -> dict[str, str]:
        """The settings of the command line, for every process."""
        return {keys()[path].env: value for path, value in self.flags.items()}

    def refuse_all_but(self, layout: str, *taken: str) -> None:
        """Say so when something was asked for that the layout does not have."""
        wishes: dict[str, tuple[object, str]] = {
            "--servers": (self.servers, "replicated"),
            "--workers": (self.workers, "replicated"),
            "--postgres": (self.postgres, "replicated"),
            "--redis": (self.redis, "replicated"),
            "--kafka": (self.kafka, "streaming"),
            "--schedulers": (self.schedulers, "streaming"),
            "--nodes": (self.nodes, "nodes"),
        }
        for name, (value, taker) in wishes.items():
            if value is not None and name not in taken:
                raise InvalidArgument(
                    name, f"is not for the {layout} topology; `up {taker}` takes it"
                )


def counted(name: str, value: int | None, default: int, least: int) -> int:
    """How many there shall be, within bounds."""
    if value is None:
        return default
    if not least <= value <= MOST:
        raise InvalidArgument(name, f"must be {least} to {MOST}")
    return value
