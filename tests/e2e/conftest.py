"""Layouts as a user starts them, and jq-ctl as a user calls it.

A layout is a context manager that starts its programs in a folder and gives the address that
`jq-ctl --server` takes. The tests here run on each of `LAYOUTS`: another one joins by its line.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import processes


@contextlib.contextmanager
def embedded(folder: Path) -> Iterator[str]:
    """One server with its built-in workers on an SQLite file."""
    with processes.server(folder, "--set", "queue.retry_profile=scheduler") as server:
        yield server.line("ready")["grpc"]
        assert server.stop() == 0


@contextlib.contextmanager
def embedded_with_a_worker(folder: Path) -> Iterator[str]:
    """A server without workers of its own, and a jq-worker."""
    options = ("--worker-concurrency", "0", "--set", "queue.retry_profile=scheduler")
    with processes.server(folder, *options) as server:
        grpc = server.line("ready")["grpc"]
        arguments = ("--server", grpc, "--queues", "default", "--metrics-port", "0")
        with processes.Service("worker", *arguments, cwd=folder) as worker:
            worker.line("ready")
            yield grpc
            assert worker.stop() == 0
        assert server.stop() == 0


LAYOUTS = {
    "embedded": embedded,
    "embedded-worker": embedded_with_a_worker,
}


@pytest.fixture(scope="module", params=list(LAYOUTS))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    with LAYOUTS[request.param](tmp_path_factory.mktemp("layout")) as address:
        yield address


class Ctl:
    """The program jq-ctl, run for each call."""

    def __init__(self, server: str, folder: Path) -> None:
        self._server = server
        self._folder = folder

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        arguments = ("--server", self._server, *args)
        done: subprocess.CompletedProcess[str] = processes.run("ctl", *arguments, cwd=self._folder)
        return done

    def ok(self, *args: str) -> str:
        done = self(*args)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--output", "json"))


@pytest.fixture
def ctl(server: str, tmp_path: Path) -> Callable[..., Any]:
    return Ctl(server, tmp_path)
