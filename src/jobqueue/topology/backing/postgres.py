"""A private PostgreSQL."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path
from typing import ClassVar, Literal

from jobqueue.topology.backing.server import Ending, NotInstalled, PrivateServer

Mode = Literal["fast", "immediate"]

_HOMES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin")
_SOCKET_PATH_LIMIT = 107  # bytes, of the kernel's sockaddr_un


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
    """Everybody on this machine may connect as its superuser; nobody else can.

    It is as durable as any PostgreSQL (fsync is on) unless `settings` say otherwise.
    """

    name = "PostgreSQL"
    users = ("postgres", "nobody")
    abrupt: ClassVar[Ending] = [(signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0)]
    orderly: ClassVar[Ending] = [(signal.SIGINT, 30.0), *abrupt]

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

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
            "max_connections": "200",
            **self.settings,
        }
        lines = [f"{name} = {_quoted(value)}" for name, value in settings.items()]
        return "\n".join(["include 'data/postgresql.conf'", f"port = {port}", *lines, ""])

    def _environment(self) -> dict[str, str]:
        """Without what would point PostgreSQL's programs at somebody else's server or folder.

        It takes a process that has the number in an old pid file for a running server, unless that
        is its parent or grandparent: so we say that it is.
        """
        kept = {k: v for k, v in super()._environment().items() if not k.startswith("PG")}
        if stale := self._noted_pid():
            kept["PG_GRANDPARENT_PID"] = str(stale)
        return kept

    def _fill(self) -> None:
        self._fill_by(
            [
                str(self._programs() / "initdb"),
                *("-D", "."),
                *("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"),
            ],
            filled=Path("PG_VERSION"),
        )

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


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
