"""Job ids (UUIDv4, as text) and leases (random 63-bit numbers)."""

from __future__ import annotations

import os
import re
import struct
import uuid

from jobqueue.core.errors import InvalidArgument

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LEASES_AT_ONCE = 512  # one read of the system's entropy serves so many
_leases: list[int] = []


def new_job_ids(count: int) -> list[str]:
    """Draw job ids; one read of the system's entropy serves the whole batch."""
    entropy = os.urandom(16 * count)
    ids = []
    for start in range(0, 16 * count, 16):
        h = uuid_hex(entropy[start : start + 16])
        ids.append(f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}")
    return ids


def uuid_hex(raw: bytes) -> str:
    """Stamp the version and variant bits of UUIDv4 into 16 random bytes."""
    h = raw.hex()
    return f"{h[:12]}4{h[13:16]}{'89ab'[raw[8] & 3]}{h[17:]}"


def new_lease() -> int:
    """Draw the number that fences one attempt: 63 bits that nobody can foresee."""
    while True:
        try:
            return _leases.pop() >> 1 or 1
        except IndexError:
            entropy = os.urandom(8 * _LEASES_AT_ONCE)
            _leases.extend(struct.unpack(f"{_LEASES_AT_ONCE}Q", entropy))


# A forked child must not repeat its parent's leases.
os.register_at_fork(after_in_child=_leases.clear)


def parse_job_id(text: str, field: str = "job_id") -> str:
    """Check that ``text`` is a UUID as it was given out; another spelling is another id.

    Nothing is normalised: clients of nodes find the owner of a job by the bytes of its id.
    """
    if not _UUID.fullmatch(text):
        example = uuid.UUID(int=0)
        raise InvalidArgument(field, f"{text[:80]!r} is not a UUID in lower case (like {example})")
    return text


def id_to_bytes(job_id: str) -> bytes:
    """The 16 bytes a store keeps."""
    return bytes.fromhex(job_id.replace("-", ""))


def id_from_bytes(raw: bytes) -> str:
    """The text form of 16 stored bytes."""
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
