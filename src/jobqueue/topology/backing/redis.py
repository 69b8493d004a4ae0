"""A private Redis."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path
from typing import ClassVar

from jobqueue.topology.backing.server import KILL, Ending, NotInstalled, PrivateServer

_NAMES = ("redis-server", "valkey-server")  # the second is a fork that speaks the same
_PLACES = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin")


def find_redis() -> Path | None:
    """The server's program: the one in PATH, else in the usual places."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_PLACES])
    found = next(filter(None, (shutil.which(name, path=path) for name in _NAMES)), None)
    return Path(found) if found else None


class PrivateRedis(PrivateServer):
    """Keeps nothing on disk unless `settings` say so. Nobody outside this machine can connect."""

    name = "Redis"
    users = ("redis", "nobody")
    orderly: ClassVar[Ending] = [(signal.SIGTERM, 10.0), *KILL]
    abrupt: ClassVar[Ending] = KILL

    @property
    def url(self) -> str:
        """With the password in it."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def _command(self) -> list[str]:
        if (program := find_redis()) is None:
            raise NotInstalled(
                f"Redis is not installed: neither {' nor '.join(_NAMES)} is in PATH or in "
                f"{', '.join(_PLACES)} (Debian and Ubuntu: apt-get install redis-server)"
            )
        return [str(program), str(self.conf)]

    def _configuration(self, port: int) -> str:
        settings = {
            "bind": "127.0.0.1",
            "protected-mode": "yes",
            "requirepass": _quoted(self.password),
            "daemonize": "no",
            "dir": _quoted(str(self.data)),
            "pidfile": _quoted(str(self._pid_file)),
            "save": '""',
            "appendonly": "no",
            **self.settings,
        }
        lines = [f"{name} {value}" for name, value in settings.items()]
        return "\n".join([f"port {port}", *lines, ""])

    @property
    def _pid_file(self) -> Path:
        return self.data / "redis.pid"

    def _noted_pid(self) -> int | None:
        try:
            noted = self._pid_file.read_text().strip()
        except FileNotFoundError:
            return None
        return int(noted) if noted.isdigit() else None

    def _answers(self, port: int) -> bool:
        if not self._listens_on(port):
            return False
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                with connection.makefile("rb") as answers:
                    return [next(answers, b""), next(answers, b"")] == [b"+OK\r\n", b"+PONG\r\n"]
        except OSError:
            return False


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
