"""Ends what a killed supervisor leaves behind.

The guard is a small process with one end of a pipe. When the other end closes without a goodbye,
the supervisor died (by `kill -9`, for one). Then the guard ends every process of its own process
group, where the supervisor starts all of them: none is missed, not even one that starts just then.
Services run in sessions of their own, and each alone in its folder. Only the standard library is
imported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from jobqueue.fleet import processes

_GOODBYE = b"goodbye"
_GRACE = 5.0  # seconds for jobs and requests to end, before the kill
_TICK = 0.05
_PROGRAM = """\
import sys
sys.path.append(sys.argv[1])
from jobqueue.fleet import guard
guard.main()
"""
_PACKAGES = str(Path(__file__).parents[2])  # the folder with jobqueue in it


class SupervisorGuard:
    """A guard process and the pipe to it. `dismiss` may be called twice."""

    def __init__(self, services: Mapping[Path, int]) -> None:
        """`services`: the folders that they work in, each with the signal that asks to end."""
        self._services = [f"{number:d}:{folder}" for folder, number in services.items()]
        self._process: subprocess.Popen[bytes] | None = None

    def group(self) -> int:
        """Return the process group to start processes in. A guard that died is replaced."""
        if self._process is None or self._process.poll() is not None:
            self._close()
            # -I and -S keep it small and quick: no environment, no packages.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, _PACKAGES, *self._services],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                bufsize=0,
                process_group=0,
            )
        return self._process.pid

    def dismiss(self) -> None:
        """End the guard: everything was ended in order."""
        self._close(_GOODBYE)

    def _close(self, word: bytes = b"") -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):  # it is gone
                process.stdin.write(word)
                process.stdin.close()
            process.wait()


def main() -> None:
    """Be the guard: wait until the pipe closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() == _GOODBYE:
        return
    _end(_in_own_group, signal.SIGTERM)
    for service in sys.argv[2:]:  # last: the processes write to them while they end
        asking, _, folder = service.partition(":")
        _end(partial(_working_in, Path(folder)), int(asking))


def _end(running: Callable[[], set[int]], number: int) -> None:
    """Ask each process once to end, and kill the rest when the time is up."""
    asked: set[int] = set()
    deadline = time.monotonic() + _GRACE
    while pids := running():
        late = time.monotonic() > deadline
        for pid in pids if late else pids - asked:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL if late else number)
        asked |= pids
        time.sleep(_TICK)


def _in_own_group() -> set[int]:
    found = set()
    for pid in processes.pids():
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == os.getpid() != pid and processes.began(pid):
                found.add(pid)
    return found


def _working_in(folder: Path) -> set[int]:
    """Return the process that started the others there, else the others."""
    found = {
        pid for pid in processes.pids() if processes.works_in(pid, folder) and processes.began(pid)
    }
    return {pid for pid in found if processes.parent(pid) not in found} or found
