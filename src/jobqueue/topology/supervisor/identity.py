"""Which process a pid was: pids are used again, start times are not."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import cache
from pathlib import Path

_STARTED = 19  # starttime in /proc/PID/stat, counted behind the command's closing parenthesis
_STATE = 0
_ENDED = ("Z", "X")


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""


def began(pid: int) -> str | None:
    """A mark of the process that has this pid now; None when none is running."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if not fields or fields[_STATE] in _ENDED:
        return None
    return f"{fields[_STARTED]}@{_boot()}"


def is_running(pid: int | None, mark: str | None) -> bool:
    """Whether that very process still runs."""
    return pid is not None and mark is not None and began(pid) == mark


def send(pid: int | None, mark: str | None, number: int = signal.SIGTERM) -> bool:
    """Signal that very process, and nobody who got its pid; False when it is gone."""
    if pid is None or not is_running(pid, mark):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
