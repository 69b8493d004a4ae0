"""The Lua scripts, by name. They lie in ``scripts``; what they share is written into each."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

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
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


def _read(file: str) -> bytes:
    return resources.files(__package__).joinpath("scripts", file).read_bytes()
