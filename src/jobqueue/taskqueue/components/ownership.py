"""Decide which node owns a job id or an idempotency key."""

from __future__ import annotations

import hashlib

from jobqueue.core.ids import new_job_ids


def owner_index(key: str, nodes: int) -> int:
    """Return the index of the node that owns a job id or an idempotency key.

    The index is the first 8 bytes of the key's SHA-256, read as a big-endian number, modulo
    ``nodes``. Every client computes the same index, so the rule must never change.
    """
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "big") % nodes


def owned_job_id(index: int, nodes: int) -> str:
    """Return a new job id that the node with this index owns.

    The function draws random ids until the node owns one: ``nodes`` draws on average.
    """
    if not 0 <= index < nodes:
        raise ValueError(
            f"node {index} is none of the {nodes} nodes: the index must be at least 0 and less"
            f" than {nodes}"
        )
    while True:
        [job_id] = new_job_ids(1)
        if owner_index(job_id, nodes) == index:
            return job_id
