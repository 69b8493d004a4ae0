"""Finds Java."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

OLDEST = 17  # that Kafka's brokers run on

_PLACES = "usr/lib/jvm/*/bin"
_VERSION = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)


def find_java() -> Path | None:
    """The program: that of JAVA_HOME, the one in PATH, else the newest of the usual place."""
    new_enough = (java for java in _candidates() if (version(java) or 0) >= OLDEST)
    return next(new_enough, None)


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin/java")
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/bin", "/usr/local/bin"])
    if found := shutil.which("java", path=path):
        yield Path(found)
    usual = [folder / "java" for folder in Path("/").glob(_PLACES)]
    yield from sorted(usual, key=lambda java: version(java) or 0, reverse=True)


def version(java: Path) -> int | None:
    """As its own folder tells: to run it for this would take a noticeable time."""
    try:
        told = (java.resolve().parents[1] / "release").read_text(errors="replace")
    except OSError:
        return None
    found = _VERSION.search(told)
    return int(found[1]) if found else None
