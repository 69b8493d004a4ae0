"""Layouts as a user starts them (tests/cli/layouts.py), and jq-ctl as a user calls it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests import patience
from tests.cli import processes
from tests.cli.layouts import LAYOUTS, Running, named
from tests.services.plugin import run_of
from tests.services.run import Run

# Two servers that lose patience soon and hand out three jobs at a time, without any worker yet.
_HASTY = {
    "worker.heartbeat_interval": 0.3,
    "scheduler.assignment_timeout": 4,
    "redis.timeout": 2,
    "scheduler.batch_size": 3,
    "scheduler.leader_ttl": 1,
    "queue.retention": 86_400,  # nothing is that old, unless a test makes it so
}


@contextlib.contextmanager
def hasty(run: Run, folder: Path) -> Iterator[Running]:
    told = _HASTY | {"worker.heartbeat_timeout": round(patience.stretched(2), 1)}
    options = [part for name, value in told.items() for part in ("--set", f"{name}={value}")]
    with LAYOUTS["replicated"](run, folder, *options, pool=False) as running:
        yield running


_LAYOUTS = {**LAYOUTS, "hasty": hasty}
ON_TWO_SERVERS = pytest.mark.parametrize("layout", named("replicated"), indirect=True)
ON_TWO_HASTY_SERVERS = pytest.mark.parametrize(
    "layout", [pytest.param("hasty", marks=pytest.mark.integration)], indirect=True
)


@pytest.fixture(scope="session", params=named(*LAYOUTS))
def layout(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Each layout, started once; tests leave it as they found it."""
    folder = tmp_path_factory.mktemp("layout")
    with _LAYOUTS[request.param](run_of(request.config), folder) as running:
        yield running


class Ctl:
    """The program jq-ctl, run for each call: at one server after the other."""

    def __init__(self, servers: list[str], folder: Path) -> None:
        self._turns = itertools.cycle(servers)
        self._folder = folder

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        arguments = ("--server", next(self._turns), *args)
        done: subprocess.CompletedProcess[str] = processes.run("ctl", *arguments, cwd=self._folder)
        return done

    def ok(self, *args: str) -> str:
        done = self(*args)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--output", "json"))


@pytest.fixture
def ctl(layout: Running, tmp_path: Path) -> Ctl:
    return Ctl(layout.targets, tmp_path)


Query = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def query(layout: Running) -> Query:
    """Looks into the layout's PostgreSQL, as a person with psql does."""

    async def ask(sql: str, arguments: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(layout.dsn)
        try:
            return [tuple(row) for row in await connection.fetch(sql, *arguments)]
        finally:
            await connection.close()

    return lambda sql, *arguments: asyncio.run(ask(sql, arguments))


@pytest.fixture
def queue(ctl: Ctl) -> str:
    """A queue of the test's own, which no worker serves yet. Failures are retried after 1 s."""
    name = f"q-{uuid.uuid4().hex[:8]}"
    ctl.ok("queue", "create", name, "--retry-profile", "scheduler", "--max-retries", "5")
    return name


APP = """
import asyncio, os, time
from jobqueue import Context, JobQueue

app = JobQueue("memory://")


def note(ctx: Context) -> None:
    ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(ledger, f"{ctx.job_id} {ctx.attempt}\\n".encode())
    os.close(ledger)


@app.task
async def work(ctx: Context, seconds: float = 0.0) -> str:
    note(ctx)
    await asyncio.sleep(seconds)
    return "attempt %d" % ctx.attempt


@app.task
async def block(ctx: Context, seconds: float) -> None:
    note(ctx)
    time.sleep(seconds)  # on the loop: nothing else can begin


@app.task
async def first_attempt_hangs(ctx: Context) -> str:
    note(ctx)
    if ctx.attempt == 1:
        await asyncio.sleep(600)
    return "attempt %d" % ctx.attempt
"""


class Workshop:
    """Starts jq-workers of an app whose tasks leave a line for each attempt."""

    def __init__(self, layout: Running, folder: Path) -> None:
        self._layout = layout
        self._folder = folder
        self._ledger = folder / "ledger"
        (folder / "tasks.py").write_text(APP)

    def worker(self, queue: str, *args: str) -> processes.Service:
        """A jq-worker on that queue, not ready yet."""
        common = ("--queues", queue, "--app", "tasks:app", "--set", "worker.heartbeat_interval=0.3")
        return self._layout.worker(self._folder, *common, *args, LEDGER=str(self._ledger))

    def attempts(self) -> list[tuple[str, int]]:
        """Job and number of each attempt that began."""
        if not self._ledger.exists():
            return []
        lines = (line.split() for line in self._ledger.read_text().splitlines())
        return [(job_id, int(attempt)) for job_id, attempt in lines]


@pytest.fixture
def workshop(layout: Running, tmp_path: Path) -> Workshop:
    return Workshop(layout, tmp_path)
