"""The Lua scripts, by name. They lie in ``scripts``; what they share is written into each."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

# What goes on when Redis is full: what was accepted is finished and published, somebody leads,
# workers are alive, and what is not needed any more is removed. Everything else is refused.
_WHEN_FULL = frozenset({
    "apply", "due", "request_cancel",
    "lead", "resign",
    "begin_stream", "move_mark", "end_stream",
    "delete_job", "prune_done",
    "pulse", "retire_silent", "remove_worker", "set_worker_status",
})  # fmt: skip
_INCLUDE = re.compile(rb"^--# include (\S+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the name that Redis knows it by."""

    name: str
    text: bytes
    sha: str


@cache
def script(name: str) -> Script:
    """Read ``scripts/name.lua`` with everything that it includes."""
    text = _INCLUDE.sub(lambda found: _read(found[1].decode()), _read(f"{name}.lua"))
    if name in _WHEN_FULL:
        text = b"#!lua flags=allow-oom\n" + text
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


def _read(file: str) -> bytes:
    return resources.files(__package__).joinpath("scripts", file).read_bytes()
