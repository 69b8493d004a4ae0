"""Make job ids (UUIDv4 as text) and leases (random 63-bit numbers), and encode idempotency keys.

All callers share a key without an owner: such a key was written by a server that does not know its
callers, by an earlier version, or by a periodic schedule. It is stored unchanged. The key of a
known caller is stored with the caller's name before the key; a separator character, which no name
contains, precedes and follows the name.
"""

from __future__ import annotations

import os
import re
import struct
import uuid

from jobqueue.core.errors import InvalidArgument

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LEASES_AT_ONCE = 512  # leases made from one read of the system's entropy
_leases: list[int] = []

TICKS = "cron:"
"""The prefix of the idempotency keys of schedules' runs, which all workers share."""
_MARK = "\x1f"


def new_job_ids(count: int) -> list[str]:
    """Return ``count`` random job ids, made from one read of the system's entropy."""
    entropy = os.urandom(16 * count)
    ids = []
    for start in range(0, 16 * count, 16):
        raw = entropy[start : start + 16]
        h, variant = raw.hex(), "89ab"[raw[8] & 3]
        ids.append(f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{variant}{h[17:20]}-{h[20:]}")
    return ids


def new_lease() -> int:
    """Return a new lease: a number of 63 unpredictable bits that fences one attempt."""
    while True:
        try:
            return _leases.pop() >> 1 or 1
        except IndexError:
            entropy = os.urandom(8 * _LEASES_AT_ONCE)
            _leases.extend(struct.unpack(f"{_LEASES_AT_ONCE}Q", entropy))


# A forked child must not repeat its parent's leases.
os.register_at_fork(after_in_child=_leases.clear)


def parse_job_id(text: str, field: str = "job_id") -> str:
    """Return ``text`` if it is a UUID in lower case with hyphens; else raise InvalidArgument."""
    if not _UUID.fullmatch(text):
        example = uuid.UUID(int=0)
        raise InvalidArgument(field, f"{text[:80]!r} is not a UUID in lower case (like {example})")
    return text


def id_to_bytes(job_id: str) -> bytes:
    """Convert a job id to the 16 bytes that a store keeps."""
    return bytes.fromhex(job_id.replace("-", ""))


def id_from_bytes(raw: bytes) -> str:
    """Convert 16 stored bytes to a job id."""
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def stored_key(owner: str, key: str) -> str:
    """Return the idempotency key as stores keep it.

    ``owner`` is the name of a caller, or empty if all callers share the key.
    """
    if not owner and not key.startswith(_MARK):
        return key
    return f"{_MARK}{owner}{_MARK}{key}"


def read_key(stored: str | None) -> tuple[str | None, str]:
    """Split a stored idempotency key into the key and its owner's name."""
    if stored is None or not stored.startswith(_MARK):
        return stored, ""
    owner, mark, key = stored[1:].partition(_MARK)
    # An earlier version stored a key that begins with the separator unchanged.
    return (key, owner) if mark else (stored, "")
