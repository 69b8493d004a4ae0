"""Which of N nodes owns a key: everybody must come to the same answer, so it is locked."""

from __future__ import annotations

import hashlib

from jobqueue.services.job_ledger import new_job_id


def owner_index(key: str, nodes: int) -> int:
    """The first 8 bytes of the key's SHA-256, as a big-endian number, modulo N."""
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "big") % nodes


def owned_job_id(index: int, nodes: int) -> str:
    """A job id whose owner is that node: found after N draws on average."""
    if not 0 <= index < nodes:
        raise ValueError(f"node {index} is none of the {nodes} nodes 0 to {nodes - 1}")
    while owner_index(job_id := new_job_id(), nodes) != index:
        pass
    return job_id
