"""Parse API keys of the form ``name:role+role:key``, and find the caller of a key.

The keys stay in memory as hashes only.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from jobqueue.access.callers import Caller, Role, parse_roles
from jobqueue.access.files import check_owner, check_private, read_judged
from jobqueue.core.errors import InvalidArgument

HASH_PREFIX = "sha256="
MIN_KEY_CHARACTERS = 16
_MAX_KEYS = 10_000
_MAX_FILE_BYTES = 4 << 20
_NAME = re.compile(r"[A-Za-z0-9._@/-]{1,100}")
_HASH = re.compile(r"[0-9a-f]{64}")
_FORM = f"must be NAME:ROLE+ROLE:KEY, or NAME:ROLE+ROLE:{HASH_PREFIX}HEX"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Holds the hash of an API key, with the name and roles of its caller."""

    name: str
    roles: frozenset[Role]
    digest: bytes = field(repr=False)


def parse_keys(entries: Iterable[str], where: str) -> list[ApiKey]:
    """Parse API key entries. An error gives the entry's number and never shows the entry.

    ``where`` is the setting that contains the entries, for errors.
    """
    keys: list[ApiKey] = []
    for number, entry in enumerate(entries, 1):
        try:
            keys.append(_parse(entry))
        except ValueError as error:
            raise InvalidArgument(where, f"entry {number}: {error}") from None
        if number > _MAX_KEYS:
            raise InvalidArgument(where, f"must have at most {_MAX_KEYS} keys")
    return keys


def _parse(entry: str) -> ApiKey:
    parts = entry.strip().split(":", 2)
    if len(parts) != 3:
        raise ValueError(_FORM)
    name, roles, key = (part.strip() for part in parts)
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name must have 1 to 100 of A-Z a-z 0-9 . _ @ / -; the entry {_FORM}")
    known = _known(roles)
    if key.startswith(HASH_PREFIX):
        found = key.removeprefix(HASH_PREFIX).lower()
        if not _HASH.fullmatch(found):
            raise ValueError(f"the key must have 64 hexadecimal digits after {HASH_PREFIX}")
        digest = bytes.fromhex(found)
        if digest == key_digest(""):
            raise ValueError(
                "it is the hash of an empty key; a key needs"
                f" {MIN_KEY_CHARACTERS} or more characters"
            )
    else:
        if len(key) < MIN_KEY_CHARACTERS or not key.isascii() or not key.isprintable():
            raise ValueError(
                f"the key must have {MIN_KEY_CHARACTERS} or more printable ASCII characters"
            )
        digest = key_digest(key)
    return ApiKey(name, known, digest)


def _known(roles: str) -> frozenset[Role]:
    try:
        return parse_roles(roles)
    except ValueError:
        # In a malformed entry this text may be a part of the key: do not show it.
        raise ValueError(f"unknown role; allowed: {', '.join(Role)}, joined by +") from None


def read_key_file(file: Path, where: str) -> list[ApiKey]:
    """Read a file with one API key per line. Refuse a file that others may read or change."""
    try:
        text = read_judged(file, where, _MAX_FILE_BYTES, check_private, check_owner).decode()
    except UnicodeDecodeError:
        raise InvalidArgument(where, f"{file}: must be text") from None
    lines = (line.strip() for line in text.splitlines())
    return parse_keys([line for line in lines if line and not line.startswith("#")], where)


def key_digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class Keyring:
    """Finds the caller of an API key, in a time that does not depend on the key."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = tuple(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, key: str) -> Caller | None:
        if len(key) < MIN_KEY_CHARACTERS:  # an entry may have the hash of a short key
            return None
        digest = key_digest(key)
        found: ApiKey | None = None
        for known in self._keys:
            if hmac.compare_digest(known.digest, digest):
                found = known
        return None if found is None else Caller(found.name, found.roles)

    def with_tag(self, tag: Callable[[bytes], str], wanted: str) -> Caller | None:
        """Return the caller whose API key has the tag ``wanted``; None if no key has it.

        ``tag`` computes the tag of a key from the key's hash.
        """
        for known in self._keys:
            if hmac.compare_digest(tag(known.digest), wanted):
                return Caller(known.name, known.roles)
        return None
