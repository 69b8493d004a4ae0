"""Every call between the parts arrives twice, with the same request id."""

from __future__ import annotations

from typing import Any

from jobqueue.core.errors import JobQueueError
from jobqueue.taskqueue.components.protocols import Coordination, JobOwner, QueueOwner, ResultOwner
from jobqueue.taskqueue.designs.wiring import DIRECT, Links
from tests.taskqueue.protocols.faulty import Call, Failpoints


class Twice(Links):
    """Sends each call again once it was answered; ``differing``: not with the same answer."""

    def __init__(self, inner: Links = DIRECT) -> None:
        self.differing: list[str] = []
        self._inner = inner
        self._points = Failpoints()
        self._points.choose = lambda call: self._twice

    def jobs(self, jobs: JobOwner) -> JobOwner:
        return self._points.around(self._inner.jobs(jobs), "jobs")

    def queue(self, queue: QueueOwner) -> QueueOwner:
        return self._points.around(self._inner.queue(queue), "queue")

    def results(self, results: ResultOwner) -> ResultOwner:
        return self._points.around(self._inner.results(results), "results")

    def coordination(self, coordination: Coordination) -> Coordination:
        return self._points.around(self._inner.coordination(coordination), "coordination")

    async def _twice(self, call: Call) -> Any:
        try:
            first = await call.go()
        except JobQueueError:
            return await call.go()  # an error is no answer, and the second time tells
        second = await call.go()
        # What reads has no request id, and may see more the second time.
        if call.request_id and first != second:
            self.differing.append(f"{call.point}: {first}, and when repeated {second}")
        return second
