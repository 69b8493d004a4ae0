"""The owner of which jobs wait, first come, first served. In memory."""

from __future__ import annotations

from collections import OrderedDict

from jobqueue.services.repeats import Repeats

MAX_QUEUED = 100_000


class ReadyQueue:
    """Ids of jobs, each at most once. Taking one out is final."""

    def __init__(self, *, max_queued: int = MAX_QUEUED) -> None:
        self._max_queued = max_queued
        self._ids: OrderedDict[str, int] = OrderedDict()
        self._repeats = Repeats()

    def __len__(self) -> int:
        return len(self._ids)

    async def enqueue(
        self, job_id: str, enqueued_at_ms: int, *, rescue: bool = False, request_id: str
    ) -> bool:
        """At the end; False when there is no room. What was taken out finds room again."""
        return self._repeats.answer(
            ("enqueue", job_id), request_id, lambda: self._enqueue(job_id, enqueued_at_ms, rescue)
        )

    def _enqueue(self, job_id: str, enqueued_at_ms: int, rescue: bool) -> bool:
        if job_id in self._ids:
            return True
        if len(self._ids) >= self._max_queued and not rescue:
            return False
        self._ids[job_id] = enqueued_at_ms
        return True

    async def contains(self, job_id: str) -> bool:
        """Whether it waits."""
        return job_id in self._ids

    async def dequeue(self, worker_id: str, *, request_id: str) -> str | None:
        """Take the first one out; who asks again may ask for another worker."""
        return self._repeats.answer("dequeue", request_id, self._dequeue)

    def _dequeue(self) -> str | None:
        return self._ids.popitem(last=False)[0] if self._ids else None

    async def remove(self, job_id: str, *, request_id: str) -> bool:
        """Take this one out."""
        return self._repeats.answer(("remove", job_id), request_id, lambda: self._remove(job_id))

    def _remove(self, job_id: str) -> bool:
        return self._ids.pop(job_id, None) is not None
