"""Chromium, for tests of the console's pages. Tests start it themselves (Playwright)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def find_chromium() -> Path | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/bin", "/usr/local/bin"])
    found = shutil.which("chromium", path=path)
    return Path(found) if found else None


class NoServer:
    """A service without a server: there is nothing to start, find or remove."""

    pid = 0

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        """Take the arguments of a server."""

    def alive(self) -> bool:
        return False

    def remove(self) -> None:
        """There is nothing to remove."""
