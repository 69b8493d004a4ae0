"""Idempotency keys, and when they come free again."""

from __future__ import annotations

import heapq


class Keys:
    """Which job a key, as it is stored, stands for, until it expires."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[str, bytes, float]] = {}
        self._expiry: list[tuple[float, str, str]] = []

    def any(self) -> bool:
        """Whether a key is taken."""
        return bool(self._known)

    def find(self, queue: str, key: str | None) -> tuple[str, bytes] | None:
        """(job id, fingerprint) of the job under this key."""
        known = None if key is None else self._known.get((queue, key))
        return None if known is None else known[:2]

    def expiry(self, queue: str, key: str | None, job_id: str) -> float | None:
        """Until when a job has its key; None: it has none any more."""
        known = None if key is None else self._known.get((queue, key))
        return known[2] if known is not None and known[0] == job_id else None

    def put(self, queue: str, key: str, job_id: str, fingerprint: bytes, expires: float) -> None:
        """Remember a key."""
        self._known[queue, key] = (job_id, fingerprint, expires)
        heapq.heappush(self._expiry, (expires, queue, key))

    def free(self, queue: str, key: str | None, job_id: str) -> None:
        """Forget a removed job's key, unless it stands for another by now."""
        if key is not None and (known := self._known.get((queue, key))) and known[0] == job_id:
            del self._known[queue, key]

    def expire(self, now: float) -> None:
        """Forget keys whose time is over."""
        while self._expiry and self._expiry[0][0] <= now:
            expires, queue, key = heapq.heappop(self._expiry)
            known = self._known.get((queue, key))
            if known is not None and known[2] == expires:
                del self._known[queue, key]
