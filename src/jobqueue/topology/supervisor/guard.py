"""Ends what a killed supervisor leaves behind: the supervisor's side. See guard_process.py."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from jobqueue.topology.supervisor.guard_process import GOODBYE

_PROGRAM = Path(__file__).with_name("guard_process.py")


class Guard:
    """A guard process and the pipe to it. ``dismiss`` may be called twice."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._watched: dict[Path, int] = {}

    def group(self) -> int:
        """The process group to start processes in. A guard that died is replaced."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None
        return self._process.pid

    def watch(self, folder: Path, number: int) -> None:
        """End the server that works in this folder too; ``number`` is the signal to ask it."""
        self.group()
        self._watched[folder] = number
        self._tell(f"{number:d} {folder}")

    def dismiss(self) -> None:
        """Everything was ended in order."""
        self._watched.clear()
        if self._process is None:
            return
        self._tell(GOODBYE)
        self._close()

    def _start(self) -> None:
        if self._process is not None:
            self._close()
        # -I and -S: nothing but the standard library, so that it is small and there at once.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            bufsize=0,
            process_group=0,
        )
        for folder, number in self._watched.items():
            self._tell(f"{number:d} {folder}")

    def _tell(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is gone; the next start brings another
            self._process.stdin.write(f"{line}\n".encode())

    def _close(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait()
