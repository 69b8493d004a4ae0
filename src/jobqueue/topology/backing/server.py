"""What private servers have in common: a folder, a port, a process, a log.

    folder/
      data/     the server's own, and its working directory
      conf      written by us at each start; remembers the port
      password  of the server's one user, made at the first start
      log       what the server said
      lock      one start or stop at a time

What is known about a server is in its folder, not in memory: so another process finds a server
that this one started, and can stop it. Other users of the machine can read none of it, and cannot
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
from typing import IO, ClassVar

from jobqueue.core.errors import Unavailable
from jobqueue.topology.backing import account, ports, process

Ending = Sequence[tuple[signal.Signals, float]]  # signals, each with the seconds it has to work
KILL: Ending = [(signal.SIGKILL, 5.0)]

_TAIL = 20  # lines of the log that a failure shows
_PORT_TRIES = 5
_FILLING = 120.0  # seconds
_AGAIN_AFTER = 0.1  # seconds
# What a server is told of our environment. A client that gets it to run a program finds nothing
# else there: no keys, no tokens.
_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "TZ", "LD_LIBRARY_PATH")
_PORT_LINE = re.compile(r"^port\b[ =]+(\d+)$", re.MULTILINE)


class BackingFailed(Unavailable):
    """A private server could not be started or stopped; carries the end of its log."""


class NotInstalled(BackingFailed):
    """The server's programs, or a user to run them as, are not on this machine."""


class PrivateServer(ABC):
    """One server in one folder. Every call may be repeated, by another process too."""

    name: ClassVar[str]  # as people write it
    users: ClassVar[Sequence[str]]  # whom it may run as when we are root, best first
    orderly: ClassVar[Ending]
    abrupt: ClassVar[Ending]  # nothing is kept but what was promised; leaves no process behind

    def __init__(
        self, folder: Path, settings: Mapping[str, str] | None = None, *, port: int | None = None
    ) -> None:
        self.folder = folder.absolute()
        self.data = self.folder / "data"
        self.conf = self.folder / "conf"
        self.log = self.folder / "log"
        self.settings = dict(settings or {})
        self.remark = ""  # what people should know of the last start
        self._wanted_port = port

    # What each kind of server says about itself.

    @abstractmethod
    def _command(self) -> list[str]:
        """The server in the foreground, reading `conf`. Raises NotInstalled."""

    @abstractmethod
    def _configuration(self, port: int) -> str:
        """The text of `conf`. One line is `port <number>` or `port = <number>`."""

    @abstractmethod
    def _noted_pid(self) -> int | None:
        """The process that the server's pid file names, dead or alive."""

    @abstractmethod
    def _answers(self, port: int) -> bool:
        """Whether the process in the pid file serves that port by now.

        Sends the password to nobody else: see `_listens_on`.
        """

    def _fill(self) -> None:
        """Make an empty data folder ready for the first start."""
        return

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        return {**kept, "LC_ALL": "C"}

    def _takes_password(self) -> bool:
        """Whether clients have to log in."""
        return True

    def _apply_password(self, password: str) -> None:
        """Make the data folder take it, where it is not enough that `conf` says it."""
        return

    def _listens_on(self, port: int) -> bool:
        """Whether it is the process in the pid file that a connection to that port reaches."""
        pid = self._noted_pid()
        return pid is not None and process.listens_on(pid, port)

    def _passes_soon(self, said: str) -> bool:
        """Whether a start that failed with these words is worth another try."""
        return False

    # What the folder tells.

    @property
    def pid(self) -> int | None:
        """The server's process, None when it does not run."""
        pid = self._noted_pid()
        return pid if pid is not None and process.works_in(pid, self.data) else None

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
        """Of the server's one user. A restart keeps it."""
        try:
            return self._password_file.read_text()
        except FileNotFoundError:
            raise BackingFailed(f"{self.name} in {self.folder} was never started") from None

    def log_tail(self, since: int = 0) -> str:
        """The last lines that the server wrote."""
        try:
            text = self.log.read_bytes()[since:].decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-_TAIL:])

    # Calls.

    def start(self, timeout: float = 60.0) -> None:
        """Start it and wait until it answers. Where it runs already, nothing is done."""
        with self._one_at_a_time():
            if self.alive() and self._takes_password() and not self._password_file.exists():
                self._end_now(self.orderly)  # an earlier version started it, open to everybody
            if not self.alive():
                self._start(timeout, keep_port=False)

    def stop(self) -> None:
        """End it in an orderly way; by force when that takes too long."""
        self._end(self.orderly)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(KILL)

    def restart(self) -> None:
        """Stop it, and start it on the same port."""
        self.stop()
        self._start_again()

    def remove(self) -> None:
        """End it and delete its folder."""
        if self.folder.is_dir():
            self._end(self.abrupt)
            shutil.rmtree(self.folder)

    # Starting and ending.

    def _start_again(self, timeout: float = 60.0) -> None:
        with self._one_at_a_time():
            if not self.alive():
                self._start(timeout, keep_port=True)

    def _start(self, timeout: float, *, keep_port: bool) -> None:
        command = self._command()
        self._prepare_folder()
        self._fill()
        self._set_password()
        deadline = time.monotonic() + timeout
        ports_left = 0 if keep_port or self._wanted_port else _PORT_TRIES
        while True:
            port = self._choose_port(keep=keep_port)
            self._note_for_server(self.conf, self._configuration(port))
            logged = self.log.stat().st_size if self.log.exists() else 0
            with self._open_log() as log:
                child = process.spawn(
                    command,
                    folder=self.data,
                    environment=self._environment(),
                    runs_as=self._account(),
                    output=log,
                )
            if self._is_up(child, port, deadline):
                return
            said = self.log_tail(logged)
            in_time = time.monotonic() < deadline
            if in_time and ports_left and not ports.is_free(port):
                ports_left -= 1  # somebody was faster than our server
            elif in_time and self._passes_soon(said):
                time.sleep(_AGAIN_AFTER)
            else:
                raise self._failure(child.returncode, said, port)

    def _is_up(self, child: subprocess.Popen[bytes], port: int, deadline: float) -> bool:
        """Wait until it answers. False: it ended, or took too long and was killed."""
        try:
            while child.poll() is None and time.monotonic() < deadline:
                if self._noted_pid() == child.pid and self._answers(port):
                    return True
                time.sleep(process.POLL)
        except BaseException:  # Ctrl-C too: nothing half-started stays behind
            self._drop(child)
            raise
        if child.poll() is None:
            self._drop(child)
        return False

    def _drop(self, child: subprocess.Popen[bytes]) -> None:
        process.end(child.pid, self.data, self.abrupt)
        child.wait()

    def _failure(self, status: int, said: str, port: int) -> BackingFailed:
        how = f"ended with status {status}" if status > 0 else "did not answer in time"
        said = said or "(it wrote nothing)"
        return BackingFailed(
            f"{self.name} did not start on 127.0.0.1:{port}: it {how}. "
            f"The end of its log, {self.log}:\n{said}"
        )

    def _end(self, by: Ending) -> None:
        if not self.folder.is_dir():
            return
        with self._one_at_a_time():
            self._end_now(by)

    def _end_now(self, by: Ending) -> None:
        pid = self.pid
        if pid is not None and not process.end(pid, self.data, by):
            raise BackingFailed(f"{self.name} in {self.folder} (process {pid}) does not end")

    def _choose_port(self, *, keep: bool) -> int:
        if self._wanted_port:
            return self._wanted_port
        noted = self._noted_port()
        if noted and (keep or ports.is_free(noted)):
            return noted
        return ports.free_port()

    def _account(self) -> account.Account | None:
        """Whom to become; None: we are not root, and stay who we are."""
        if not account.is_root():
            return None
        chosen = account.choose(self.users)
        if chosen is None:
            raise NotInstalled(
                f"{self.name} does not run as root, and there is no user "
                f"{' or '.join(self.users)} to run it as: make one, or start this as another user"
            )
        return chosen

    # The password.

    @property
    def _password_file(self) -> Path:
        return self.folder / "password"

    def _set_password(self) -> None:
        """Once. Its file is written last: a start that was interrupted before makes another."""
        if self._takes_password() and not self._password_file.exists():
            made = secrets.token_urlsafe(24)
            self._apply_password(made)
            self._note(self._password_file, made, owner=None)

    # The folder.

    def _prepare_folder(self) -> None:
        """Only `data` becomes the server's: what root writes stays out of others' folders."""
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

    def _fill_by(self, command: Sequence[str], filled: Path) -> None:
        """Run a program that makes a data folder of its working directory.

        That is a folder beside it first: a program that was interrupted leaves nothing to trust.
        `filled` is a file that is there when it is done.
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

    def _run_in(self, folder: Path, command: Sequence[str], what: str, told: bytes = b"") -> str:
        """Run a program to its end as the server's user; `told` is what it reads.

        Returns what it said.
        """
        deadline = time.monotonic() + _FILLING
        while True:
            try:
                made = subprocess.run(
                    account.command_as(self._account(), command),
                    cwd=folder,
                    env=self._environment(),
                    input=told,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=deadline - time.monotonic(),
                    umask=0o077,
                )
            except subprocess.TimeoutExpired:
                raise BackingFailed(f"{what} {self.data} took more than {_FILLING:.0f} s") from None
            said = made.stdout.decode(errors="replace").strip()
            if not made.returncode:
                return said
            if not self._passes_soon(said) or time.monotonic() + _AGAIN_AFTER > deadline:
                raise BackingFailed(f"{what} {self.data} for {self.name} failed:\n{said}")
            time.sleep(_AGAIN_AFTER)

    def _open_log(self) -> IO[bytes]:
        return os.fdopen(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")

    def _note_for_server(self, path: Path, text: str) -> None:
        self._note(path, text, owner=self._account())

    def _note(self, path: Path, text: str, *, owner: account.Account | None) -> None:
        """Write a file that only its owner can read; None: that is us."""
        scratch = path.with_name(f"{path.name}.new")
        scratch.unlink(missing_ok=True)
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            if owner is not None:
                os.fchown(file.fileno(), owner.uid, owner.gid)
        scratch.replace(path)

    def _noted_port(self) -> int | None:
        try:
            found = _PORT_LINE.search(self.conf.read_text())
        except FileNotFoundError:
            return None
        return int(found[1]) if found else None

    def _make_folder(self) -> None:
        """Whatever the umask says: the server's user can pass, and only we write."""
        missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            path.chmod(0o755 if account.is_root() else 0o700)
        mode = self.folder.stat().st_mode
        if mode & 0o022:  # the password is in there
            self.folder.chmod(mode & 0o7755)

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        self._make_folder()
        # Whoever can open it can hold it.
        lock = os.open(self.folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.fchmod(lock, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
