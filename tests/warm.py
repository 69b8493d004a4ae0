"""Start the programs from a process that has imported what they import.

Most of the time of a short program goes into its imports. Each test process has a parent for the
programs (`tests/warm_parent.py`), which does the imports once and forks: such a program has its own
process, arguments, environment, folder, streams and signals, and runs its module as `python -m`
does. What a test says about imports or the start of the interpreter, it shows with `subprocess`.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.warm_parent import NUMBER

# What an interpreter or a library reads when it is loaded: with other values, one is started anew.
READ_EARLY = (
    "COV", "FORCE_COLOR", "GITHUB_", "GRPC_", "LANG", "LC_", "LD_", "MALLOC", "OPENSSL", "PYTHON",
    "PY_COLORS", "SSL_", "TERMINAL_WIDTH", "TYPER_", "TZ", "_TYPER_",
)  # fmt: skip
READ_SIZE = 1 << 16


class _Parent:
    """The warm process of this test process. It ends when we do."""

    def __init__(self, early: dict[str, str]) -> None:
        self.early = early
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._connection, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm_parent", str(theirs.fileno())],
            cwd=Path(__file__).parents[1],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if not k.startswith(("JQ_", *READ_EARLY))}
            | early,
        )
        theirs.close()
        atexit.register(self._end)

    def _end(self) -> None:
        if os.getpid() == self.owner:
            self._connection.close()
            self._process.wait()

    def fork(self, request: dict[str, Any], streams: Sequence[int]) -> tuple[int, int]:
        """Returns the process, and what its exit status can be read from."""
        status, told = os.pipe()
        try:
            body = json.dumps(request).encode()
            with self._lock:
                header = NUMBER.pack(len(body))
                socket.send_fds(self._connection, [header], [*streams, told])
                self._connection.sendall(body)
        finally:
            os.close(told)
        return NUMBER.unpack(os.read(status, NUMBER.size))[0], status


_parents: list[_Parent] = []  # of this process, and of those that it was forked from
_starting = threading.Lock()


def _early(env: Mapping[str, str]) -> dict[str, str]:
    ours = {"GRPC_VERBOSITY": "ERROR"}  # the programs set it themselves, also in this process
    early = {name: value for name, value in env.items() if name.startswith(READ_EARLY)}
    return early | ours if early.get("GRPC_VERBOSITY", "ERROR") == "ERROR" else early


def _parent_for(env: Mapping[str, str]) -> _Parent | None:
    with _starting:
        if not _parents or _parents[-1].owner != os.getpid():
            _parents.append(_Parent(_early(os.environ) | {"PYTHONUNBUFFERED": "1"}))
        return _parents[-1] if _parents[-1].early == _early(env) else None


class Warm:
    """A program that the warm parent has forked; what tests use of `subprocess.Popen`."""

    def __init__(
        self,
        parent: _Parent,
        command: Sequence[str],
        cwd: Path | str,
        env: Mapping[str, str],
        streams: tuple[int, int, int],
        tty: bool,
    ) -> None:
        self.args = list(command)
        self.returncode: int | None = None
        opened: list[int] = []
        ends: list[IO[str] | None] = [None, None]
        try:
            passed: list[int] = []
            for number, stream in enumerate(streams):
                if stream == subprocess.DEVNULL:
                    passed.append(os.open(os.devnull, os.O_RDWR))
                    opened.append(passed[-1])
                elif stream == subprocess.PIPE:
                    ours, theirs = os.pipe()
                    ends[number - 1] = open(ours, encoding="utf-8")  # noqa: SIM115
                    passed.append(theirs)
                    opened.append(theirs)
                elif stream == subprocess.STDOUT:
                    passed.append(passed[1])
                else:
                    passed.append(stream)
            umask = os.umask(0)
            os.umask(umask)
            self.pid, self._status = parent.fork(
                {
                    "command": self.args,
                    "cwd": str(cwd),
                    "env": dict(env),
                    "umask": umask,
                    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
                    "tty": tty,
                },
                passed,
            )
        finally:
            for one in opened:
                os.close(one)
        self.stdout, self.stderr = ends
        self._waiting = threading.Lock()

    def __del__(self) -> None:
        if self.returncode is None and hasattr(self, "_status"):
            os.close(self._status)

    def poll(self) -> int | None:
        """The exit status, if it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; returns the exit status."""
        with self._waiting:
            if self.returncode is None:
                waits = select.poll()
                waits.register(self._status, select.POLLIN)
                if not waits.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                told = os.read(self._status, NUMBER.size)
                assert told, "the parent of the programs has ended"
                self.returncode = os.waitstatus_to_exitcode(NUMBER.unpack(told)[0])
                os.close(self._status)
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Everything that it printed, once it has ended."""
        assert self.stdout is not None
        assert self.stderr is not None
        began = time.monotonic()
        with self.stdout, self.stderr:
            read = {self.stdout.fileno(): b"", self.stderr.fileno(): b""}
            still = list(read)
            while still:
                left = None if timeout is None else max(0.0, began + timeout - time.monotonic())
                ready = select.select(still, [], [], left)[0]
                if not ready:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                for descriptor in ready:
                    more = os.read(descriptor, READ_SIZE)
                    read[descriptor] += more
                    if not more:
                        still.remove(descriptor)
        self.wait(timeout)
        out, err = (data.decode() for data in read.values())
        return out, err


def popen(
    command: Sequence[str],
    *,
    cwd: Path | str,
    env: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: int,
    stderr: int,
    tty: bool = False,
) -> Any:
    """A `Warm` program, if the command is ``python -m jobqueue.cli.NAME``; else a Popen."""
    python, *rest = command
    if python == sys.executable and rest[0] == "-m" and rest[1].startswith("jobqueue.cli."):
        parent = _parent_for(env)
        if parent is not None:
            return Warm(parent, rest[1:], cwd, env, (stdin, stdout, stderr), tty)
    taking = (sys.executable, "-c", _TAKE_TERMINAL) if tty else ()
    return subprocess.Popen(
        [*taking, *command], cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr,
        text=True, start_new_session=tty,
    )  # fmt: skip


# Ctrl-C reaches only programs whose controlling terminal it is typed at.
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " os.execv(sys.argv[1], sys.argv[1:])"
)
