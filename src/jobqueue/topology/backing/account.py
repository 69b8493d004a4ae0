"""Who a private server runs as: never root."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Account:
    """A user of this machine."""

    name: str
    uid: int
    gid: int

    def unreachable(self, folder: Path) -> Path | None:
        """The first folder on the way there that this user may not pass, None if there is none."""
        for step in (*reversed(folder.parents), folder):
            status = step.stat()
            if status.st_uid == self.uid:
                allowed = status.st_mode & stat.S_IXUSR
            elif status.st_gid == self.gid:
                allowed = status.st_mode & stat.S_IXGRP
            else:
                allowed = status.st_mode & stat.S_IXOTH
            if not allowed:
                return step
        return None


def choose(names: Sequence[str]) -> Account | None:
    """The first of the users that exists."""
    for name in names:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    return None


def is_root() -> bool:
    return os.geteuid() == 0
