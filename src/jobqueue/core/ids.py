"""Job ids (UUIDv4 as text), leases (random 63-bit numbers), idempotency keys as stores keep them.

A key without an owner is shared by all callers: it was written where callers are not known, or by
an earlier version, or it is the key of a schedule's tick. It is stored as it is. The key of a known
caller is stored after the caller's name, between two marks that no name contains.
"""

from __future__ import annotations

import os
import re
import struct
import uuid

from jobqueue.core.errors import InvalidArgument

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LEASES_AT_ONCE = 512  # one read of the system's entropy serves so many
_leases: list[int] = []

TICKS = "cron:"
"""The prefix of the keys of schedules' ticks, which all workers share."""
_MARK = "\x1f"


def new_job_ids(count: int) -> list[str]:
    """Draw job ids; one read of the system's entropy serves the whole batch."""
    entropy = os.urandom(16 * count)
    ids = []
    for start in range(0, 16 * count, 16):
        raw = entropy[start : start + 16]
        h, variant = raw.hex(), "89ab"[raw[8] & 3]
        ids.append(f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{variant}{h[17:20]}-{h[20:]}")
    return ids


def new_lease() -> int:
    """Draw the number that fences one attempt: 63 unpredictable bits."""
    while True:
        try:
            return _leases.pop() >> 1 or 1
        except IndexError:
            entropy = os.urandom(8 * _LEASES_AT_ONCE)
            _leases.extend(struct.unpack(f"{_LEASES_AT_ONCE}Q", entropy))


# A forked child must not repeat its parent's leases.
os.register_at_fork(after_in_child=_leases.clear)


def parse_job_id(text: str, field: str = "job_id") -> str:
    """Check that ``text`` is a UUID as jobqueue writes it; no other spelling is accepted."""
    if not _UUID.fullmatch(text):
        example = uuid.UUID(int=0)
        raise InvalidArgument(field, f"{text[:80]!r} is not a UUID in lower case (like {example})")
    return text


def id_to_bytes(job_id: str) -> bytes:
    """Return the 16 bytes that a store keeps."""
    return bytes.fromhex(job_id.replace("-", ""))


def id_from_bytes(raw: bytes) -> str:
    """Return the text form of 16 stored bytes."""
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def stored_key(owner: str, key: str) -> str:
    """Return the key as stores keep it; ``owner`` is a caller's name, or empty."""
    if not owner and not key.startswith(_MARK):
        return key
    return f"{_MARK}{owner}{_MARK}{key}"


def read_key(stored: str | None) -> tuple[str | None, str]:
    """Split a stored key into the key and its owner."""
    if stored is None or not stored.startswith(_MARK):
        return stored, ""
    owner, mark, key = stored[1:].partition(_MARK)
    # An earlier version kept a key that begins with a mark as it was.
    return (key, owner) if mark else (stored, "")
