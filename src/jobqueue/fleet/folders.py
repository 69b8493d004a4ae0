"""The folder of a topology: its lock, its owner and its logs, and the link that `ps` finds it by.

Only the standard library is imported: `scripts/services` runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from jobqueue.core.errors import Conflict, Unavailable
from jobqueue.redaction import redact

_OWN = "jobqueue"
STATE = "state.json"
LOCK = "lock"
LOGS = "logs"

_TAIL = 8 * 1024
# The time and the process at the beginning of the lines of PostgreSQL and Redis.
_STAMP = re.compile(r"\d{4}-\d\d-\d\d [\d:.]+ \S+ \[\d+\] |\d+:\w \d+ \w+ \d{4} [\d:.]+ [-.*#] ")


# Where folders are, and how running topologies are found.


def default_folder(environ: Mapping[str, str], topology: str) -> Path:
    """Return the folder of a topology that was started without --folder."""
    return _state_home(environ) / _OWN / topology


def _state_home(environ: Mapping[str, str]) -> Path:
    if given := environ.get("XDG_STATE_HOME"):
        return Path(given)
    # Services do not run as root, and other users may not enter root's home.
    return Path("/var/lib") if os.geteuid() == 0 else Path.home() / ".local" / "state"


def _links(environ: Mapping[str, str]) -> Path:
    """Return the folder with a link to the folder of every topology that is up."""
    if given := environ.get("XDG_RUNTIME_DIR"):
        return Path(given) / _OWN
    if "XDG_STATE_HOME" not in environ and os.geteuid() == 0:
        return Path("/run") / _OWN
    return _state_home(environ) / _OWN / "run"


def _link(environ: Mapping[str, str], folder: Path) -> Path:
    return _links(environ) / hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def known(environ: Mapping[str, str]) -> list[Path]:
    """Return the folders of the topologies that were started here and not yet taken down."""
    try:
        links = sorted(_links(environ).iterdir())
    except OSError:
        return []
    return [link.readlink() for link in links if (link / STATE).exists()]


def remember(environ: Mapping[str, str], folder: Path) -> None:
    """Let `ps` and `down` find the folder by itself. If that fails, --folder still names it."""
    link = _link(environ, folder)
    with contextlib.suppress(OSError):
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(folder)


def forget(environ: Mapping[str, str], folder: Path) -> None:
    """Remove the traces of a topology that is down."""
    with contextlib.suppress(OSError):
        _link(environ, folder).unlink(missing_ok=True)
        (folder / STATE).unlink(missing_ok=True)


# The right to a folder.


class FolderLock:
    """The right to run a topology in a folder. One process holds it, until it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            make_folder(folder, 0o711)  # services may run as another user, who only passes
            _close_empty(folder)
            check_owner(folder, folder.stat())
            (folder / LOGS).mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Unavailable(f"cannot use the folder {folder}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise Conflict(
                f"a topology is up in {folder} already; see `jq-ctl ps`, stop it with"
                f" `jq-ctl down --folder {folder}`, or choose another --folder"
            ) from None

    def release(self) -> None:
        """Give the right back. May be called twice."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def check_owner(path: Path, found: os.stat_result) -> None:
    """Refuse a folder or file of another user: its owner chooses passwords and names processes."""
    if found.st_uid not in (0, os.geteuid()):
        raise Unavailable(
            f"cannot use {path}: another user owns it (uid {found.st_uid});"
            " choose another --folder, or run jq-ctl as that user"
        )
    if found.st_mode & 0o022:
        raise Unavailable(
            f"cannot use {path}: its group or others may write there; choose another --folder,"
            f" or `chmod go-w {path}` if you trust what is in it"
        )


def _close_empty(folder: Path) -> None:
    """Take the group's right to write from an empty folder, as mkdir with umask 002 makes it."""
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o022 == 0o020:
        folder.chmod(found.st_mode & 0o7755)  # before the look: nothing can appear after it
        if any(folder.iterdir()):
            folder.chmod(found.st_mode & 0o7777)


def remove(folder: Path) -> bool:
    """Delete a topology's folder with data and logs; return False if it does not look like one."""
    if not (folder / LOGS).is_dir() or not (folder / LOCK).is_file():
        return False
    claim = FolderLock(folder)  # refuses while a topology starts there
    try:
        shutil.rmtree(folder)
    finally:
        claim.release()
    return True


# What is in a folder.


def make_folder(folder: Path, mode: int) -> None:
    """Make the folder and those above it that are missing, with this mode whatever the umask."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        path.chmod(mode)


def write_private(path: Path, text: str, owner: tuple[int, int] | None = None) -> None:
    """Replace a file by one that only its owner can read: this user, or a uid and gid."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        if owner is not None:
            os.fchown(file.fileno(), *owner)
    scratch.replace(path)


def begin_log(path: Path) -> None:
    """Put the log of the last `up` aside."""
    if path.exists() and path.stat().st_size:
        path.replace(path.with_name(f"{path.name}.1"))


def open_log(path: Path) -> BinaryIO:
    """Open a log for a process to append to; only its owner can read it."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def last_line(path: Path | None) -> str:
    """Return the last message of a log, without secrets."""
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            lines = file.read(_TAIL).decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return redact(_message(lines[-1])) if lines else ""


def _message(line: str) -> str:
    """Return the message of a JSON line; another line without its time."""
    try:
        entry = json.loads(line)
        message = str(entry["message"])
        if error := entry.get("exception"):
            message += f" ({error['type']}: {error['message']})"
        level = entry.get("level", "INFO")
        return message if level in ("INFO", "DEBUG") else f"{level}: {message}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return _STAMP.sub("", line.strip(), count=1)
