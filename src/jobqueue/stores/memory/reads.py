"""Read jobs from the memory store for callers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from jobqueue.core.clock import milliseconds
from jobqueue.core.decide import event_of
from jobqueue.core.job import MAX_ERROR_HEAD, MAX_HISTORY, DeadLetterCause, Event, Job, TimeQuery
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.store import ANY_VERSION, DeadLetters, JobFilter
from jobqueue.core.waiting import turn
from jobqueue.stores.memory.contents import MemoryJob, MemoryPart
from jobqueue.stores.rows import looked

_SPARSE = 4  # with more numbers than this for each job, most of them are gone
_LOOKED_AT = 2_000  # records in one turn of the event loop

T = TypeVar("T")


class MemoryReads(MemoryPart):
    """Implements ``core.store.JobReads``."""

    async def get(self, job_id: str) -> Job | None:
        record = self._contents.jobs.get(job_id)
        return None if record is None else self._contents.job(record)

    async def seq_of(self, job_id: str) -> int | None:
        record = self._contents.jobs.get(job_id)
        return None if record is None else record.seq

    async def moved_on(self, seen: Mapping[int, int]) -> list[int]:
        return [
            seq
            for seq, version in seen.items()
            if (record := self._by_seq.get(seq)) is None
            or record.state in TERMINAL
            or version not in (ANY_VERSION, record.version)
        ]

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        def shown(record: MemoryJob) -> Job | None:
            if wanted.states and record.state not in wanted.states:
                return None
            return self._contents.job(record) if matches(record, wanted) else None

        return await self._newest(wanted, shown)

    async def dead_letters(self, wanted: JobFilter) -> DeadLetters:
        def dead(record: MemoryJob) -> tuple[int, int, bool] | None:
            if record.state is not State.DEAD_LETTERED:
                return None
            return record.seq, record.version, matches(record, wanted)

        return looked(await self._newest(wanted, dead), wanted.limit)

    async def describe(self, numbers: Sequence[int]) -> list[DeadLetterCause]:
        found = (self._by_seq.get(seq) for seq in sorted(numbers, reverse=True))
        return [
            DeadLetterCause(
                seq=record.seq,
                version=record.version,
                id=record.id,
                queue=record.spec.queue,
                type=record.spec.type,
                reason=record.reason,
                error=record.error[:MAX_ERROR_HEAD],
                at=record.completed_at or 0.0,
            )
            for record in found
            if record is not None and record.state is State.DEAD_LETTERED
        ]

    async def _newest(self, wanted: JobFilter, show: Callable[[MemoryJob], T | None]) -> list[T]:
        """Return the results of ``show`` for the newest jobs of the queue, without None.

        At most ``wanted.limit`` results are returned, from jobs before ``wanted.before_seq``.
        """
        found: list[T] = []

        def see(record: MemoryJob) -> bool:
            if wanted.queue in (None, record.spec.queue) and (shown := show(record)) is not None:
                found.append(shown)
            return len(found) == wanted.limit

        await self._look(self._numbers(wanted.before_seq), see)
        return found

    async def _look(self, numbers: Iterable[int], see: Callable[[MemoryJob], bool]) -> None:
        """Call ``see`` with the records of ``numbers`` in order, until it returns True.

        Other tasks run in between, so that jobs may be added, changed or removed meanwhile.
        """
        for looked_at, seq in enumerate(numbers, 1):
            if not looked_at % _LOOKED_AT:
                await turn()
            record = self._by_seq.get(seq)
            if record is not None and see(record):
                return

    def _numbers(self, before_seq: int | None) -> Sequence[int]:
        """Return the numbers of jobs below ``before_seq``, newest first.

        The result does not change when jobs are added or removed. It may name removed jobs.
        """
        if not self._by_seq:
            return ()
        first, last = next(iter(self._by_seq)), next(reversed(self._by_seq))
        before = last + 1 if before_seq is None else min(before_seq, last + 1)
        if last - first > _SPARSE * len(self._by_seq):
            return [seq for seq in reversed(self._by_seq) if seq < before]
        return range(before - 1, first - 1, -1)

    async def list_by_time(self, wanted: TimeQuery) -> list[Job]:
        await turn()
        page = _TimePage(wanted)
        numbers = self._numbers(None)  # a later number, a later time
        await self._look(reversed(numbers) if wanted.ascending else numbers, page.add)
        jobs = [self._contents.job(record) for record in page.finish()]
        for job in jobs:
            job.result = None
        return jobs

    async def history(
        self, job_id: str, before: int | None = None, limit: int = MAX_HISTORY
    ) -> list[Event]:
        record = self._contents.jobs.get(job_id)
        if record is None:
            return []
        events = record.events if before is None else record.events[: max(0, before - 1)]
        return [event_of(event) for event in events[-limit:]]

    def every_job(self) -> list[Job]:
        """Return all jobs in the order of their submits. This needs no event loop."""
        return [self._contents.job(record) for record in self._by_seq.values()]


class _TimePage:
    """Collects a page of records, which are added in ascending or descending order of time."""

    def __init__(self, wanted: TimeQuery) -> None:
        self._wanted = wanted
        self._before = wanted.offset  # records still to be left out
        self._page: list[MemoryJob] = []
        self._same: list[MemoryJob] = []  # of one millisecond, in which ids decide
        self._at = 0

    def add(self, record: MemoryJob) -> bool:
        """Add the next record; return True if the page needs no more records."""
        if not _matches_time(record, self._wanted):
            return False
        at = milliseconds(record.created_at)
        if at != self._at:
            self._take_same()
        self._at = at
        self._same.append(record)
        return len(self._page) >= self._wanted.limit

    def finish(self) -> list[MemoryJob]:
        """Return the records of the page. Call this after the last ``add``."""
        self._take_same()
        return self._page[: self._wanted.limit]

    def _take_same(self) -> None:
        left_out = min(len(self._same), self._before)
        self._before -= left_out
        self._page += sorted(self._same, key=lambda record: record.id)[left_out:]
        self._same = []


def _matches_time(record: MemoryJob, wanted: TimeQuery) -> bool:
    spec = record.spec
    if spec.queue != wanted.queue or spec.type != wanted.type:
        return False
    return wanted.matches(record.state, record.reason)


def matches(record: MemoryJob, wanted: JobFilter) -> bool:
    """Return True if a job matches a filter. Queue, states and ``before_seq`` are not checked."""
    if wanted.type is not None and record.spec.type != wanted.type:
        return False
    if wanted.reasons and record.reason not in wanted.reasons:
        return False
    if wanted.error and wanted.error not in record.error:
        return False
    if wanted.since is None and wanted.until is None:
        return True
    ended = record.completed_at
    if ended is None:
        return False
    return (wanted.since is None or ended >= wanted.since) and (
        wanted.until is None or ended < wanted.until
    )
