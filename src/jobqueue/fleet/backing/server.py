"""Start and stop private servers: each has a folder, a port, a process and a log.

    folder/
      data/     the server's data, and its working directory
      conf      the server's settings with its port; written at each start
      password  the password of the server's only user; made at the first start
      log       the server's output
      lock      a lock, so that only one process at a time starts or stops the server

A server's folder contains everything that is known about the server. So another process can find
and stop the server. Other users of the machine cannot read the folder's files, and cannot connect
without the password.
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

Mode = Literal["fast", "immediate"]  # how to stop a server
# The signals of a stop in turn, each with the seconds to wait for the end of the process.
Ending = Sequence[tuple[signal.Signals, float]]
KILL: Ending = [(signal.SIGKILL, 5.0)]

_TAIL = 20  # lines of the log that an error shows
_PORT_TRIES = 5
_FILLING = 120.0  # the longest run of a program that makes a data folder, in seconds
_ALONE_WITHIN = 10.0  # seconds to wait for the processes of a killed server
# The only environment variables that a server gets. A client that can run a program through the
# server finds no keys or tokens in them.
_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "TZ", "LD_LIBRARY_PATH")
_PORT_LINE = re.compile(r"^port\b[ =]+(\d+)$", re.MULTILINE)


class BackingFailed(Unavailable):
    """Raised if a private server cannot be started or stopped; shows the end of its log."""


class NotInstalled(BackingFailed):
    """Raised if the machine lacks the server's programs, or a user who can run the server."""


class PrivateServer(ABC):
    """Starts and stops a private server in a folder.

    Every method may be called repeatedly, and by several processes.
    """

    name: ClassVar[str]  # for messages
    users: ClassVar[Sequence[str]]  # the users to run the server as if this user is root
    pid_file: ClassVar[str]  # in the data folder; its first line is the pid
    orderly: ClassVar[Ending]
    abrupt: ClassVar[Ending]  # keeps only acknowledged writes; leaves no process behind

    def __init__(
        self, folder: Path, settings: Mapping[str, str] | None = None, *, port: int | None = None
    ) -> None:
        self.folder = folder.absolute()
        self.data = self.folder / "data"
        self.conf = self.folder / "conf"
        self.log = self.folder / "log"
        self.settings = dict(settings or {})
        self.remark = ""  # a note for the user about the last start
        self._password_file = self.folder / "password"
        self._wanted_port = port
        self._logged = 0  # bytes in the log before the last start

    # Each kind of server implements these.

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that runs the server in the foreground.

        Raise NotInstalled if the server's program is missing.
        """

    @abstractmethod
    def _configuration(self, port: int) -> str:
        """Return the text of `conf`. One line is `port <number>` or `port = <number>`."""

    @abstractmethod
    def _answers(self, port: int) -> bool:
        """Return True if the process that the pid file names is ready on the given port.

        An implementation must not send the password: another user's program may have the port.
        """

    def _fill(self) -> None:
        """Create the server's files in an empty data folder, before the first start."""
        return

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        return {**kept, "LC_ALL": "C"}

    def _takes_password(self) -> bool:
        return True

    def _apply_password(self, password: str) -> None:
        """Write the password to the server's data, if the server does not read it from `conf`."""
        return

    def _ports(self) -> list[int]:
        """Return the ports that the server listens on."""
        return [self.port]

    # The server's state, read from its folder.

    @property
    def pid(self) -> int | None:
        """Return the pid of the server, or None if the server does not run."""
        pid = self._noted_pid()
        return pid if pid is not None and processes.works_in(pid, self.data) else None

    def alive(self) -> bool:
        """Return True if the server's process runs."""
        return self.pid is not None

    @property
    def port(self) -> int:
        """Return the port that the server got at its last start. Restarts keep the port."""
        port = self._noted_port()
        if port is None:
            raise BackingFailed(
                f"{self.name} in {self.folder} has no port yet: start the server first"
            )
        return port

    @property
    def password(self) -> str:
        """Return the password of the server's only user. Restarts keep the password."""
        try:
            return self._password_file.read_text()
        except FileNotFoundError:
            raise BackingFailed(
                f"{self.name} in {self.folder} has no password yet: start the server first"
            ) from None

    def _noted(self) -> list[str]:
        """Return the lines of the pid file, which an ended server may have left behind."""
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
        """Return the output that the server wrote to its log since the last start."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._logged)
            return log.read().decode(errors="replace")

    # The steps of a start, for a supervisor.

    def prepare(self, *, keep_port: bool = False) -> list[str]:
        """Prepare the folder and its files for a start; return the command that starts the server.

        A server that still runs in the folder is stopped. The first call creates the data folder,
        which may take seconds.
        """
        command = self._command()
        self._make_folder()
        self._end_now(self.orderly)  # a server of an earlier supervisor or version
        self._wait_until_alone()
        self._give_data()
        self._fill()
        if self._takes_password() and not self._password_file.exists():
            self._set_password()
        self._write(self.conf, self._configuration(self._choose_port(keep=keep_port)))
        return processes.command_as(self._account(), command)

    def spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start the prepared server, without waiting. ``answers`` returns True once it is ready."""
        self._logged = self.log.stat().st_size if self.log.exists() else 0
        with open_log(self.log) as log:
            return processes.spawn(command, self.data, self._environment(), log)

    def answers(self, child: subprocess.Popen[bytes]) -> bool:
        """Return True if the server that ``spawn`` started is ready."""
        return self._noted_pid() == child.pid and self._answers(self.port)

    def log_end(self) -> str:
        """Return the last lines that the server wrote to its log since the last start."""
        return "\n".join(self._output().splitlines()[-_TAIL:])

    def _wait_until_alone(self) -> None:
        """Wait until no process works in the data folder.

        The child processes of a killed server end a moment after the server.
        """
        deadline = time.monotonic() + _ALONE_WITHIN
        while time.monotonic() < deadline:
            if not any(processes.works_in(pid, self.data) for pid in processes.pids()):
                return
            time.sleep(processes.POLL)

    # Calls for programs without a supervisor.

    def start(self, timeout: float = 60.0, *, keep_port: bool = False) -> None:
        """Start the server, and wait at most ``timeout`` seconds until it is ready.

        Do nothing if the server runs. With ``keep_port``, use the port of the last start or fail.
        """
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
        """Wait until the server is ready; kill the server if it is not ready at the deadline.

        Return False if the server ended or was killed.
        """
        try:
            while child.poll() is None and time.monotonic() < deadline:
                if self.answers(child):
                    return True
                time.sleep(processes.POLL)
        except BaseException:  # at Ctrl-C, too, do not leave a half-started server behind
            self._drop(child)
            raise
        self._drop(child)
        return False

    def _failure(self, status: int) -> BackingFailed:
        how = f"ended with status {status}" if status > 0 else "did not answer in time"
        return BackingFailed(
            f"{self.name} did not start on 127.0.0.1:{self.port}: it {how}. "
            f"The end of its log, {self.log}:\n{self.log_end() or '(the log is empty)'}"
        )

    def _drop(self, child: subprocess.Popen[bytes]) -> None:
        if child.poll() is None:
            processes.end(child.pid, self.data, self.abrupt)
            child.wait()

    def stop(self, mode: Mode = "fast") -> None:
        """Stop the server; kill it if it does not end in time.

        The mode ``fast`` lets the server end in order. The mode ``immediate`` ends it at once, and
        keeps only acknowledged writes.
        """
        self._end(self.orderly if mode == "fast" else self.abrupt)

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash."""
        self._end(KILL)

    def restart(self, mode: Mode = "fast") -> None:
        """Stop the server, and start it on the same port."""
        self.stop(mode)
        self.start(keep_port=True)

    def remove(self) -> None:
        """Stop the server, and delete its folder with all data."""
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
            raise BackingFailed(
                f"cannot stop {self.name} in {self.folder}: process {pid} still runs after SIGKILL"
            )

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        self._make_folder()
        # Other users cannot open the lock file: they could keep the lock for ever.
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
        """Return the account to run the server as, or None for the account of this process.

        A server does not run as root. If this process runs as root and no other account is
        suitable, raise NotInstalled.
        """
        if not processes.is_root():
            return None
        chosen = processes.first_account(self.users)
        if chosen is None:
            raise NotInstalled(
                f"{self.name} cannot run as root, and the users that could run it do not exist "
                f"({' or '.join(self.users)}): create one, or run this command as another user"
            )
        return chosen

    def _set_password(self) -> None:
        """Make a new password, apply it to the data, and write the password file.

        The file is written last: after an interrupted start, the next start makes a new password.
        """
        made = secrets.token_urlsafe(24)
        self._apply_password(made)
        write_private(self._password_file, made)

    # The folder.

    def _make_folder(self) -> None:
        make_folder(self.folder, 0o755 if processes.is_root() else 0o700)
        mode = self.folder.stat().st_mode
        if mode & 0o022:  # no other user may replace the files in the folder, like the password
            self.folder.chmod(mode & 0o7755)

    def _give_data(self) -> None:
        """Make the server's user the owner of `data`, and of nothing else in the folder."""
        # Root writes no file in a folder where another user may write.
        self.data.mkdir(exist_ok=True)
        if runs_as := self._account():
            self.folder.chmod(0o755)
            if blocked := runs_as.unreachable(self.folder):
                raise BackingFailed(
                    f"{self.name} runs as user {runs_as.name}, who may not enter {blocked}: "
                    f"choose another folder, or run `chmod o+x {blocked}`"
                )
        self._give_away(self.data)

    def _give_away(self, folder: Path) -> None:
        folder.chmod(0o700)
        if runs_as := self._account():
            os.chown(folder, runs_as.uid, runs_as.gid, follow_symlinks=False)

    def _fill_by(self, command: Sequence[str], filled: str) -> None:
        """Run a program that creates the data folder, unless the file ``filled`` exists there.

        The program writes the file ``filled`` last. It works in another folder that is renamed to
        `data` afterwards, so that an interrupted run leaves no incomplete data folder.
        """
        if (self.data / filled).exists():
            return
        if any(self.data.iterdir()):
            raise BackingFailed(
                f"{self.data} is neither empty nor a data folder of {self.name}: choose another"
                " folder, or empty this one"
            )
        scratch = self.folder / "data.new"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        self._give_away(scratch)
        self._run_in(scratch, command, "making")
        scratch.rename(self.data)

    def _run_in(self, folder: Path, command: Sequence[str], doing: str, told: bytes = b"") -> str:
        """Run a program as the server's user, wait for its end, and return its output.

        ``told`` is the program's input. ``doing`` describes the program's task in errors.
        """
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
            why = f"{doing} {self.data} took more than {_FILLING:.0f} s and was stopped"
            raise BackingFailed(why) from None
        output = ran.stdout.decode(errors="replace").strip()
        if ran.returncode:
            raise BackingFailed(f"{doing} {self.data} for {self.name} failed:\n{output}")
        return output

    def _write(self, path: Path, text: str) -> None:
        """Write a file that only the server's user can read."""
        runs_as = self._account()
        write_private(path, text, owner=(runs_as.uid, runs_as.gid) if runs_as else None)
