"""End the processes that a killed supervisor leaves behind.

The guard is a small process that reads from a pipe. If the supervisor dies, by `kill -9` for
example, the pipe closes without the final message. Then the guard ends all processes of its own
process group. The supervisor starts its processes in this group, so that the guard misses none,
even if the process has just started. Private servers have their own sessions; the guard finds them
by their working folders. The module imports only the standard library.
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
_GRACE = 5.0  # seconds that jobs and requests have to end before the processes are killed
_TICK = 0.05
_PROGRAM = """\
import sys
sys.path.append(sys.argv[1])
from jobqueue.fleet import guard
guard.main()
"""
_PACKAGES = str(Path(__file__).parents[2])  # the folder with jobqueue in it


class SupervisorGuard:
    """Starts the guard process and holds the pipe to it. ``dismiss`` may be called twice."""

    def __init__(self, services: Mapping[Path, int]) -> None:
        """Create the guard without starting its process.

        ``services`` maps the working folder of each private server to the signal that stops it.
        """
        self._services = [f"{number:d}:{folder}" for folder, number in services.items()]
        self._process: subprocess.Popen[bytes] | None = None

    def group(self) -> int:
        """Return the process group in which the supervisor has to start its processes.

        Start the guard process if it does not run.
        """
        if self._process is None or self._process.poll() is not None:
            self._close()
            # -I and -S keep the guard small and quick: no environment, no installed packages.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, _PACKAGES, *self._services],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                bufsize=0,
                process_group=0,
            )
        return self._process.pid

    def dismiss(self) -> None:
        """End the guard process, after all processes have ended in order."""
        self._close(_GOODBYE)

    def _close(self, word: bytes = b"") -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):  # the guard process has ended
                process.stdin.write(word)
                process.stdin.close()
            process.wait()


def main() -> None:
    """Run the guard process: wait until the pipe closes, then end the remaining processes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() == _GOODBYE:
        return
    _end(_in_own_group, signal.SIGTERM)
    for service in sys.argv[2:]:  # servers end last: the processes write to them while they end
        asking, _, folder = service.partition(":")
        _end(partial(_working_in, Path(folder)), int(asking))


def _end(running: Callable[[], set[int]], number: int) -> None:
    """Send the signal to each process once, and kill the processes that run after the grace time.

    ``running`` returns the pids of the processes that still run.
    """
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
    """Return the pid of the main process of the server that works in the folder.

    If the main process has ended, return the pids of the server's other processes.
    """
    found = {
        pid for pid in processes.pids() if processes.works_in(pid, folder) and processes.began(pid)
    }
    return {pid for pid in found if processes.parent(pid) not in found} or found
