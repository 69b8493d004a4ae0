"""Start processes and wait for their end, on any event loop.

The event loop's own ``subprocess_exec`` is not used, because uvloop runs fork handlers in the new
process before it executes the program, and gRPC's fork handlers sometimes crash there. ``Popen``
runs no Python code between the fork and the start of the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import Any


class Spawned:
    """Represents a process that was started as the leader of a new process group."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        """Start a program. OSError means that the program cannot be started."""
        self.popen = subprocess.Popen(command, start_new_session=True, **options)
        self.pid = self.popen.pid
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        try:
            self._descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, or an old Linux: wait in a thread
            self._descriptor = -1
            threading.Thread(target=self._wait, name="worker-waiter", daemon=True).start()
        else:
            self._loop.add_reader(self._descriptor, self._reap)

    async def wait(self) -> int:
        """Wait for the end of the process; return its exit status."""
        return await asyncio.shield(self._ended)

    def _reap(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._end(self.popen.wait())

    def _wait(self) -> None:
        status = self.popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end, status)

    def _end(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)


def kill_group(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process group. ``pid`` is the id of the process that leads the group."""
    if pid <= 1:  # 0 is the caller's own group
        raise ValueError(f"{pid} is not the id of a process that leads a group")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def describe_exit(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
