"""A user's terminal: commands in a folder, with the installed programs first in the PATH."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests import patience
from tests.programs import Program

PATIENCE = 60.0  # seconds for a command


class Machine:
    """Runs commands to their end, or starts them and ends them with the test."""

    def __init__(self, folder: Path, programs: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.python = programs / "python"
        self._environment = {
            **environment,
            "PATH": f"{programs}:{environment['PATH']}",
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self._started: list[Program] = []

    def write(self, name: str, text: str) -> Path:
        """Write a file into the folder."""
        path = self.folder / name
        path.write_text(text)
        return path

    def run(
        self, *command: str, timeout: float = PATIENCE, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. The caller looks at its exit status."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patience.longest(timeout),
        )

    def succeed(self, *command: str, timeout: float = PATIENCE, **variables: str) -> str:
        """Run a command that has to succeed without a traceback. Returns its standard output."""
        ran = self.run(*command, timeout=timeout, **variables)
        assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
        assert "Traceback" not in ran.stderr, ran.stderr
        return ran.stdout

    def start(self, *command: str, **variables: str) -> Program:
        """Start a command that goes on until it is stopped."""
        program = Program(command, self.folder, self._environment | variables)
        self._started.append(program)
        return program

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for program in reversed(self._started):
            program.end()
