"""A real jq-server under attack: its memory, and what a healthy caller sees meanwhile.

with target.watched() as seen:
    ...the attack...
assert seen.grown_mib < 60
seen.check_healthy()
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from tests import patience
from tests.cli.processes import Service

KEYS = {
    "client": "client-key-0123456789",
    "other": "other-client-key-0123456789",
    "worker": "worker-key-0123456789",
    "operator": "operator-key-0123456789",
    "monitor": "monitor-key-0123456789",
}
API_KEYS = ",".join(
    f"{name}:{'client' if name == 'other' else name}:{key}" for name, key in KEYS.items()
)
# A healthy caller may wait this long on a quiet machine. The attacks that these tests are about
# took the server away for half a minute and more.
LONGEST_WAIT = 5.0
_PAUSE = 0.05


def metadata(name: str) -> tuple[tuple[str, str], ...]:
    """What a gRPC call shows."""
    return (("authorization", f"Bearer {KEYS[name]}"),)


def headers(name: str) -> dict[str, str]:
    """What an HTTP request shows."""
    return {"Authorization": f"Bearer {KEYS[name]}", "Content-Type": "application/json"}


@dataclass
class Seen:
    """What an attack did to the server."""

    before_mib: float
    peak_mib: float = 0.0
    waits: list[float] = field(default_factory=list)  # of the healthy caller, in seconds
    failures: list[str] = field(default_factory=list)

    @property
    def grown_mib(self) -> float:
        """How far the peak was above the memory before."""
        return self.peak_mib - self.before_mib

    def check_healthy(self, longest: float = LONGEST_WAIT) -> None:
        """Every call of the healthy caller was answered, and soon."""
        assert not self.failures, self.failures[:5]
        assert self.waits
        assert max(self.waits) < longest * patience.slowness(), f"{max(self.waits):.1f} s"


class Target:
    """A server that is ready."""

    def __init__(self, service: Service, tls: ssl.SSLContext | None = None) -> None:
        """``tls``: how to speak to a server that does."""
        ready = service.line("ready")
        self.service = service
        self.tls = tls
        self.http_port = int(str(ready["http"]).rpartition(":")[2])
        self.grpc_target = str(ready["grpc"])
        self._folder = Path(f"/proc/{service.process.pid}")

    def channel(self) -> grpc.aio.Channel:
        """Bare gRPC: the SDK would not send what an attacker sends."""
        return grpc.aio.insecure_channel(
            self.grpc_target, options=[("grpc.max_send_message_length", -1)]
        )

    def ask(
        self, verb: str, path: str, shown: Mapping[str, str], body: bytes | str | None = None
    ) -> tuple[int, bytes]:
        """One request on a connection of its own."""
        line = self._line()
        try:
            line.request(verb, path, body, dict(shown))
            answer = line.getresponse()
            return answer.status, answer.read()
        finally:
            line.close()

    def _line(self) -> http.client.HTTPConnection:
        where, timeout = ("127.0.0.1", self.http_port), patience.longest(60)
        if self.tls is None:
            return http.client.HTTPConnection(*where, timeout=timeout)
        return http.client.HTTPSConnection(*where, timeout=timeout, context=self.tls)

    def open_files(self) -> int:
        """How many files and sockets the process has."""
        return len(list((self._folder / "fd").iterdir()))

    def memory_mib(self, name: str) -> float:
        """A line of the process's status: VmRSS is now, VmHWM the peak since ``watched`` began."""
        for line in (self._folder / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
        raise AssertionError(f"no {name} in the status of the server")

    def cpu_seconds(self) -> float:
        """How long the process has computed: it says the same on a busy machine."""
        figures = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(figures[11]) + int(figures[12])) / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def watched(self) -> Iterator[Seen]:
        """Measure memory, and call as a healthy caller does, while the body of the block runs."""
        self.ask("GET", "/healthz", {})
        (self._folder / "clear_refs").write_text("5")  # begins the peak anew
        seen = Seen(self.memory_mib("VmRSS"))
        over = threading.Event()
        caller = threading.Thread(target=self._call_on, args=(seen, over))
        caller.start()
        try:
            yield seen
        finally:
            over.set()
            caller.join()
            seen.peak_mib = self.memory_mib("VmHWM")

    def _call_on(self, seen: Seen, over: threading.Event) -> None:
        job = json.dumps({"payload": "healthy"})
        while True:
            for verb, path, shown, body, expected in (
                ("GET", "/healthz", {}, None, 200),
                ("POST", "/jobs", headers("other"), job, 202),
            ):
                began = time.monotonic()
                try:
                    status, text = self.ask(verb, path, shown, body)
                    if status != expected:
                        seen.failures.append(f"{verb} {path}: {status} {text[:200]!r}")
                except OSError as error:
                    seen.failures.append(f"{verb} {path}: {error}")
                seen.waits.append(time.monotonic() - began)
            if over.wait(_PAUSE):
                return
