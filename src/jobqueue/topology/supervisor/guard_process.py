"""A small process that outlives the supervisor, to end what it leaves behind.

It holds one end of a pipe. When the other end closes without a goodbye, the supervisor died (``kill
-9``, for one). Then the guard ends every process in its own process group, where the supervisor
starts all of them: a process is in the group before it is itself, so none is missed between its
start and a message about it. Services that run in groups of their own are told through the pipe.

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


def _in_own_group() -> set[int]:
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if os.getpgid(int(name)) == os.getpid():
                    found.add(int(name))
    return found


def _end(running: Callable[[], set[int]], ask: Callable[[int], int]) -> None:
    """Ask each process once to end, and kill what is left when the time is up."""
    asked: set[int] = set()
    deadline = time.monotonic() + _GRACE
    while pids := running():
        late = time.monotonic() > deadline
        for pid in pids if late else pids - asked:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL if late else ask(pid))
        asked |= pids
        time.sleep(_TICK)


def main() -> None:
    """Wait until the pipe closes."""
    began = runpy.run_path(str(Path(__file__).with_name("identity.py")))["began"]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    told: dict[int, tuple[str, int]] = {}
    for line in sys.stdin:
        words = line.split()
        if words == [GOODBYE]:
            return
        pid, number = int(words[0]), int(words[1])
        mark = began(pid)
        if mark is not None:
            told[pid] = (mark, number)
    _end(lambda: {pid for pid in _in_own_group() if began(pid)}, lambda _: signal.SIGTERM)
    # Services last: the processes write to them while they end.
    _end(
        lambda: {pid for pid, (mark, _) in told.items() if began(pid) == mark},
        lambda pid: told[pid][1],
    )


if __name__ == "__main__":
    main()
