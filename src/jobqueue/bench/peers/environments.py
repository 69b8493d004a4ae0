"""Create a virtual environment for each peer once, outside of any checkout."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from jobqueue.core.errors import Unavailable

_COMPLETE = "complete"  # written last: an interrupted installation is made anew
_PATIENCE = 300.0  # seconds, for a download
_UNREACHED = "Retrying (Retry("  # pip's warning; its last line names only the missing package


class CannotInstall(Unavailable):
    """Raised when a peer's packages cannot be installed."""


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that keeps the peers' environments."""
    home = environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "jobqueue" / "peers"


class Environments:
    """Creates and finds the virtual environments of peers in one folder."""

    def __init__(self, folder: Path, *, install: bool = True) -> None:
        self._folder = folder
        self._install = install

    def python(self, pins: Path) -> Path:
        """Return the interpreter of an environment with exactly the packages in ``pins``.

        A missing environment is created first. Raises CannotInstall.
        """
        folder = self._place(pins)
        python = folder / "bin" / "python"
        complete = folder / _COMPLETE
        if complete.exists():
            return python
        if not self._install:
            raise CannotInstall(
                f"{pins.stem} is not in {self._folder}; omit --no-install to download it"
            )
        with self._one_at_a_time():
            if not complete.exists():
                shutil.rmtree(folder, ignore_errors=True)
                _run([sys.executable, "-P", "-m", "venv", str(folder)], pins.stem)
                install = [str(python), "-P", "-m", "pip", "install", "--quiet", "--no-input"]
                install += ["--disable-pip-version-check", "--require-hashes", "-r", str(pins)]
                _run(install, pins.stem)
                complete.touch()
        return python

    def has(self, pins: Path) -> bool:
        """Return True if the environment for ``pins`` is completely installed."""
        return (self._place(pins) / _COMPLETE).exists()

    def _place(self, pins: Path) -> Path:
        return self._folder / f"{pins.stem}-{_stamp(pins)}"

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _stamp(pins: Path) -> str:
    """Return a text that identifies the packages in ``pins`` and this Python version."""
    major, minor = sys.version_info[:2]
    return f"py{major}.{minor}-{hashlib.sha256(pins.read_bytes()).hexdigest()[:12]}"


def _run(command: list[str], name: str) -> None:
    try:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
            timeout=_PATIENCE,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        )
    except subprocess.CalledProcessError as error:
        lines = error.stdout.decode(errors="replace").strip().splitlines()
        if any(_UNREACHED in line for line in lines):
            raise CannotInstall(
                f"cannot install {name}: pip cannot reach its index of packages; configure"
                " another index for pip, or skip missing systems with --no-install"
            ) from None
        why = next((line for line in reversed(lines) if "error" in line.lower()), "")
        why = why or (lines[-1] if lines else f"status {error.returncode}")
        raise CannotInstall(f"cannot install {name}: {why}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(f"cannot install {name}: {error}") from None
