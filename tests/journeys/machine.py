"""A user's terminal: commands in a folder, with the installed programs first in the PATH."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

PATIENCE = 60.0  # seconds for a command, or for a line of a program's output
STOP_SECONDS = 60.0


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
            timeout=timeout,
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


class Program:
    """A program under way. Standard output and error are read together, line by line."""

    def __init__(
        self, command: tuple[str, ...], folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def text(self) -> str:
        """Everything the program has printed so far."""
        return "".join(self.lines)

    def line_with(self, part: str, timeout: float = PATIENCE) -> str:
        """Wait for a line that contains the text."""
        return self.line_where(lambda line: part in line, f"a line with {part!r}", timeout)

    def line_where(
        self, matches: Callable[[str], bool], what: str, timeout: float = PATIENCE
    ) -> str:
        """Wait for a line that matches."""

        def found() -> str | None:
            return next((line for line in self.lines if matches(line)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or self._ended, timeout)
            line = found()
        assert line is not None, f"the program did not print {what}:\n{self.text}"
        return line

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        """Ask the program to end; returns its exit status."""
        self.process.send_signal(with_signal)
        status = self.process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)
        return status

    def end(self) -> None:
        """End the program if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
