"""A small process that outlives the supervisor, to end what it leaves behind.

It holds one end of a pipe. When the other end closes without a goodbye, the supervisor died (``kill
-9``, for one). Then the guard ends every process in its own process group, where the supervisor
starts all of them: a process is in the group before it is itself, so none is missed between its
start and a message about it. Services run in sessions of their own, and each alone in its folder:
the pipe says which.

Run by its path, with the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

GOODBYE = "goodbye"
_GRACE = 5.0  # for jobs and requests to end, before the kill
_TICK = 0.05


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _in_own_group() -> set[int]:
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == os.getpid() != pid:
                found.add(pid)
    return found


def _in_folder(folder: str) -> set[int]:
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/cwd") == folder:
                found.add(pid)
    return found


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _end(running: Callable[[], set[int]], asking: int) -> None:
    """Ask each process once to end, and kill what is left when the time is up."""
    asked: set[int] = set()
    deadline = time.monotonic() + _GRACE
    while pids := running():
        late = time.monotonic() > deadline
        for pid in pids if late else pids - asked:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL if late else asking)
        asked |= pids
        time.sleep(_TICK)


def main() -> None:
    """Wait until the pipe closes."""
    began = runpy.run_path(str(Path(__file__).with_name("identity.py")))["began"]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    services: dict[str, int] = {}
    for line in sys.stdin:
        if line.strip() == GOODBYE:
            return
        number_of, _, folder = line.rstrip("\n").partition(" ")
        services[os.path.realpath(folder)] = int(number_of)

    def processes() -> set[int]:
        return {pid for pid in _in_own_group() if began(pid)}

    _end(processes, signal.SIGTERM)
    for folder, asking in services.items():  # last: the processes write to them while they end

        def servers(folder: str = folder) -> set[int]:
            found = {pid for pid in _in_folder(folder) if began(pid)}
            return {pid for pid in found if _parent(pid) not in found} or found

        _end(servers, asking)


if __name__ == "__main__":
    main()
