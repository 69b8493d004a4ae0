"""Real processes under test: started on free ports, read line by line, always ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import patience, warm
from tests.programs import Program

START_TIMEOUT = 30.0
STOP_TIMEOUT = 30.0


def environment(**extra: str) -> dict[str, str]:
    """The environment without settings of ours and sizes of somebody else's terminal."""
    unwanted = ("JQ_", "COLUMNS", "LINES")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return clean | {"PYTHONUNBUFFERED": "1", "JQ_COMMIT": "abc1234def"} | extra


def run(
    module: str, *args: str, cwd: Path, timeout: float = 30.0, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. A server's ports are free ones, unless ``extra`` names them."""
    process = warm.popen(
        [sys.executable, "-m", f"jobqueue.cli.{module}", *args],
        cwd=cwd,
        env=environment(**({"JQ_HTTP_PORT": "0", "JQ_GRPC_PORT": "0"} | extra)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = process.communicate(timeout=patience.longest(timeout))
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class Service(Program):
    """A jq-server or jq-worker, or a script. Its log lines are collected as they come."""

    def __init__(self, program: str | Path, *args: str, cwd: Path, **extra: str) -> None:
        """``program`` is a module of jobqueue.cli, or the path of a script."""
        self.lines: list[dict[str, Any]] = []
        self.noise: list[str] = []
        chosen = [str(program)] if isinstance(program, Path) else ["-m", f"jobqueue.cli.{program}"]
        super().__init__([sys.executable, *chosen, *args], cwd, environment(**extra))

    def popen(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Any:
        return warm.popen(
            command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def take(self, line: str) -> None:
        try:
            self.lines.append(json.loads(line))
        except ValueError:
            self.noise.append(line)

    def line(self, beginning: str, timeout: float = START_TIMEOUT) -> dict[str, Any]:
        """Wait for a log line whose message begins like that."""

        def found() -> dict[str, Any] | None:
            matches = (line for line in self.lines if line["message"].startswith(beginning))
            return next(matches, None)

        return self.wait_until(found, f"a line {beginning!r}", timeout)

    def plain_line(self, part: str) -> str:
        """Wait for a line that is not JSON and contains the text."""
        return self.wait_until(
            lambda: next((line for line in self.noise if part in line), None),
            f"a plain line with {part!r}",
        )

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)


def server(cwd: Path, *args: str, **extra: str) -> Service:
    """A jq-server on free ports, not ready yet."""
    flags = ("--http-port", "0", "--grpc-port", "0", *args)
    return Service("server", *flags, cwd=cwd, **extra)
