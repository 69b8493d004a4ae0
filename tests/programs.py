"""A program under test: its output is read line by line as it comes, and it always ends."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from tests import patience

T = TypeVar("T")

START_SECONDS = 60.0  # for a line of output
STOP_SECONDS = 60.0


class Program:
    """A program that runs. Standard output and error are read together."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self.printed: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self.process = self.popen(command, cwd, env)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def popen(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Any:
        """Start it; subclasses may do so another way."""
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.printed.append(line)
                self.take(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def take(self, line: str) -> None:
        """Called with each line as it comes; for subclasses."""

    @property
    def text(self) -> str:
        """Everything the program has printed so far."""
        return "".join(self.printed)

    def wait_until(
        self, find: Callable[[], T | None], what: str, seconds: float = START_SECONDS
    ) -> T:
        """Wait until ``find``, which is asked at each line, returns something."""
        with self._changed:
            patience.wait_on(self._changed, lambda: find() is not None or self._ended, seconds)
            found = find()
        assert found is not None, f"the program did not print {what}:\n{self.text}"
        return found

    def line_with(self, part: str) -> str:
        """Wait for a line that contains the text."""
        return self.wait_until(
            lambda: next((line for line in self.printed if part in line), None),
            f"a line with {part!r}",
        )

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Wait for the end; returns the exit status."""
        status = self.process.wait(patience.longest(seconds))
        self._reader.join(patience.longest(seconds))
        return status

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask the program to end, if it still runs; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def end(self) -> None:
        """End the program whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(patience.longest(STOP_SECONDS))  # its children may hold the pipe
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
