"""A private container engine (dockerd): for tests that run the images and compose files.

It needs root, and shares nothing with an engine of the system: images, sockets and networks are its
own, in one folder, and end with it. Only the standard library is imported.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import ClassVar

from jobqueue.fleet.backing.server import KILL, Ending, NotInstalled, PrivateServer

PROGRAMS = ("dockerd", "docker", "docker-compose", "debootstrap")
_PLACES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/bin")


def find_program(name: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_PLACES])
    return shutil.which(name, path=path)


def find_engine() -> Path | None:
    """The daemon's program. None also where a program beside it is missing, or we are not root."""
    found = [find_program(name) for name in PROGRAMS]
    if os.geteuid() != 0 or not all(found):
        return None
    return Path(found[0] or "")


class PrivateEngine(PrivateServer):
    """Listens on a socket in its folder, and nowhere else."""

    name = "dockerd"
    users = ()
    pid_file = "../d.pid"
    # Never killed first: its containers, and the daemon that runs them, would go on without it.
    orderly: ClassVar[Ending] = [(signal.SIGTERM, 120.0), *KILL]
    abrupt: ClassVar[Ending] = orderly

    @property
    def host(self) -> str:
        """As DOCKER_HOST names it."""
        return f"unix://{self._socket}"

    @property
    def _socket(self) -> Path:
        return self.folder / "d.sock"  # the path of a socket has at most 107 characters

    def remove(self) -> None:
        if self.folder.is_dir():
            self._end(self.abrupt)
            self._unmount()
            shutil.rmtree(self.folder)

    def _unmount(self) -> None:
        """What a container that ended badly left mounted would keep its folder from going."""
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            where = line.split()[1]
            if Path(where).is_relative_to(self.folder):
                subprocess.run(["umount", "--lazy", where], check=False)

    def _command(self) -> list[str]:
        if (program := find_engine()) is None:
            raise NotInstalled(f"it takes root and the programs {', '.join(PROGRAMS)}")
        return [
            str(program),
            *("--host", self.host, "--pidfile", str(self.folder / "d.pid")),
            *("--data-root", str(self.data), "--exec-root", str(self.folder / "exec")),
            *("--bridge", "none", "--log-level", "warn"),  # networks are those of compose
        ]

    def _configuration(self, port: int) -> str:
        return f"port {port}\n"

    def _choose_port(self, *, keep: bool) -> int:
        return 0

    def _account(self) -> None:
        """Itself: it makes namespaces, mounts and networks."""
        return None

    def _takes_password(self) -> bool:
        return False

    def _answers(self, port: int) -> bool:
        command = ["docker", "--host", self.host, "version", "--format", "{{.Server.Version}}"]
        done = subprocess.run(command, capture_output=True, check=False)
        return done.returncode == 0
