"""Run a private PostgreSQL server."""

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
from typing import ClassVar

from jobqueue.fleet.backing.server import Ending, NotInstalled, PrivateServer

_HOMES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin")
_SOCKET_PATH_LIMIT = 107  # bytes in the kernel's sockaddr_un
_USER = "postgres"
# Each statement is one line: single-user mode ends a statement at the end of the line.
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
    """Return the folder of PostgreSQL's programs, or None if PostgreSQL is not installed.

    The programs are searched in PATH first. If they are not in PATH, the newest version in the
    folders where packages install PostgreSQL is chosen.
    """
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
    """Runs a private PostgreSQL server, to which only programs on this machine can connect.

    The server's only user is the superuser. Writes are durable (``fsync`` is on) unless
    ``settings`` turn that off.
    """

    name = "PostgreSQL"
    users = ("postgres", "nobody")
    pid_file = "postmaster.pid"  # pid, folder, start, port, socket, address, memory, state
    abrupt: ClassVar[Ending] = [(signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0)]
    orderly: ClassVar[Ending] = [(signal.SIGINT, 30.0), *abrupt]

    def dsn(self, database: str = "postgres") -> str:
        """Return the URL of a database, with the user and the password."""
        return f"postgresql://{_USER}:{self.password}@127.0.0.1:{self.port}/{database}"

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
        environment = super()._environment()
        # PostgreSQL refuses to start while any process has the pid in an old pid file, except its
        # parent and grandparent. The lock of the folder guarantees that no other server runs there.
        if stale := self._noted_pid():
            environment["PG_GRANDPARENT_PID"] = str(stale)
        return environment

    def _fill(self) -> None:
        self._write(self._rules, _RULES)
        self._fill_by(
            [
                str(self._programs() / "initdb"),
                *("-D", "."),
                *("-U", _USER, "-A", "reject", "-E", "UTF8", "--locale=C"),
            ],
            filled="PG_VERSION",
        )

    def _apply_password(self, password: str) -> None:
        """Set the superuser's password in single-user mode, which accepts no connections.

        An earlier version set no password, so that every user of the machine could change the
        server. Therefore also forbid other roles to log in, and move the settings that ALTER SYSTEM
        wrote to another file.
        """
        kept = self._set_settings_aside()
        output = self._run_in(
            self.data,
            [
                *(str(self._programs() / "postgres"), "--single", "-D", str(self.data)),
                *("-c", "exit_on_error=on", "postgres"),
            ],
            "setting the password of",
            f"{_CLOSE_ROLES}ALTER ROLE {_USER} PASSWORD '{_verifier(password)}'\n".encode(),
        )
        changed = []
        if (found := _CLOSED.search(output)) and found[1] != "0":
            changed.append(f"roles besides {_USER} that cannot log in any more: {found[1]}")
        if kept:
            changed.append(f"settings of ALTER SYSTEM were moved to {kept} and have no effect")
        if changed:
            self.remark = (
                f"an earlier version let every user of this machine connect to the server in"
                f" {self.data}; {'; '.join(changed)}; if you do not trust all these users, choose"
                " another folder: they may have changed more"
            )

    def _set_settings_aside(self) -> Path | None:
        """Move the settings that ALTER SYSTEM wrote to another file, and return the file's path.

        Return None if there are no such settings. They override `conf`: for example, they could
        name access rules that let everybody connect.
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

    def _answers(self, port: int) -> bool:
        noted = self._noted()
        return len(noted) > 7 and noted[3] == str(port) and noted[7].strip() == "ready"


def _verifier(password: str) -> str:
    """Return the verifier that PostgreSQL stores instead of the password (RFC 5803)."""
    # One iteration is enough. More iterations make guessing slower, but nobody can guess 192 random
    # bits, and every connection would take longer.
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    coded = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return "SCRAM-SHA-256$1:{}${}:{}".format(*coded)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
