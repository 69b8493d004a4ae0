"""The base of private servers: a folder, a port, a process, a log.

    folder/
      data/     the server's own, and its working directory
      conf      written by this program at each start; remembers the port
      password  of the server's one user, made at the first start
      log       the server's output
      lock      one start or stop at a time

Everything known about a server is in its folder, not in memory: another process finds a server that
this one started, and can stop it. Other users of the machine can read none of it, and cannot
connect without the password.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from jobqueue.core.errors import Unavailable
from jobqueue.fleet import ports, processes
from jobqueue.fleet.folders import make_folder, open_log, write_private
from jobqueue.fleet.processes import Account

Mode = Literal["fast", "immediate"]  # of a stop
Ending = Sequence[tuple[signal.Signals, float]]  # signals, each with the seconds it has to work
KILL: Ending = [(signal.SIGKILL, 5.0)]

_TAIL = 20  # lines of the log that an error shows
_PORT_TRIES = 5
_FILLING = 120.0  # seconds
_ALONE_WITHIN = 10.0  # seconds
# The variables that a server gets. A client that makes it run a program finds no keys and no tokens
# there.
_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "TZ", "LD_LIBRARY_PATH")
_PORT_LINE = re.compile(r"^port\b[ =]+(\d+)$", re.MULTILINE)


class BackingFailed(Unavailable):
    """A private server could not be started or stopped; carries the end of its log."""


class NotInstalled(BackingFailed):
    """The server's programs, or a user to run them as, are not on this machine."""


class PrivateServer(ABC):
    """One server in one folder. Every call may be repeated, also by another process."""

    name: ClassVar[str]  # as people write it
    users: ClassVar[Sequence[str]]  # that it may run as when this user is root, best first
    pid_file: ClassVar[str]  # in the data folder; its first line is the pid
    orderly: ClassVar[Ending]
    abrupt: ClassVar[Ending]  # keeps only what was acknowledged; leaves no process behind

    def __init__(
        self, folder: Path, settings: Mapping[str, str] | None = None, *, port: int | None = None
    ) -> None:
        self.folder = folder.absolute()
        self.data = self.folder / "data"
        self.conf = self.folder / "conf"
        self.log = self.folder / "log"
        self.settings = dict(settings or {})
        self.remark = ""  # for people: a surprise of the last start
        self._password_file = self.folder / "password"
        self._wanted_port = port
        self._logged = 0  # bytes in the log before the last start

    # Each kind of server implements these.

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command of the server in the foreground. Raises NotInstalled."""

    @abstractmethod
    def _configuration(self, port: int) -> str:
        """Return the text of `conf`. One line is `port <number>` or `port = <number>`."""

    @abstractmethod
    def _answers(self, port: int) -> bool:
        """Return whether the process in the pid file serves that port by now.

        The password is not sent: another user's program may have the port.
        """

    def _fill(self) -> None:
        """Make an empty data folder ready for the first start."""
        return

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        return {**kept, "LC_ALL": "C"}

    def _takes_password(self) -> bool:
        return True

    def _apply_password(self, password: str) -> None:
        """Write the password into the data folder, if `conf` alone is not enough."""
        return

    def _ports(self) -> list[int]:
        """Return the ports that the server listens on."""
        return [self.port]

    # What the folder tells.

    @property
    def pid(self) -> int | None:
        """The pid of the running server; None when it does not run."""
        pid = self._noted_pid()
        return pid if pid is not None and processes.works_in(pid, self.data) else None

    def alive(self) -> bool:
        return self.pid is not None

    @property
    def port(self) -> int:
        """The port of the last start. A restart keeps it."""
        port = self._noted_port()
        if port is None:
            raise BackingFailed(f"{self.name} in {self.folder} was never started")
        return port

    @property
    def password(self) -> str:
        """The password of the server's one user. A restart keeps it."""
        try:
            return self._password_file.read_text()
        except FileNotFoundError:
            raise BackingFailed(f"{self.name} in {self.folder} was never started") from None

    def _noted(self) -> list[str]:
        """The lines of the pid file, of a server that is alive or dead."""
        try:
            return (self.data / self.pid_file).read_text().splitlines()
        except FileNotFoundError:
            return []

    def _noted_pid(self) -> int | None:
        noted = [line.strip() for line in self._noted()[:1]]
        return int(noted[0]) if noted and noted[0].isdigit() else None

    def _noted_port(self) -> int | None:
        try:
            found = _PORT_LINE.search(self.conf.read_text())
        except FileNotFoundError:
            return None
        return int(found[1]) if found else None

    def _output(self) -> str:
        """Return the text that the server wrote since the last start."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._logged)
            return log.read().decode(errors="replace")

    # A start, step by step, for a supervisor.

    def prepare(self, *, keep_port: bool = False) -> list[str]:
        """Make everything ready for a start; return the command. May take a while."""
        command = self._command()
        self._make_folder()
        self._end_now(self.orderly)  # of an earlier supervisor, or of a version without a password
        self._wait_until_alone()
        self._give_data()
        self._fill()
        if self._takes_password() and not self._password_file.exists():
            self._set_password()
        self._write(self.conf, self._configuration(self._choose_port(keep=keep_port)))
        return processes.command_as(self._account(), command)

    def spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start the prepared server; `answers` tells when it is up."""
        self._logged = self.log.stat().st_size if self.log.exists() else 0
        with open_log(self.log) as log:
            return processes.spawn(command, self.data, self._environment(), log)

    def answers(self, child: subprocess.Popen[bytes]) -> bool:
        """Return whether the server that was spawned is up by now."""
        return self._noted_pid() == child.pid and self._answers(self.port)

    def log_end(self) -> str:
        """Return the last lines that it wrote since the last start."""
        return "\n".join(self._output().splitlines()[-_TAIL:])

    def _wait_until_alone(self) -> None:
        """Wait for the other processes of a server that was killed: they end a moment later."""
        deadline = time.monotonic() + _ALONE_WITHIN
        while time.monotonic() < deadline:
            if not any(processes.works_in(pid, self.data) for pid in processes.pids()):
                return
            time.sleep(processes.POLL)

    # Calls for programs without a supervisor.

    def start(self, timeout: float = 60.0, *, keep_port: bool = False) -> None:
        """Start it and wait that long until it answers. Does nothing if it runs already."""
        with self._one_at_a_time():
            if self.alive() and (self._password_file.exists() or not self._takes_password()):
                return
            deadline = 0.0
            for tries_left in reversed(range(_PORT_TRIES)):
                command = self.prepare(keep_port=keep_port)
                deadline = deadline or time.monotonic() + timeout
                child = self.spawn(command)
                if self._is_up(child, deadline):
                    return
                # Another program may have taken a port before this server did.
                taken = [port for port in self._ports() if not ports.is_free(port)]
                is_fixed = (keep_port or self._wanted_port) and self.port in taken
                if not taken or is_fixed or not tries_left or time.monotonic() > deadline:
                    raise self._failure(child.returncode)

    def _is_up(self, child: subprocess.Popen[bytes], deadline: float) -> bool:
        """Wait until it answers. False: it ended, or took too long and was killed."""
        try:
            while child.poll() is None and time.monotonic() < deadline:
                if self.answers(child):
                    return True
                time.sleep(processes.POLL)
        except BaseException:  # Ctrl-C too: a half-started server does not stay behind
            self._drop(child)
            raise
        self._drop(child)
        return False

    def _failure(self, status: int) -> BackingFailed:
        how = f"ended with status {status}" if status > 0 else "did not answer in time"
        return BackingFailed(
            f"{self.name} did not start on 127.0.0.1:{self.port}: it {how}. "
            f"The end of its log, {self.log}:\n{self.log_end() or '(it wrote nothing)'}"
        )

    def _drop(self, child: subprocess.Popen[bytes]) -> None:
        if child.poll() is None:
            processes.end(child.pid, self.data, self.abrupt)
            child.wait()

    def stop(self, mode: Mode = "fast") -> None:
        """End it in good order, or at once with what was acknowledged; by force if it hangs."""
        self._end(self.orderly if mode == "fast" else self.abrupt)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(KILL)

    def restart(self, mode: Mode = "fast") -> None:
        """Stop it, and start it on the same port."""
        self.stop(mode)
        self.start(keep_port=True)

    def remove(self) -> None:
        """End it and delete its folder."""
        if self.folder.is_dir():
            self._end(self.abrupt)
            shutil.rmtree(self.folder)

    def _end(self, signals: Ending) -> None:
        if self.folder.is_dir():
            with self._one_at_a_time():
                self._end_now(signals)

    def _end_now(self, signals: Ending) -> None:
        pid = self.pid
        if pid is not None and not processes.end(pid, self.data, signals):
            raise BackingFailed(f"{self.name} in {self.folder} (process {pid}) does not end")

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        self._make_folder()
        # Other users cannot open it: they could hold it for ever.
        lock = os.open(self.folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.fchmod(lock, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    # Port, user and password.

    def _choose_port(self, *, keep: bool) -> int:
        if self._wanted_port:
            return self._wanted_port
        noted = self._noted_port()
        if noted and (keep or ports.is_free(noted)):
            return noted
        return ports.free_port()

    def _account(self) -> Account | None:
        """Return the account to run as; None: this user's, who is not root."""
        if not processes.is_root():
            return None
        chosen = processes.first_account(self.users)
        if chosen is None:
            raise NotInstalled(
                f"{self.name} does not run as root, and there is no user "
                f"{' or '.join(self.users)} to run it as: make one, or start this as another user"
            )
        return chosen

    def _set_password(self) -> None:
        """Make a password. Its file is written last: an interrupted start makes another one."""
        made = secrets.token_urlsafe(24)
        self._apply_password(made)
        write_private(self._password_file, made)

    # The folder.

    def _make_folder(self) -> None:
        make_folder(self.folder, 0o755 if processes.is_root() else 0o700)
        mode = self.folder.stat().st_mode
        if mode & 0o022:  # the password is in there
            self.folder.chmod(mode & 0o7755)

    def _give_data(self) -> None:
        """Give the server `data` and nothing else: root writes no file where others may write."""
        self.data.mkdir(exist_ok=True)
        if runs_as := self._account():
            self.folder.chmod(0o755)
            if blocked := runs_as.unreachable(self.folder):
                raise BackingFailed(
                    f"{self.name} runs as user {runs_as.name}, who may not enter {blocked}: "
                    "choose a folder elsewhere, or let others pass (chmod o+x)"
                )
        self._give_away(self.data)

    def _give_away(self, folder: Path) -> None:
        folder.chmod(0o700)
        if runs_as := self._account():
            os.chown(folder, runs_as.uid, runs_as.gid, follow_symlinks=False)

    def _fill_by(self, command: Sequence[str], filled: str) -> None:
        """Run a program that fills its working directory; `filled` is a file that it writes last.

        It works in a folder beside `data`, so that an interrupted run leaves nothing that counts.
        """
        if (self.data / filled).exists():
            return
        if any(self.data.iterdir()):
            raise BackingFailed(f"{self.data} is neither empty nor a data folder of {self.name}")
        scratch = self.folder / "data.new"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        self._give_away(scratch)
        self._run_in(scratch, command, "making")
        scratch.rename(self.data)

    def _run_in(self, folder: Path, command: Sequence[str], doing: str, told: bytes = b"") -> str:
        """Run a program to its end as the server's user, `told` as its input; return its output."""
        try:
            ran = subprocess.run(
                processes.command_as(self._account(), command),
                cwd=folder,
                env=self._environment(),
                input=told,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=_FILLING,
                umask=0o077,
            )
        except subprocess.TimeoutExpired:
            why = f"{doing} {self.data} took more than {_FILLING:.0f} s"
            raise BackingFailed(why) from None
        output = ran.stdout.decode(errors="replace").strip()
        if ran.returncode:
            raise BackingFailed(f"{doing} {self.data} for {self.name} failed:\n{output}")
        return output

    def _write(self, path: Path, text: str) -> None:
        """Write a file that only the server can read."""
        runs_as = self._account()
        write_private(path, text, owner=(runs_as.uid, runs_as.gid) if runs_as else None)
