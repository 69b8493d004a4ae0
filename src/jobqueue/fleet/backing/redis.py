"""Run a private Redis server."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import ClassVar

from jobqueue.fleet.backing.server import KILL, Ending, NotInstalled, PrivateServer

_NAMES = ("redis-server", "valkey-server")  # Valkey is a fork of Redis with the same protocol
_PLACES = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin")


def find_redis() -> Path | None:
    """Return the path of the server's program, or None if Redis is not installed.

    The program is searched in PATH first, and then in the folders where packages install programs.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_PLACES])
    found = next(filter(None, (shutil.which(name, path=path) for name in _NAMES)), None)
    return Path(found) if found else None


class PrivateRedis(PrivateServer):
    """Runs a private Redis server, to which only programs on this machine can connect.

    Redis writes no data to the disk unless ``settings`` turn that on.
    """

    name = "Redis"
    users = ("redis", "nobody")
    pid_file = "redis.pid"
    orderly: ClassVar[Ending] = [(signal.SIGTERM, 10.0), *KILL]
    abrupt: ClassVar[Ending] = KILL

    @property
    def url(self) -> str:
        """Return the server's URL, with the password."""
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
            "pidfile": _quoted(str(self.data / self.pid_file)),
            "save": '""',
            "appendonly": "no",
            **self.settings,
        }
        lines = [f"{name} {value}" for name, value in settings.items()]
        return "\n".join([f"port {port}", *lines, ""])

    def _answers(self, port: int) -> bool:
        return "Ready to accept connections" in self._output()


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
