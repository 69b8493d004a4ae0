"""`jq-ctl up` under test: its own state folders, its lines, and an end that leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobqueue.cli import fleet
from jobqueue.fleet import state
from jobqueue.fleet.processes import began
from tests import patience, warm
from tests.cli import processes
from tests.programs import Program

PATIENCE = 60.0


def wait(done: Callable[[], Any], what: str, timeout: float = PATIENCE) -> Any:
    """Until something is so. For other processes' doings, which send us no signal."""
    return patience.until(done, what, timeout)


def gone(pid: int) -> bool:
    return began(pid) is None


class Home:
    """A folder that services may enter, with everything that `up` leaves anywhere."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = folder / "fleet"
        self.environ = {
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
        }

    def ctl(self, *args: str, timeout: float = 120.0, **extra: str):
        """Run a jq-ctl command to its end."""
        return processes.run(
            "ctl", *args, cwd=self.folder, timeout=timeout, **(self.environ | extra)
        )

    def json(self, *args: str, **extra: str) -> Any:
        """The document that a command prints."""
        answer = self.ctl(*args, "-o", "json", timeout=120.0, **extra)
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    def up(self, topology: str, *args: str, **extra: str) -> Any:
        """Bring it up in the background; returns the document."""
        return self.json("up", topology, "--detach", "--folder", str(self.fleet), *args, **extra)

    def ps(self) -> Any:
        """The one topology that is up."""
        (one,) = self.json("ps")["topologies"]
        return one

    def process(self, name: str) -> dict[str, Any]:
        """One of its processes, as the supervisor last wrote: at each change, at once."""
        rows = fleet.state_document(state.read(self.fleet))["processes"]
        return next(row for row in rows if row["name"] == name)


@contextmanager
def home() -> Iterator[Home]:
    """pytest's own folders are closed to other users, and servers do not run as root."""
    made = Home(Path(tempfile.mkdtemp(prefix="jq-up-")))
    made.folder.chmod(0o711)
    try:
        yield made
    finally:
        made.ctl("down", "--all", "--within", "5")
        shutil.rmtree(made.folder)


class Foreground(Program):
    """`jq-ctl up` in the foreground of no terminal. Its lines are collected as they come."""

    def __init__(
        self, where: Home, topology: str, *args: str, program: str | None = None, **extra: str
    ) -> None:
        start = ["-m", "jobqueue.cli.ctl"] if program is None else [program]
        self.lines: list[str] = []
        super().__init__(
            [sys.executable, *start, "up", topology, "--folder", str(where.fleet), *args],
            where.folder,
            processes.environment(**where.environ, **extra),
        )

    def popen(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Any:
        return warm.popen(
            command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def take(self, line: str) -> None:
        self.lines.append(line.rstrip("\n"))

    def line(self, part: str, after: int = 0) -> int:
        """Wait for a line with these words; returns its number."""

        def found() -> int | None:
            lines = enumerate(self.lines)
            return next((n for n, line in lines if n >= after and part in line), None)

        return self.wait_until(found, f"a line with {part!r}", PATIENCE)


def children(pid: int) -> set[int]:
    """The processes that a process has started."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.add(int(name))
    return found
