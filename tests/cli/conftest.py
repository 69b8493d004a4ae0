"""A running server, and jq-ctl inside the test's process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from jobqueue.cli import ctl as program
from jobqueue.cli import session
from jobqueue.cli.program import new_loop
from tests.cli.layouts import LAYOUTS, Running, named
from tests.services.plugin import run_of


@pytest.fixture(scope="module", params=named("embedded", "replicated"))
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A jq-server with its built-in pool, or two with a jq-worker; shared by a file's tests."""
    folder = tmp_path_factory.mktemp("server")
    with LAYOUTS[request.param](run_of(request.config), folder) as running:
        yield running


@dataclass
class Answer:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        """The error document on stderr."""
        return json.loads(self.err)["error"]


Ctl = Callable[..., Answer]


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """One loop for all commands: a process has one, and gRPC does not like to change loops."""
    with asyncio.Runner(loop_factory=new_loop) as running:
        yield running


@pytest.fixture
def ctl(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, runner: asyncio.Runner
) -> Ctl:
    """Runs jq-ctl in this process; ``url`` is a store or a server."""
    monkeypatch.delenv("JQ_URL", raising=False)
    monkeypatch.setattr(session, "run_async", runner.run)

    def run(url: str, *args: str) -> Answer:
        capfd.readouterr()
        option = "--url" if "://" in url else "--server"
        status = program.run([option, url, *args])
        captured = capfd.readouterr()
        return Answer(status, captured.out, captured.err)

    return run
