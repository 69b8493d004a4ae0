"""Find the version and the commit of this installation, which ``--version`` prints."""

from __future__ import annotations

import os
import subprocess
from importlib import resources
from pathlib import Path

from jobqueue._version import __version__

UNKNOWN = "unknown"
_SHORT = 7


def commit() -> str:
    """Return the short commit hash of this installation, or "unknown".

    The hash comes from the variable JQ_COMMIT, else from the file that a build writes into the
    package, else from the git checkout.
    """
    if given := os.environ.get("JQ_COMMIT", "").strip():
        return given[:_SHORT]
    built = resources.files("jobqueue").joinpath("_commit.txt")
    if built.is_file():
        return built.read_text().strip()[:_SHORT] or UNKNOWN
    return _commit_of_checkout()


def _commit_of_checkout() -> str:
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists() or not (root / "src" / "jobqueue").is_dir():
        return UNKNOWN
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short=7", "HEAD"],
            capture_output=True,
            text=True,
            timeout=2,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return answer.stdout.strip() or UNKNOWN


def full_version() -> str:
    """Return the version with the commit, if that is known, like ``0.1.0+abc1234``."""
    found = commit()
    return __version__ if found == UNKNOWN else f"{__version__}+{found}"


def version_text() -> str:
    """Return the text of ``--version``, like ``jobqueue 0.1.0 (commit abc1234)``."""
    return f"jobqueue {__version__} (commit {commit()})"
