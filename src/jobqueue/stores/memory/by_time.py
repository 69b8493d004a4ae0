"""Jobs by the time of their creation."""

from __future__ import annotations

from collections.abc import Mapping

from jobqueue.core.clock import milliseconds
from jobqueue.core.job import Job, TimeQuery
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.progress import Progress
from jobqueue.stores.memory.records import Record, job_of


class TimePage:
    """A page of records that come in the order of their times, or the other way round."""

    def __init__(self, wanted: TimeQuery) -> None:
        self._wanted = wanted
        self._left_out = 0  # before the page
        self._page: list[Record] = []
        self._same: list[Record] = []  # of one millisecond, in which ids decide
        self._at = 0

    def add(self, record: Record) -> bool:
        """Look at the next record; True: no further one is on the page."""
        if not _matches(record, self._wanted):
            return False
        at = milliseconds(record.created_at)
        if self._same and at != self._at:
            self._take_same()
        self._at = at
        self._same.append(record)
        return len(self._page) >= self._wanted.limit

    def jobs(self, told: Mapping[int | None, Progress]) -> list[Job]:
        """What is on the page, once all were looked at that may be."""
        self._take_same()
        page = self._page[: self._wanted.limit]
        return [_without_result(job_of(record, told)) for record in page]

    def _take_same(self) -> None:
        before = min(len(self._same), self._wanted.offset - self._left_out)
        self._left_out += before
        self._page += sorted(self._same, key=lambda record: record.id)[before:]
        self._same = []


def _matches(record: Record, wanted: TimeQuery) -> bool:
    if record.spec.queue != wanted.queue or record.spec.type != wanted.type:
        return False
    if wanted.states and record.state not in wanted.states:
        return False
    if wanted.cancelled is None or record.state is not State.DEAD_LETTERED:
        return True
    return (record.reason is Reason.CANCELLED) is wanted.cancelled


def _without_result(job: Job) -> Job:
    job.result = None
    return job
