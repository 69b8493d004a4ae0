"""A process's log file: begun anew by each ``up``, its last line for the table."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import BinaryIO

from jobqueue.redaction import redact

_TAIL = 8 * 1024
# When PostgreSQL and Redis said it, and which of their processes.
_STAMP = re.compile(r"\d{4}-\d\d-\d\d [\d:.]+ \S+ \[\d+\] |\d+:\w \d+ \w+ \d{4} [\d:.]+ [-.*#] ")


def begin(path: Path) -> None:
    """Put the log of the last time aside."""
    if path.exists() and path.stat().st_size:
        path.replace(path.with_name(path.name + ".1"))


def append_to(path: Path) -> BinaryIO:
    """The file to give to a process; for its owner's eyes only."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


class Tail:
    """The last line, read again only when the file has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._line = ""

    def line(self) -> str:
        """What was said last."""
        try:
            stat = self._path.stat()
        except OSError:
            return self._line
        if (now := (stat.st_mtime_ns, stat.st_size)) != self._seen:
            self._seen = now
            self._line = _last(self._path, stat.st_size)
        return self._line


def _last(path: Path, size: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, size - _TAIL))
            lines = file.read(_TAIL).decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return redact(_message(lines[-1])) if lines else ""


def _message(line: str) -> str:
    """The words of a JSON line; another line as it is."""
    try:
        entry = json.loads(line)
        said = str(entry["message"])
        if error := entry.get("exception"):
            said += f" ({error['type']}: {error['message']})"
        level = entry.get("level", "INFO")
        return said if level in ("INFO", "DEBUG") else f"{level}: {said}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return _STAMP.sub("", line.strip(), count=1)
