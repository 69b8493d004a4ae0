"""Manage the folder of a topology: its lock, owner and logs, and the link by which `ps` finds it.

The module needs no installed package: `scripts/services` runs before anything is installed.
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
# The time and the process id with which log lines of PostgreSQL and Redis begin.
_STAMP = re.compile(r"\d{4}-\d\d-\d\d [\d:.]+ \S+ \[\d+\] |\d+:\w \d+ \w+ \d{4} [\d:.]+ [-.*#] ")


# Where folders are, and how running topologies are found.


def default_folder(environ: Mapping[str, str], topology: str) -> Path:
    """Return the folder of a topology that is started without --folder."""
    return _state_home(environ) / _OWN / topology


def _state_home(environ: Mapping[str, str]) -> Path:
    if given := environ.get("XDG_STATE_HOME"):
        return Path(given)
    # Private servers do not run as root, and other users may not enter root's home directory.
    return Path("/var/lib") if os.geteuid() == 0 else Path.home() / ".local" / "state"


def _links(environ: Mapping[str, str]) -> Path:
    """Return the folder that contains a link to the folder of every running topology."""
    if given := environ.get("XDG_RUNTIME_DIR"):
        return Path(given) / _OWN
    if "XDG_STATE_HOME" not in environ and os.geteuid() == 0:
        return Path("/run") / _OWN
    return _state_home(environ) / _OWN / "run"


def _link(environ: Mapping[str, str], folder: Path) -> Path:
    return _links(environ) / hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def known(environ: Mapping[str, str]) -> list[Path]:
    """Return the folders of this user's topologies that were started and not yet taken down."""
    try:
        links = sorted(_links(environ).iterdir())
    except OSError:
        return []
    return [link.readlink() for link in links if (link / STATE).exists()]


def remember(environ: Mapping[str, str], folder: Path) -> None:
    """Create the link by which `ps` and `down` find the folder without --folder.

    If the link cannot be created, the user has to name the folder with --folder.
    """
    link = _link(environ, folder)
    with contextlib.suppress(OSError):
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(folder)


def forget(environ: Mapping[str, str], folder: Path) -> None:
    """Remove the link to the folder of a stopped topology, and its state file."""
    with contextlib.suppress(OSError):
        _link(environ, folder).unlink(missing_ok=True)
        (folder / STATE).unlink(missing_ok=True)


# The lock of a folder.


class FolderLock:
    """Locks a folder, so that only this process can run a topology there.

    The constructor raises Conflict if another process has the lock, and Unavailable if the folder
    cannot be used. The lock is released when the process ends.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            make_folder(folder, 0o711)  # a service that runs as another user may only pass through
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
                f"a topology runs in {folder} already; see `jq-ctl ps`, stop it with"
                f" `jq-ctl down --folder {folder}`, or choose another --folder"
            ) from None

    def release(self) -> None:
        """Release the lock. May be called twice."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def check_owner(path: Path, found: os.stat_result) -> None:
    """Raise Unavailable if another user owns the folder or file, or may write to it.

    That user could choose the passwords of the servers, and the processes that `down` ends.
    """
    if found.st_uid not in (0, os.geteuid()):
        raise Unavailable(
            f"cannot use {path}: another user owns it (uid {found.st_uid});"
            " choose another --folder, or run jq-ctl as that user"
        )
    if found.st_mode & 0o022:
        raise Unavailable(
            f"cannot use {path}: its group or other users may write there; choose another"
            f" --folder, or run `chmod go-w {path}` if you trust its contents"
        )


def _close_empty(folder: Path) -> None:
    """Remove the group's write permission from an empty folder of this user.

    With umask 002, mkdir gives the group this permission.
    """
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o022 == 0o020:
        folder.chmod(found.st_mode & 0o7755)  # before the check: no file can appear after the check
        if any(folder.iterdir()):
            folder.chmod(found.st_mode & 0o7777)


def remove(folder: Path) -> bool:
    """Delete a topology's folder with its data and logs.

    Return False, and delete nothing, if the folder does not look like a topology's folder. Raise
    Conflict if a topology runs or starts there.
    """
    if not (folder / LOGS).is_dir() or not (folder / LOCK).is_file():
        return False
    claim = FolderLock(folder)  # raises Conflict while a topology starts there
    try:
        shutil.rmtree(folder)
    finally:
        claim.release()
    return True


# The contents of a folder.


def make_folder(folder: Path, mode: int) -> None:
    """Create the folder and its missing parents with the given mode, independent of the umask."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        # What somebody else has made here meanwhile, such as a link, is left as it is.
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            path.chmod(mode)


def write_private(path: Path, text: str, owner: tuple[int, int] | None = None) -> None:
    """Replace a file by a new file with the given text that only the file's owner can read.

    ``owner`` is a uid and a gid; None means this user.
    """
    scratch = path.with_name(f"{path.name}.new")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        if owner is not None:
            os.fchown(file.fileno(), *owner)
    scratch.replace(path)


def begin_log(path: Path) -> None:
    """Rename the log of the last `up` to ``NAME.1``, so that a new log begins empty."""
    if path.exists() and path.stat().st_size:
        path.replace(path.with_name(f"{path.name}.1"))


def open_log(path: Path) -> BinaryIO:
    """Open a process's log for appending. Only the file's owner can read the log."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def last_line(path: Path | None) -> str:
    """Return the last message of a log, with secrets removed; "" if the log is empty or missing."""
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
    """Return the message of a log line in JSON; return any other line without its time."""
    try:
        entry = json.loads(line)
        message = str(entry["message"])
        if error := entry.get("exception"):
            message += f" ({error['type']}: {error['message']})"
        level = entry.get("level", "INFO")
        return message if level in ("INFO", "DEBUG") else f"{level}: {message}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return _STAMP.sub("", line.strip(), count=1)
