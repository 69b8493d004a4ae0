"""Read files with secrets or trusted keys, and refuse files that other users can read or change."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from jobqueue.core.errors import InvalidArgument

_MAX_SECRET_BYTES = 64 * 1024
_FILE = "_FILE"
PathText = str | os.PathLike[str]
Judge = Callable[[PathText, str, os.stat_result], None]
"""Raises InvalidArgument to refuse an opened file.

Gets the file's name, the setting that names the file, and the file's status.
"""


@contextmanager
def opened(file: PathText, where: str, judges: tuple[Judge, ...]) -> Iterator[BinaryIO]:
    """Open a file for reading, and call the judges, which may refuse the file by its status.

    The status is that of the opened file: its name may belong to another file a moment later.
    ``where`` is the setting that names the file, for errors.
    """
    try:
        # Without O_NONBLOCK a pipe would stop the server until another process writes to it.
        number = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as stream:
            found = os.fstat(number)
            for judge in judges:
                judge(file, where, found)
            os.set_blocking(number, True)
            yield stream
    except OSError as error:
        raise InvalidArgument(where, f"{file}: {error.strerror or error}") from None


def read_judged(file: PathText, where: str, largest: int, *judges: Judge) -> bytes:
    """Return a file's content. Refuse it above ``largest`` bytes, or if a judge refuses it."""
    with opened(file, where, judges) as stream:
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise InvalidArgument(where, f"{file}: is larger than {largest} bytes")
    return content


def check_regular(file: PathText, where: str, found: os.stat_result) -> None:
    """Raise InvalidArgument for a pipe (cannot be read twice) or a device (may never end)."""
    if not stat.S_ISREG(found.st_mode):
        raise InvalidArgument(where, f"{file}: is not a regular file")


def _mode_judge(forbidden: int, rights: str, remedy: str) -> Judge:
    def judge(file: PathText, where: str, found: os.stat_result) -> None:
        mode = found.st_mode & 0o777
        if mode & forbidden:
            raise InvalidArgument(
                where,
                f"{file}: others may {rights} it (mode {mode:03o}); run chmod {remedy} {file}",
            )

    return judge


# The group of a secret may read it: a secret that Kubernetes mounts belongs to the pod's group.
check_private = _mode_judge(0o027, "read or change", "600")
check_unchangeable = _mode_judge(0o022, "change", "go-w")


def check_owner(file: PathText, where: str, found: os.stat_result) -> None:
    """Raise InvalidArgument if this process is root and another user owns the file.

    The owner may change the file. A process that is not root is not checked, because it can read
    the file of another user only if the owner allows it.
    """
    owner = found.st_uid
    if os.geteuid() == 0 and owner != 0:
        raise InvalidArgument(
            where,
            f"{file}: belongs to user {owner}, who may change it; run chown root {file},"
            " or start this program as that user",
        )


def read_secret(file: Path, where: str) -> str:
    """Return the only line of a file that no other user may read."""
    content = read_judged(file, where, _MAX_SECRET_BYTES, check_regular, check_private, check_owner)
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise InvalidArgument(where, f"{file}: must be text") from None
    if not text or not text.isprintable():
        raise InvalidArgument(where, f"{file}: must contain exactly one line of printable text")
    return text


def choose_secret(value: str, file: str, where: str, where_file: str) -> str:
    """Return the secret ``value``, or the content of ``file``; empty if neither is given.

    ``where`` and ``where_file`` are the two settings' names, for errors.
    """
    if value and file:
        raise InvalidArgument(where_file, f"give either {where} or {where_file}, not both")
    return read_secret(Path(file), where_file) if file else value


def environment_secret(environ: Mapping[str, str], name: str) -> str:
    """Return the value of the variable NAME, or the content of the file that NAME_FILE names."""
    value, file = environ.get(name, ""), environ.get(name + _FILE, "")
    return choose_secret(value, file, name, name + _FILE)
