"""A private Prometheus, for tests of dashboards and alerts."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
from pathlib import Path
from typing import ClassVar

from jobqueue.fleet.backing.server import KILL, Ending, NotInstalled, PrivateServer

# It writes no pid file, and its port is a flag: the shell reads it from `conf` at each start.
_START = """\
echo $$ > prometheus.pid
exec "$@" --web.listen-address="127.0.0.1:$(sed -n 's/^port = //p' ../conf)"
"""
_EMPTY = "scrape_configs: []\n"


def find_prometheus() -> Path | None:
    """The folder of `prometheus` and `promtool`."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/bin", "/usr/local/bin"])
    found = [shutil.which(name, path=path) for name in ("prometheus", "promtool")]
    return Path(found[0]).parent if found[0] and found[1] else None


class PrivatePrometheus(PrivateServer):
    """`settings` are files by their names: `prometheus.yaml`, and what that names.

    Everybody on this machine can ask it. Tests keep nothing of worth there.
    """

    name = "Prometheus"
    users = ("prometheus", "nobody")
    pid_file = "prometheus.pid"
    orderly: ClassVar[Ending] = [(signal.SIGTERM, 10.0), *KILL]
    abrupt: ClassVar[Ending] = KILL

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        if (programs := find_prometheus()) is None:
            raise NotInstalled(
                "Prometheus is not installed: `prometheus` and `promtool` are not in PATH "
                "(Debian and Ubuntu: apt-get install prometheus)"
            )
        return [
            *("/bin/sh", "-ec", _START, "sh", str(programs / "prometheus")),
            "--config.file=../prometheus.yaml",
            "--storage.tsdb.path=series",
        ]

    def _configuration(self, port: int) -> str:
        return f"port = {port}\n"

    def _takes_password(self) -> bool:
        return False

    def _fill(self) -> None:
        for name, text in {"prometheus.yaml": _EMPTY, **self.settings}.items():
            self._write(self.folder / name, text)

    def _answers(self, port: int) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        try:
            connection.request("GET", "/-/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
