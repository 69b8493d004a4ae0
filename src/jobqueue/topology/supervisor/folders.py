"""Where a topology keeps its things, and where running ones are found again."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from jobqueue.core.errors import Conflict, Unavailable

_OWN = "jobqueue"
STATE = "state.json"
LOCK = "lock"
LOGS = "logs"


def default_folder(environ: Mapping[str, str], topology: str) -> Path:
    """The folder of a topology for which none was named: the same every time."""
    return _state_home(environ) / _OWN / topology


def _state_home(environ: Mapping[str, str]) -> Path:
    if given := environ.get("XDG_STATE_HOME"):
        return Path(given)
    # Services do not run as root, and nobody else may enter root's home.
    return Path("/var/lib") if os.geteuid() == 0 else Path.home() / ".local" / "state"


def _runtime(environ: Mapping[str, str]) -> Path:
    """The folder with a link to the folder of every topology that is up."""
    if given := environ.get("XDG_RUNTIME_DIR"):
        return Path(given) / _OWN
    if "XDG_STATE_HOME" not in environ and os.geteuid() == 0:
        return Path("/run") / _OWN
    return _state_home(environ) / _OWN / "run"


def _link(environ: Mapping[str, str], folder: Path) -> Path:
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return _runtime(environ) / digest


def known(environ: Mapping[str, str]) -> list[Path]:
    """The folders of the topologies that were started here and not yet taken down."""
    try:
        links = sorted(_runtime(environ).iterdir())
    except OSError:
        return []
    return [link.readlink() for link in links if (link / STATE).exists()]


def remember(environ: Mapping[str, str], folder: Path) -> None:
    """Let ``ps`` and ``down`` find it. Without this they still do where the folder is named."""
    link = _link(environ, folder)
    with contextlib.suppress(OSError):
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(folder)


def forget(environ: Mapping[str, str], folder: Path) -> None:
    """It is down."""
    with contextlib.suppress(OSError):
        _link(environ, folder).unlink(missing_ok=True)
        (folder / STATE).unlink(missing_ok=True)


class Claim:
    """The right to run a topology in a folder: held by one process, and gone with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            _make(folder)
            _close_empty(folder)
            check_ours(folder, folder.stat())
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
        """Let others have it."""
        with contextlib.suppress(OSError):
            os.close(self._lock)


def check_ours(path: Path, found: os.stat_result) -> None:
    """Who can write there decides which passwords are taken and which processes are ended."""
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
    """Take our folder from its group, as where the umask is 002, unless something is in it."""
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o022 == 0o020:
        folder.chmod(found.st_mode & 0o7755)  # first: nobody can put anything there any more
        if any(folder.iterdir()):
            folder.chmod(found.st_mode & 0o7777)


def _make(folder: Path) -> None:
    """Others may pass, not look, whatever the umask: services may run as another user."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        path.chmod(0o711)


def remove(folder: Path) -> bool:
    """Delete a topology's folder with its data and logs; False where it looks like no such one."""
    if not (folder / LOGS).is_dir() or not (folder / LOCK).is_file():
        return False
    claim = Claim(folder)  # nobody may be starting in it
    try:
        shutil.rmtree(folder)
    finally:
        claim.release()
    return True
