"""Build hook: leaves the commit in the package, for ``--version``, where there is no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "_commit.txt"


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds ``jobqueue/_commit.txt``, outside the checkout: there it would soon be wrong."""

    _scratch: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # the program asks the checkout
        root = Path(self.root)
        if (root / "src/jobqueue" / NAME).exists():
            return  # this is an unpacked sdist, which brings the commit along
        commit = os.environ.get("JQ_COMMIT", "").strip() or _commit_of(root)
        if not commit:
            return
        self._scratch = Path(tempfile.mkdtemp())
        made = self._scratch / NAME
        made.write_text(f"{commit}\n")
        folder = "jobqueue" if self.target_name == "wheel" else "src/jobqueue"
        build_data["force_include"][str(made)] = f"{folder}/{NAME}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch)


def _commit_of(root: Path) -> str:
    """The commit of the checkout; nothing where git or the checkout is missing."""
    if not (root / ".git").exists():
        return ""  # a checkout that the folder merely lies in is another project's
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
