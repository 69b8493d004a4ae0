"""A compose project in an engine: up, looked at, down."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests import patience
from tests.containers.engine_images import ROOT, environment

UP_SECONDS = 240.0  # of a quiet machine, until every container is well
_PAUSE = 0.25


class Project:
    """One compose file. `variables` are those that the file takes."""

    def __init__(self, host: str, name: str, file: str, **variables: str) -> None:
        self.host = host
        self.name = name
        self._command = ["docker-compose", "--project-name", name, "--file", str(ROOT / file)]
        self.variables = variables
        self._environment = environment(host, **variables)

    def compose(self, *arguments: str) -> str:
        """What it says on standard output."""
        done = self.try_compose(*arguments)
        assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def try_compose(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *arguments],
            env=self._environment,
            cwd=ROOT,
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )

    def look(self, service: str) -> dict[str, Any]:
        """What the engine knows of its container."""
        labels = (f"project={self.name}", f"service={service}", "oneoff=False")
        chosen = {"label": [f"com.docker.compose.{one}" for one in labels]}
        [found] = self._ask(f"/containers/json?all=1&filters={quote(json.dumps(chosen))}")
        known: dict[str, Any] = self._ask(f"/containers/{found['Id']}/json")
        return known

    def _ask(self, path: str) -> Any:
        """The engine itself: it is asked often, and each `docker` would be a process more."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.connect(self.host.removeprefix("unix://"))
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200, f"{path}: {answer.status}"
            return json.load(answer)
        finally:
            connection.close()

    def health(self, service: str) -> str:
        return str(self.look(service)["State"].get("Health", {}).get("Status"))

    def has_health(self, wanted: str, service: str) -> bool:
        time.sleep(_PAUSE)  # health changes every few seconds
        return self.health(service) == wanted

    def signal(self, service: str, number: signal.Signals) -> None:
        """To the container's first process, past the engine."""
        os.kill(self.look(service)["State"]["Pid"], number)

    def kill_process(self, service: str) -> None:
        """As a crash would: the engine, which was not asked to, starts it again."""
        before = self.look(service)
        self.signal(service, signal.SIGKILL)
        patience.until(
            lambda: self.look(service)["RestartCount"] > before["RestartCount"],
            f"{service} is started again",
        )

    def await_healthy(self, *services: str) -> None:
        self.await_health("healthy", *services)

    def await_health(self, wanted: str, *services: str) -> None:
        for service in services:
            try:
                has_it = partial(self.has_health, wanted, service)
                patience.until(has_it, f"{service} is {wanted}", UP_SECONDS)
            except BaseException:
                print(f"{service} is {self.health(service)}:\n{self.logs(service)}")
                raise

    def logs(self, service: str) -> str:
        done = subprocess.run(
            ["docker", "logs", "--tail", "60", self.look(service)["Id"]],
            env=self._environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        health = self.look(service)["State"].get("Health", {}).get("Log", [])[-1:]
        return f"{done.stdout}\n{health}"

    def assert_hardened(self, *services: str) -> None:
        """Not root, nothing to write to but what it was given, no rights to gain, bounded."""
        for service in services:
            known = self.look(service)
            status = Path(f"/proc/{known['State']['Pid']}/status").read_text()
            said = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert set(said["Uid"].split()) == {"10001"}, service
            assert (said["NoNewPrivs"], int(said["CapEff"], 16)) == ("1", 0), service
            host = known["HostConfig"]
            assert host["ReadonlyRootfs"], service
            assert host["Memory"] > 0
            assert host["NanoCpus"] > 0
            assert host["PidsLimit"] > 0
            published = [one for some in (host["PortBindings"] or {}).values() for one in some]
            assert {one["HostIp"] for one in published} <= {"127.0.0.1"}, service

    def up(self, *services: str) -> None:
        """Again where a container that others wait for was too slow to become well."""
        limit = patience.Limit(UP_SECONDS)
        while (done := self.try_compose("up", "--detach", "--no-build", *services)).returncode:
            assert not limit.over, f"{done.stdout}{done.stderr}"
            print(done.stderr[-1000:])

    def down(self) -> None:
        self.compose("down", "--volumes", "--timeout", "90")


@contextmanager
def running(project: Project, *services: str) -> Iterator[Project]:
    """Up as a user brings it up; `services` leaves out those that it does not name."""
    try:
        project.up(*services)
        yield project
    finally:
        project.try_compose("kill")  # tests that look at an orderly end ask for one
        project.down()
