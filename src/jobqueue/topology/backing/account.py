"""Who a private server runs as: never root."""

from __future__ import annotations

import os
import pwd
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Not by subprocess's own `user`: that forks, and runs the fork handlers of libraries in the child.
# Those of gRPC crash there when it is in use.
_BECOME = """\
import os, sys
uid, gid, *command = sys.argv[1:]
os.setgroups([])
os.setgid(int(gid))
os.setuid(int(uid))
os.execv(command[0], command)
"""


def command_as(account: Account | None, command: Sequence[str]) -> list[str]:
    """What to run in order to run that command as somebody else; None: as who we are."""
    if account is None:
        return list(command)
    become = [sys.executable, "-I", "-S", "-c", _BECOME, str(account.uid), str(account.gid)]
    return [*become, *command]


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
