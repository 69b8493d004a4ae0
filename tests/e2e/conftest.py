"""Layouts as a user starts them (tests/cli/layouts.py), and jq-ctl as a user calls it."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import processes
from tests.cli.layouts import LAYOUTS, Running, named
from tests.services.plugin import run_of


@pytest.fixture(scope="session", params=named(*LAYOUTS))
def layout(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Each layout, started once; tests leave it as they found it."""
    folder = tmp_path_factory.mktemp("layout")
    with LAYOUTS[request.param](run_of(request.config), folder) as running:
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
