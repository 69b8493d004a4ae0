"""Run two builds alternately on one machine, to make the pairs for ``jq-bench regress``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jobqueue.bench import records
from jobqueue.core.errors import Conflict, InvalidArgument, Unavailable

BASE, NEW = "base", "new"  # folders
_PROGRAM = "jobqueue.cli.bench"
_ENVIRONMENT = "environment.json"
_LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class Build:
    """Describes a version of this package: its Python and, for a checkout, its source folder."""

    python: str
    source: Path | None = None

    def command(self, profile: str, out: Path, seed: int) -> list[str]:
        """Return the command that runs each cell of a profile once."""
        once = ["--set", "repetitions=1", "--set", f"seed={seed}"]
        return [self.python, "-P", "-m", _PROGRAM, "run", profile, "--out", str(out), *once]

    def environment(self) -> dict[str, str]:
        """Return this program's environment, with the build's source before installed packages."""
        if self.source is None:
            return dict(os.environ)
        return {**os.environ, "PYTHONPATH": str(self.source)}


def build(field: str, path: Path) -> Build:
    """Return the build at ``path``: a checkout, a virtual environment or a Python executable.

    Raises InvalidArgument for ``field`` if ``path`` is none of the three.
    """
    if (path / "src" / "jobqueue").is_dir():
        own = path / ".venv" / "bin" / "python"
        chosen = str(own.absolute()) if own.exists() else sys.executable
        return Build(chosen, (path / "src").resolve())
    # A virtual environment is known by the path of its Python: links are not followed.
    for python in (path / "bin" / "python", path):
        if python.is_file() and os.access(python, os.X_OK):
            return Build(str(python.absolute()))
    raise InvalidArgument(
        field,
        f"{path} is neither a checkout (with src/jobqueue) nor a virtual environment (with"
        " bin/python) nor a Python executable",
    )


def run(
    base: Build, new: Build, profile: str, count: int, into: Path, ended: Callable[[], None]
) -> None:
    """Run ``count`` pairs of both builds. The build that runs first changes from pair to pair.

    ``ended`` is called after each run. Raises Unavailable when a run fails, because its partner
    cannot be compared without it.
    """
    for side in (BASE, NEW):
        if (into / side / records.FILE).exists():
            raise Conflict(
                f"--into: {into / side} has the records of an earlier run; choose another folder"
            )
    into.mkdir(parents=True, exist_ok=True)
    for repetition in range(1, count + 1):
        sides = [(BASE, base), (NEW, new)]
        for side, chosen in sides if repetition % 2 else reversed(sides):
            with tempfile.TemporaryDirectory(dir=into) as folder:
                out = Path(folder) / "run"
                _run_once(chosen, side, chosen.command(profile, out, repetition))
                for record in records.read([out]):
                    record.repetition = repetition
                    records.append(into / side, record)
                if (out / _ENVIRONMENT).exists() and not (into / side / _ENVIRONMENT).exists():
                    shutil.copy(out / _ENVIRONMENT, into / side)
            ended()


def _run_once(chosen: Build, side: str, command: list[str]) -> None:
    made = subprocess.run(
        command, env=chosen.environment(), capture_output=True, text=True, check=False
    )
    if made.returncode:
        last = "\n".join(made.stderr.splitlines()[-_LAST_LINES:])
        raise Unavailable(
            f"{side}: jq-bench of {chosen.python} ended with status {made.returncode}\n{last}"
        )
