"""Jobs by the time of their creation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice

from jobqueue.core.clock import milliseconds
from jobqueue.core.job import Job, TimeQuery
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.progress import Progress
from jobqueue.stores.memory.records import Record, job_of


def by_time(
    records: Iterable[Record], wanted: TimeQuery, told: Mapping[int | None, Progress]
) -> list[Job]:
    """A page of records that come in the order of their times, or the other way round."""
    matching = (record for record in records if _matches(record, wanted))
    page = islice(_in_order(matching), wanted.offset, wanted.offset + wanted.limit)
    return [_without_result(job_of(record, told)) for record in page]


def _in_order(records: Iterable[Record]) -> Iterator[Record]:
    for _, same in groupby(records, key=lambda record: milliseconds(record.created_at)):
        yield from sorted(same, key=lambda record: record.id)


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
