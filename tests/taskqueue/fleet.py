"""The six services as real processes on this machine, each of which can be killed and started."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jobqueue.taskqueue.designs.catalogue import DESIGN_A
from tests import patience, ports
from tests.cli.processes import START_TIMEOUT, Service

LOOPBACK = "127.0.0.1"
WORKER_ID = "the-worker"
REQUIRED = {"ts_ms", "level", "service", "method", "event", "message"}


class Fleet:
    """Ports stay the same, so that one that was killed is found again."""

    def __init__(self, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._ports = {one.port.name: str(ports.take()) for one in DESIGN_A if one.port}
        self.address = {
            one.name: f"{LOOPBACK}:{self._ports[one.port.name]}" for one in DESIGN_A if one.port
        }
        self._environ = {
            "BIND_HOST": LOOPBACK,
            "WORKER_ID": WORKER_ID,
            **self._ports,
            "JOB_SERVICE_ADDR": self.address["job"],
            "QUEUE_SERVICE_ADDR": self.address["queue"],
            "RESULT_SERVICE_ADDR": self.address["result"],
            "COORDINATOR_ADDR": self.address["coordinator"],
            **(environ or {}),
        }
        self.running: dict[str, Service] = {}
        self._all: list[Service] = []

    def launch(self, *names: str) -> None:
        """Start some, all at once; the order must not matter."""
        for name in names or [one.name for one in DESIGN_A]:
            started = Service("service", name, cwd=self._folder, **self._environ)
            self.running[name] = started
            self._all.append(started)

    def ready(self) -> None:
        for name, service in self.running.items():
            assert event(service, "ready")["service"] == name

    def kill(self, name: str) -> None:
        """As the kernel does when memory is short."""
        killed = self.running.pop(name)
        killed.signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL

    def lines(self, names: Iterable[str]) -> list[dict[str, Any]]:
        return [line for name in names for line in list(self.running[name].lines)]

    def end(self) -> None:
        for service in self._all:
            if service.process.poll() is None:
                service.signal(signal.SIGCONT)
            service.__exit__()


def event(
    service: Service, name: str, timeout: float = START_TIMEOUT, *, after: int = 0, **fields: object
) -> dict[str, Any]:
    """Wait for a line with this event and these fields, beyond the first ``after`` lines."""
    limit = patience.Limit(timeout)
    while True:
        ended = service.process.poll() is not None
        for line in service.lines[after:]:
            if line["event"] == name and fields.items() <= line.items():
                return line
        if ended or limit.over:
            raise AssertionError(f"no {name!r} in {service.lines} {service.noise}")
        time.sleep(0.02)
