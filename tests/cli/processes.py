"""Real processes under test: started on free ports, read line by line, always ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests import patience

START_TIMEOUT = 30.0
STOP_TIMEOUT = 30.0


def environment(**extra: str) -> dict[str, str]:
    """The environment without settings of ours and sizes of somebody else's terminal."""
    unwanted = ("JQ_", "COLUMNS", "LINES")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return clean | {"PYTHONUNBUFFERED": "1", "JQ_COMMIT": "abc1234def"} | extra


def run(module: str, *args: str, cwd: Path, timeout: float = 30.0, **extra: str):
    """Run a program to its end."""
    return subprocess.run(
        [sys.executable, "-m", f"jobqueue.cli.{module}", *args],
        cwd=cwd,
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=patience.longest(timeout),
    )


class Service:
    """A jq-server or jq-worker, or a script. Its log lines are collected as they come."""

    def __init__(self, program: str | Path, *args: str, cwd: Path, **extra: str) -> None:
        """``program`` is a module of jobqueue.cli, or the path of a script."""
        self.lines: list[dict[str, Any]] = []
        self.noise: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        chosen = [str(program)] if isinstance(program, Path) else ["-m", f"jobqueue.cli.{program}"]
        self.process = subprocess.Popen(
            [sys.executable, *chosen, *args],
            cwd=cwd,
            env=environment(**extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            with self._changed:
                try:
                    self.lines.append(json.loads(text))
                except ValueError:
                    self.noise.append(text)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def line(self, beginning: str, timeout: float = START_TIMEOUT) -> dict[str, Any]:
        """Wait for a log line whose message begins like that."""

        def found() -> dict[str, Any] | None:
            matches = (line for line in self.lines if line["message"].startswith(beginning))
            return next(matches, None)

        with self._changed:
            patience.wait_on(self._changed, lambda: found() is not None or self._ended, timeout)
            line = found()
        assert line is not None, f"no line {beginning!r} in {self.lines} {self.noise}"
        return line

    def plain_line(self, part: str, timeout: float = START_TIMEOUT) -> str:
        """Wait for a line that is not JSON and holds that."""

        def found() -> str | None:
            return next((line for line in self.noise if part in line), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or self._ended, timeout)
            line = found()
        assert line is not None, f"no line with {part!r} in {self.lines} {self.noise}"
        return line

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self, timeout: float = STOP_TIMEOUT) -> int:
        """Wait for the end; returns the exit status."""
        status = self.process.wait(patience.longest(timeout))
        self._reader.join(patience.longest(timeout))
        return status

    def stop(self) -> int:
        """End it as an orchestrator would."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def server(cwd: Path, *args: str, **extra: str) -> Service:
    """A jq-server on free ports, not ready yet."""
    flags = ("--http-port", "0", "--grpc-port", "0", *args)
    return Service("server", *flags, cwd=cwd, **extra)
