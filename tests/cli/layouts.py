"""Layouts as a user starts them: the real programs, on what they need, in a folder.

A layout is a context manager that gives a `Running`. The tests of jq-ctl and the end-to-end tests
run on each that they name; another one joins by its line in `LAYOUTS`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cli import processes
from tests.services.run import Run

OPTIONS = ("--set", "queue.retry_profile=scheduler")


class Running:
    """Servers that are ready, the workers beside them, and what they keep their jobs in."""

    def __init__(
        self,
        servers: list[processes.Service],
        workers: list[processes.Service] | None = None,
        *,
        dsn: str = "",
        redis_url: str = "",
    ) -> None:
        self.servers = servers
        self.workers = workers if workers is not None else []
        self.dsn = dsn
        self.redis_url = redis_url
        ready = [server.line("ready") for server in servers]
        self.targets: list[str] = [line["grpc"] for line in ready]
        self.urls: list[str] = [line["http"] for line in ready]
        self._turns = itertools.cycle(self.targets)

    @property
    def grpc(self) -> str:
        """A server: another one each time, so that what one was told is asked of the other."""
        return next(self._turns)

    @property
    def http(self) -> str:
        """The first server's."""
        return self.urls[0]

    @property
    def target(self) -> str:
        """All servers, as workers and clients are told."""
        return ",".join(self.targets)

    def worker(self, folder: Path, *args: str, **extra: str) -> processes.Service:
        """One more jq-worker, not ready yet."""
        common = ("--server", self.target, "--metrics-port", "0")
        return processes.Service("worker", *common, *args, cwd=folder, **extra)


@contextlib.contextmanager
def embedded(run: Run, folder: Path, *options: str, pool: bool = True) -> Iterator[Running]:
    """One server with its built-in workers on an SQLite file."""
    more = () if pool else ("--worker-concurrency", "0")
    with processes.server(folder, *OPTIONS, *more, *options) as server:
        yield Running([server])
        assert server.stop() == 0


@contextlib.contextmanager
def embedded_with_a_worker(
    run: Run, folder: Path, *options: str, pool: bool = True
) -> Iterator[Running]:
    """A server without workers of its own, and a jq-worker."""
    with embedded(run, folder, *options, pool=False) as running, _workers(running, folder, pool):
        yield running


@contextlib.contextmanager
def replicated(run: Run, folder: Path, *options: str, pool: bool = True) -> Iterator[Running]:
    """Two servers, started at once on an empty PostgreSQL database and a Redis, and a jq-worker."""
    name = run.databases.create(empty=True)
    try:
        dsn, redis_url = run.databases.dsn(name), run.redis_url
        backing = {"JQ_DB_URL": dsn, "JQ_REDIS_URL": redis_url}
        with contextlib.ExitStack() as stack:
            servers = [
                stack.enter_context(processes.server(folder, *OPTIONS, *options, **backing))
                for _ in range(2)
            ]
            running = Running(servers, dsn=dsn, redis_url=redis_url)
            with _workers(running, folder, pool):
                yield running
            for server in servers:
                assert server.stop() == 0
    finally:
        run.databases.drop(name)


@contextlib.contextmanager
def _workers(running: Running, folder: Path, wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    with running.worker(folder, "--queues", "default") as worker:
        worker.line("ready")
        running.workers.append(worker)
        yield
        assert worker.stop() == 0


Layout = Callable[..., AbstractContextManager[Running]]
"""Of a run's services, a folder and options of jq-server. `pool=False`: without any worker."""

LAYOUTS: dict[str, Layout] = {
    "embedded": embedded,
    "embedded-worker": embedded_with_a_worker,
    "replicated": replicated,
}


def named(*names: str) -> list[object]:
    """Parameters of a fixture, with the marks that a layout needs."""
    return [
        pytest.param(name, marks=[pytest.mark.integration] if name == "replicated" else [])
        for name in names
    ]
