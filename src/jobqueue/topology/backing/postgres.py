"""A private PostgreSQL."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import shutil
import signal
from pathlib import Path
from typing import ClassVar, Literal

from jobqueue.topology.backing.server import Ending, NotInstalled, PrivateServer

Mode = Literal["fast", "immediate"]

_HOMES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin")
_SOCKET_PATH_LIMIT = 107  # bytes, of the kernel's sockaddr_un
_USER = "postgres"
# One line: in single-user mode that is one statement.
_CLOSE_ROLES = (
    "SET search_path = pg_catalog\n"
    "DO $$ DECLARE role name; closed int := 0; BEGIN"
    f" FOR role IN SELECT rolname FROM pg_roles WHERE rolcanlogin AND rolname <> '{_USER}'"
    " LOOP EXECUTE format('ALTER ROLE %I NOLOGIN', role); closed := closed + 1; END LOOP;"
    " RAISE WARNING 'jobqueue: % roles were closed', closed; END $$\n"
)
_CLOSED = re.compile(r"jobqueue: (\d+) roles were closed")
_RULES = "local all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\n"


def find_postgres() -> Path | None:
    """The folder of the server's programs: the one in PATH, else the newest of the usual places."""
    if (program := shutil.which("postgres")) and _is_complete(
        found := Path(program).resolve().parent
    ):
        return found
    folders = (folder for home in _HOMES for folder in Path("/").glob(home.lstrip("/")))
    return max(filter(_is_complete, folders), key=_version, default=None)


def _is_complete(folder: Path) -> bool:
    return all(os.access(folder / program, os.X_OK) for program in ("postgres", "initdb"))


def _version(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(folder))]


class PrivatePostgres(PrivateServer):
    """Its superuser is its one user. Nobody outside this machine can connect.

    It is as durable as any PostgreSQL (fsync is on) unless `settings` say otherwise.
    """

    name = "PostgreSQL"
    users = ("postgres", "nobody")
    abrupt: ClassVar[Ending] = [(signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0)]
    orderly: ClassVar[Ending] = [(signal.SIGINT, 30.0), *abrupt]

    def dsn(self, database: str = "postgres") -> str:
        """With the password in it."""
        return f"postgresql://{_USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def stop(self, mode: Mode = "fast") -> None:
        """`fast` rolls back and writes a checkpoint; `immediate` leaves a recovery to the start."""
        self._end(self.orderly if mode == "fast" else self.abrupt)

    def restart(self, mode: Mode = "fast") -> None:
        """Stop it, and start it on the same port."""
        self.stop(mode)
        self._start_again()

    def _programs(self) -> Path:
        if (found := find_postgres()) is None:
            raise NotInstalled(
                "PostgreSQL is not installed: no folder with `postgres` and `initdb` is in PATH or "
                f"in {', '.join(_HOMES)} (Debian and Ubuntu: apt-get install postgresql)"
            )
        return found

    def _command(self) -> list[str]:
        return [
            str(self._programs() / "postgres"),
            *("-D", str(self.data)),
            *("-c", f"config_file={self.conf}"),
        ]

    def _configuration(self, port: int) -> str:
        socket = self.data / f".s.PGSQL.{port}.lock"
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": (
                str(self.data) if len(os.fsencode(socket)) <= _SOCKET_PATH_LIMIT else ""
            ),
            "hba_file": str(self._rules),
            "max_connections": "200",
            **self.settings,
        }
        lines = [f"{name} = {_quoted(value)}" for name, value in settings.items()]
        return "\n".join(["include 'data/postgresql.conf'", f"port = {port}", *lines, ""])

    @property
    def _rules(self) -> Path:
        return self.folder / "hba"

    def _environment(self) -> dict[str, str]:
        """Says that the old server, if there was one, is our parent.

        It takes a process that has the number in an old pid file for a running server, unless that
        is its parent or grandparent: so we say that it is.
        """
        told = super()._environment()
        if stale := self._noted_pid():
            told["PG_GRANDPARENT_PID"] = str(stale)
        return told

    def _fill(self) -> None:
        self._note_for_server(self._rules, _RULES)
        self._fill_by(
            [
                str(self._programs() / "initdb"),
                *("-D", "."),
                *("-U", _USER, "-A", "reject", "-E", "UTF8", "--locale=C"),
            ],
            filled=Path("PG_VERSION"),
        )

    def _apply_password(self, password: str) -> None:
        """In single-user mode, where nobody can connect: an earlier version's folder has none.

        Everybody could connect to that, so roles and settings that are in it may be anybody's.
        """
        kept = self._set_settings_aside()
        said = self._run_in(
            self.data,
            [
                *(str(self._programs() / "postgres"), "--single", "-D", str(self.data)),
                *("-c", "exit_on_error=on", "postgres"),
            ],
            "setting the password of",
            f"{_CLOSE_ROLES}ALTER ROLE {_USER} PASSWORD '{_verifier(password)}'\n".encode(),
        )
        changed = []
        if (found := _CLOSED.search(said)) and found[1] != "0":
            changed.append(f"roles besides {_USER} that cannot log in any more: {found[1]}")
        if kept:
            changed.append(f"settings of ALTER SYSTEM are in {kept} now and do not count")
        if changed:
            self.remark = (
                f"an earlier version let every user of this machine into {self.data};"
                f" {'; '.join(changed)}; if you do not trust them all, take another folder: they"
                " could leave more there"
            )

    def _set_settings_aside(self) -> Path | None:
        """Where the settings of ALTER SYSTEM are kept now; None if there were none.

        They count for more than ours: one of them could name rules that let everybody in.
        """
        settings = self.data / "postgresql.auto.conf"
        try:
            number = os.open(settings, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError:
            lines = ["unreadable"]
        else:
            with open(number, errors="replace") as file:
                lines = [line for line in file.read().splitlines() if line.strip()]
        if all(line.lstrip().startswith("#") for line in lines):
            return None
        kept = settings.with_name(f"{settings.name}.earlier")
        settings.replace(kept)
        return kept

    def _passes_soon(self, said: str) -> bool:
        """After its postmaster was killed, the other processes need a moment to notice."""
        return "shared memory block" in said and "still in use" in said

    def _noted(self) -> list[str]:
        """The lines of its pid file: pid, folder, start, port, socket, address, memory, state."""
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _noted_pid(self) -> int | None:
        noted = self._noted()
        return int(noted[0]) if noted and noted[0].strip().isdigit() else None

    def _answers(self, port: int) -> bool:
        noted = self._noted()
        return len(noted) > 7 and noted[3] == str(port) and noted[7].strip() == "ready"


def _verifier(password: str) -> str:
    """What PostgreSQL keeps in place of a password (RFC 5803).

    One iteration: more of them slow down guessing, and nobody guesses 192 random bits, but every
    connection would pay for them.
    """
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    coded = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return "SCRAM-SHA-256$1:{}${}:{}".format(*coded)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
