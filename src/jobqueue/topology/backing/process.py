"""Processes that may outlive the object, and the program, that started them."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from jobqueue.topology.backing.account import Account, command_as

POLL = 0.01  # seconds between two looks at a process that starts or ends

# Children of this program, so that their ends are collected. Kept here because a Popen that is
# dropped while its process runs is a warning.
_children: dict[int, subprocess.Popen[bytes]] = {}

# The system's sockets. A server of 127.0.0.1 may be in the second table: a JVM's sockets are IPv6.
_SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"  # in their column of states


@atexit.register
def _let_go() -> None:
    """At the end of the program they are dropped, and go on."""
    for child in _children.values():
        child.returncode = child.poll() or 0


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
        command_as(runs_as, command),
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C in a terminal is for us, not for our servers
        umask=0o077,
    )
    _children[process.pid] = process
    return process


def works_in(pid: int, folder: Path) -> bool:
    """Whether that process is alive and its working directory is that folder.

    This is how a server is told from a stranger who got the number of a dead one.
    """
    _collect(pid)
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == folder.resolve()
    except OSError:
        return False


def listens_on(pid: int, port: int) -> bool:
    """Whether that process is the one that listens on that port. True if the system does not tell.

    A secret is sent to a server that starts only after this: another user may have its port.
    """
    readable = [table for table in _SOCKETS if os.access(table, os.R_OK)]
    if not readable:
        return True
    rows = [row.split() for table in readable for row in table.read_text().splitlines()[1:]]
    listeners = {
        f"socket:[{row[9]}]"
        for row in rows
        if row[3] == _LISTENING and row[1].endswith(f":{port:04X}")
    }
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if str(descriptor.readlink()) in listeners:
                    return True
    except PermissionError:
        return bool(listeners)
    except OSError:  # the process is gone
        return False
    return False


def end(pid: int, folder: Path, by: Sequence[tuple[signal.Signals, float]]) -> bool:
    """Send the signals in turn, each with the seconds it has to work. True: the process is gone."""
    born = _born(pid)
    for how, patience in by:
        if works_in(pid, folder):  # one that is ending does not; nor does a stranger
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
                os.kill(pid, signal.SIGCONT)  # a paused process hears nothing but this and SIGKILL
        deadline = time.monotonic() + patience
        while not _is_gone(pid, born) and time.monotonic() < deadline:
            time.sleep(POLL)
        if _is_gone(pid, born):
            return True
    return False


def _is_gone(pid: int, born: str | None) -> bool:
    """Its last thread has ended, and with it all that the process held: ports, files."""
    _collect(pid)
    if born is None or _born(pid) != born:
        return True
    try:
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return True
    return threads == 1 and _stat(pid)[:1] in (["Z"], ["X"])


def _born(pid: int) -> str | None:
    """When the process began: with its number, this names one process and no other."""
    stat = _stat(pid)
    return stat[19] if stat else None


def _stat(pid: int) -> list[str]:
    """What the system knows about it, from its state on; nothing if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _collect(pid: int) -> None:
    if (child := _children.get(pid)) is not None and child.poll() is not None:
        del _children[pid]
