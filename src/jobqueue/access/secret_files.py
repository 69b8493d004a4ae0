"""Secrets that stand in files of their own, as containers and init systems hand them over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jobqueue.access.tls import check_owner, check_private, check_regular, read_judged
from jobqueue.core.errors import InvalidArgument

_MAX_BYTES = 64 * 1024
_FILE = "_FILE"


def read_secret(file: Path, where: str) -> str:
    """What a file holds, without the end of its line. One that others may read is refused."""
    content = read_judged(file, where, _MAX_BYTES, check_regular, check_private, check_owner)
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise InvalidArgument(where, f"{file}: must be text") from None
    if not text or not text.isprintable():
        raise InvalidArgument(where, f"{file}: must hold one line of text")
    return text


def choose_secret(value: str, file: str, where: str, where_file: str) -> str:
    """The secret itself, or what its file holds; empty: there is none."""
    if value and file:
        raise InvalidArgument(where_file, f"give either {where} or {where_file}, not both")
    return read_secret(Path(file), where_file) if file else value


def environment_secret(environ: Mapping[str, str], name: str) -> str:
    """The variable NAME, or the content of the file that NAME_FILE names."""
    value, file = environ.get(name, ""), environ.get(name + _FILE, "")
    return choose_secret(value, file, name, name + _FILE)
