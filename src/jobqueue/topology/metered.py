"""Counts what passes between a worker and a server elsewhere, for the worker's own /metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobqueue.core.api import DispatchApi, Inbox, Link
from jobqueue.core.job import Assignment, Pulse, Transition, WorkerInfo, WorkerStatus
from jobqueue.core.lifecycle import Move, State
from jobqueue.core.observer import Observer
from jobqueue.core.progress import NO_PROGRESS, Progress

_SLACK = 1_000


class Metered:
    """A dispatch API that counts what one worker does."""

    def __init__(self, dispatch: DispatchApi, observer: Observer) -> None:
        self._dispatch = dispatch
        self._observer = observer
        self._queues: dict[int, str] = {}

    @property
    def unended(self) -> int:
        """Attempts that were handed over and whose end was never reported."""
        return len(self._queues)

    async def connect(self, info: WorkerInfo, inbox: Inbox) -> Link:
        """Register, with counting between the worker and its link."""
        limit = _SLACK + 2 * info.concurrency
        counting = _Counting(inbox, self._observer, self._queues, limit)
        return _MeteredLink(await self._dispatch.connect(info, counting), counting)


class _Counting:
    """Remembers the queue of each lease, so that its end can be counted by queue."""

    def __init__(
        self, inbox: Inbox, observer: Observer, queues: dict[int, str], limit: int
    ) -> None:
        self._inbox = inbox
        self._limit = limit
        self._observer = observer
        self._queues = queues

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Note the queues, then pass the jobs on."""
        counts: dict[str, int] = {}
        for job in assignments:
            self._queues[job.lease] = job.queue
            counts[job.queue] = counts.get(job.queue, 0) + 1
        for queue, count in counts.items():
            self._observer.entered(queue, State.ASSIGNED, count)
        while len(self._queues) > self._limit:  # leases that were lost never end here
            del self._queues[next(iter(self._queues))]
        self._inbox.assigned(assignments)

    def cancel(self, leases: Sequence[int]) -> None:
        """See ``Inbox.cancel``."""
        self._inbox.cancel(leases)

    def set_status(self, status: WorkerStatus) -> None:
        """See ``Inbox.set_status``."""
        self._inbox.set_status(status)

    def holds(self) -> Sequence[int] | None:
        """See ``Inbox.holds``."""
        return self._inbox.holds()

    def moved(self) -> None:
        """See ``Inbox.moved``."""
        self._inbox.moved()

    def lost(self, leases: Sequence[int]) -> None:
        """Forget leases that do not stand any more. In the heartbeat's thread."""
        for lease in leases:
            self._queues.pop(lease, None)

    def reported(self, reports: Sequence[Transition], accepted: Sequence[bool]) -> None:
        """Count what was accepted, by queue and end."""
        counts: dict[tuple[str, State], int] = {}
        ran: dict[str, list[float]] = {}
        for report, applied in zip(reports, accepted, strict=True):
            if report.move is Move.START or report.lease is None:
                continue
            queue = self._queues.pop(report.lease, None)
            if queue is None or not applied or report.move is Move.HAND_BACK:
                continue
            state = State.DONE if report.move is Move.SUCCEED else State.FAILED
            counts[queue, state] = counts.get((queue, state), 0) + 1
            if report.ran_for is not None:
                ran.setdefault(queue, []).append(report.ran_for)
        for (queue, state), count in counts.items():
            self._observer.entered(queue, state, count)
        for queue, seconds in ran.items():
            self._observer.ran(queue, seconds)


class _MeteredLink:
    """A link that tells the counter what its reports came to."""

    def __init__(self, link: Link, counting: _Counting) -> None:
        self._link = link
        self._counting = counting

    def grant(self, slots: int) -> None:
        """See ``Link.grant``."""
        self._link.grant(slots)

    async def report(self, reports: Sequence[Transition], freed: int = 0) -> list[bool]:
        """See ``Link.report``."""
        accepted = await self._link.report(reports, freed)
        self._counting.reported(reports, accepted)
        return accepted

    def pulse(
        self,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        complete: bool = True,
        fresh: bool = False,
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
    ) -> Pulse:
        """See ``Link.pulse``."""
        answer = self._link.pulse(leases, begun, complete, fresh, progress, overrun)
        self._counting.lost(answer.lost)
        return answer

    async def drain(self, *, pause: bool = False) -> None:
        """See ``Link.drain``."""
        await self._link.drain(pause=pause)

    async def close(self) -> None:
        """See ``Link.close``."""
        await self._link.close()
