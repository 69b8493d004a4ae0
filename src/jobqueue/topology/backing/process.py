"""Processes that may outlive the object, and the program, that started them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from jobqueue.topology.backing.account import Account

POLL = 0.01  # seconds between two looks at a process that starts or ends

# Children of this program, so that their ends are collected. Kept here because a Popen that is
# dropped while its process runs is a warning.
_children: dict[int, subprocess.Popen[bytes]] = {}


def spawn(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    runs_as: Account | None,
    output: IO[bytes],
) -> subprocess.Popen[bytes]:
    """Start a server in the background."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C in a terminal is for us, not for our servers
        user=runs_as.uid if runs_as else None,
        group=runs_as.gid if runs_as else None,
        extra_groups=[] if runs_as else None,
        umask=0o077,
    )
    _children[process.pid] = process
    return process


def works_in(pid: int, folder: Path) -> bool:
    """Whether that process is alive and its working directory is that folder.

    This is how a server is told from a stranger who got the number of a dead one.
    """
    if (child := _children.get(pid)) is not None and child.poll() is not None:
        del _children[pid]
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" and Path(f"/proc/{pid}/cwd").readlink() == folder.resolve()
    except OSError:
        return False


def end(pid: int, folder: Path, by: Sequence[tuple[signal.Signals, float]]) -> bool:
    """Send the signals in turn, each with the seconds it has to work. True: the process is gone."""
    for how, patience in by:
        if not works_in(pid, folder):
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
            os.kill(pid, signal.SIGCONT)  # a paused process hears nothing but this and SIGKILL
        deadline = time.monotonic() + patience
        while works_in(pid, folder) and time.monotonic() < deadline:
            time.sleep(POLL)
    return not works_in(pid, folder)
