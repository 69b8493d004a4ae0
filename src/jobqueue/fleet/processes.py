"""Start, find and end processes that may outlive the program that started them.

The module imports only the standard library: the guard and `scripts/services` run without installed
packages.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

POLL = 0.01  # seconds between two checks of a process that starts or ends

# Fields of /proc/PID/stat, counted from the command's closing parenthesis.
_STATE, _PARENT, _STARTED = 0, 1, 19
_ENDED = ("Z", "X")

# This program's children, kept until they end: Python warns if a Popen is deleted earlier.
_children: dict[int, subprocess.Popen[bytes]] = {}

# The parameter `user` of subprocess forks, and runs the fork handlers of libraries in the child.
# The handlers of gRPC crash there while gRPC is in use.
_BECOME = """\
import os, sys
uid, gid, *command = sys.argv[1:]
os.setgroups([])
os.setgid(int(gid))
os.setuid(int(uid))
os.execv(command[0], command)
"""


# The identity of a process is its pid with its start time: the system uses a pid again.


def began(pid: int) -> str | None:
    """Return the start time and boot id of the process with this pid, or None if it has ended.

    With the pid, this text (a ``mark``) identifies the process.
    """
    if _field(pid, _STATE) in ("", *_ENDED):
        return None
    return f"{_field(pid, _STARTED)}@{_boot()}"


def is_running(pid: int | None, mark: str | None) -> bool:
    """Return True if the process for which ``began`` returned the mark still runs."""
    return pid is not None and mark is not None and began(pid) == mark


def send(pid: int | None, mark: str | None, number: int = signal.SIGTERM) -> None:
    """Send a signal to the process with this pid and mark, if that process still runs."""
    if pid is not None and is_running(pid, mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def works_in(pid: int, folder: Path) -> bool:
    """Return True if the process runs and its working directory is the folder.

    The check distinguishes a private server from another program that got the pid of an ended
    server.
    """
    _collect(pid)
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == folder.resolve()
    except OSError:
        return False


def pids() -> list[int]:
    """Return the pids of all processes on this machine."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parent(pid: int) -> int:
    """Return the pid of the process's parent, or 0 if the process has ended."""
    return int(_field(pid, _PARENT) or 0)


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""


def _field(pid: int, number: int) -> str:
    """Return a field of /proc/PID/stat, or "" if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[number]
    except (OSError, IndexError):
        return ""


# Starting and ending.


def spawn(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a server in the background, in its own session, so that Ctrl-C does not stop it."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        umask=0o077,
    )
    _children[process.pid] = process
    return process


def end(pid: int, folder: Path, signals: Sequence[tuple[signal.Signals, float]]) -> bool:
    """End the process that works in the folder; return True if it has ended.

    Send the signals in turn, and wait the given seconds after each signal.
    """
    started = _field(pid, _STARTED)
    for number, patience in signals:
        if works_in(pid, folder):  # False also if the process is already ending
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)  # a paused process reacts only to this and SIGKILL
        deadline = time.monotonic() + patience
        while not (gone := _is_gone(pid, started)) and time.monotonic() < deadline:
            time.sleep(POLL)
        if gone:
            return True
    return False


def _is_gone(pid: int, started: str) -> bool:
    """Return True if the process's last thread has ended, so that its ports and files are free."""
    _collect(pid)
    if not started or _field(pid, _STARTED) != started:
        return True
    try:
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return True
    return threads == 1 and _field(pid, _STATE) in ("", *_ENDED)


def _collect(pid: int) -> None:
    if (child := _children.get(pid)) is not None and child.poll() is not None:
        del _children[pid]


@atexit.register
def _let_go() -> None:
    """Prevent Python's warnings about servers that still run when this program ends."""
    for child in _children.values():
        child.returncode = child.poll() or 0


# The user who runs a private server, never root.


@dataclass(frozen=True)
class Account:
    """Describes a user account of this machine."""

    name: str
    uid: int
    gid: int

    def unreachable(self, folder: Path) -> Path | None:
        """Return the first folder on the path that this user may not enter.

        The path leads from the root to ``folder``. Return None if the user may enter all folders.
        """
        for step in (*reversed(folder.parents), folder):
            status = step.stat()
            if status.st_uid == self.uid:
                allowed = status.st_mode & stat.S_IXUSR
            elif status.st_gid == self.gid:
                allowed = status.st_mode & stat.S_IXGRP
            else:
                allowed = status.st_mode & stat.S_IXOTH
            if not allowed:
                return step
        return None


def first_account(names: Sequence[str]) -> Account | None:
    """Return the account of the first of these users that exists and is not root, or None."""
    for name in names:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            if entry.pw_uid != 0:
                return Account(name, entry.pw_uid, entry.pw_gid)
    return None


def command_as(account: Account | None, command: Sequence[str]) -> list[str]:
    """Return a command that runs the given command as another user.

    If ``account`` is None, return the given command.
    """
    if account is None:
        return list(command)
    become = [sys.executable, "-I", "-S", "-c", _BECOME, str(account.uid), str(account.gid)]
    return [*become, *command]


def is_root() -> bool:
    return os.geteuid() == 0
