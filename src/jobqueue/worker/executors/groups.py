"""Process groups: killing them, and saying how a process ended."""

from __future__ import annotations

import contextlib
import os
import signal


def kill_group(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal a process that leads its own group, with all that it started."""
    if pid <= 1:  # 0 is the caller's own group
        raise ValueError(f"{pid} is no process of ours")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def describe_exit(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
