"""The owner of every job's canonical status, and of the keys of submits. In memory."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from jobqueue.core.clock import Clock, SystemClock
from jobqueue.core.errors import (
    InvalidArgument,
    KeyConflict,
    NotFound,
    PermissionDenied,
    QueueFull,
)
from jobqueue.core.ids import new_job_ids
from jobqueue.services import journal
from jobqueue.services.model import (
    CANCELED_UNSTARTED,
    MAX_DEDUP_KEYS,
    Applied,
    Created,
    Listing,
    Page,
    Record,
    Sort,
    Spec,
    Status,
    Summary,
)
from jobqueue.services.repeats import Repeats
from jobqueue.services.requests import page_size
from jobqueue.services.transitions import TRANSITIONS

MAX_JOBS = 100_000
_SHOWN = 64  # characters of an id that is none: it may be as long as a message


@dataclass(slots=True)
class _Job:
    record: Record
    key: str

    @property
    def status(self) -> Status:
        return self.record.summary.status


def new_job_id() -> str:
    """Any UUIDv4."""
    return new_job_ids(1)[0]


class JobLedger:
    """Jobs by id, in the order of their creation.

    At most ``max_jobs`` are kept: the one that ended first is forgotten first, and one that has
    not ended never is.
    """

    def __init__(
        self,
        *,
        max_dedup_keys: int = MAX_DEDUP_KEYS,
        max_jobs: int = MAX_JOBS,
        new_id: Callable[[], str] = new_job_id,
        clock: Clock | None = None,
    ) -> None:
        self._max_keys = max_dedup_keys
        self._max_jobs = max_jobs
        self._new_id = new_id
        self._clock = clock or SystemClock()
        self._jobs: dict[str, _Job] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._keys: OrderedDict[str, str] = OrderedDict()
        self._latest_ms = 0
        self._repeats = Repeats()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def unfinished(self) -> int:
        """Jobs that have not ended."""
        return len(self._jobs) - len(self._ended)

    async def create(self, spec: Spec, key: str, *, request_id: str) -> Created:
        """A new job, or the one that has the key."""
        what = ("create", key, spec.job_type, spec.work_duration_ms, spec.payload_size_bytes)
        labels = frozenset(spec.labels.items())
        return self._repeats.answer((*what, labels), request_id, lambda: self._create(spec, key))

    def _create(self, spec: Spec, key: str) -> Created:
        if key and (job_id := self._keys.get(key)) is not None:
            job = self._jobs[job_id]
            if job.record.spec != spec:
                raise KeyConflict("client_request_id belongs to a job with another spec", job_id)
            return Created(job_id, job.status, created=False)
        self._make_room()
        job_id = self._new_id()
        summary = Summary(job_id, Status.QUEUED, spec.job_type, self._now_ms())
        self._jobs[job_id] = _Job(Record(summary, spec), key)
        if key:
            self._keys[key] = job_id
            if len(self._keys) > self._max_keys:
                self._keys.popitem(last=False)
        return Created(job_id, Status.QUEUED, created=True)

    def _make_room(self) -> None:
        if len(self._jobs) < self._max_jobs:
            return
        if not self._ended:
            raise QueueFull(f"{len(self._jobs)} jobs have not ended: there is no room for more")
        oldest, _ = self._ended.popitem(last=False)
        self._forget(oldest)

    def _forget(self, job_id: str) -> None:
        job = self._jobs.pop(job_id)
        if job.key and self._keys.get(job.key) == job_id:
            del self._keys[job.key]

    async def delete_if(self, job_id: str, expected: Status, *, request_id: str) -> Applied:
        """Remove the job and free its key, if it has that status."""
        what = ("delete", job_id, expected)
        return self._repeats.answer(what, request_id, lambda: self._delete(job_id, expected))

    def _delete(self, job_id: str, expected: Status) -> Applied:
        job = self._jobs.get(job_id)
        if job is None:
            return Applied(False, None)
        if job.status is not expected:
            return Applied(False, job.status)
        self._ended.pop(job_id, None)
        self._forget(job_id)
        return Applied(True, None)

    async def get(self, job_id: str) -> Record:
        """All about a job."""
        return self._find(job_id).record

    def _find(self, job_id: str) -> _Job:
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id[:_SHOWN]!r}")
        return job

    async def list(self, listing: Listing) -> Page:
        """One page, of the jobs as they are now; never longer than a page may be."""
        if listing.offset < 0:
            raise InvalidArgument("page.page_token", "must be a non-negative integer")
        limit = page_size(listing.limit)
        matching = _with_status(self._jobs.values(), listing.statuses)
        if listing.sort is Sort.CREATED_AT_DESC:
            matching.reverse()
        end = listing.offset + limit
        more = end < len(matching)
        return Page(tuple(_sorted_slice(matching, listing.offset, end)), end if more else None)

    async def transition(
        self,
        job_id: str,
        expected: Status,
        to: Status,
        *,
        actor: str,
        reason: str = "",
        request_id: str,
    ) -> Applied:
        """Compare and set; what the table does not list is refused."""
        allowed = TRANSITIONS.get((expected, to))
        if allowed is None:
            journal.warn(
                "invalid_transition",
                f"{expected.name} -> {to.name} is not a transition",
                job_id=job_id,
                actor=actor,
            )
            raise InvalidArgument("to_status", f"no job goes from {expected.name} to {to.name}")
        if actor != allowed:
            raise PermissionDenied(f"{expected.name} -> {to.name} is the {allowed}'s to make")
        what = ("transition", job_id, expected, to)
        return self._repeats.answer(
            what, request_id, lambda: self._transition(job_id, expected, to, reason)
        )

    def _transition(self, job_id: str, expected: Status, to: Status, reason: str) -> Applied:
        job = self._find(job_id)
        current = job.status
        if current is not expected:
            journal.note(
                journal.RACE,
                f"{expected.name} -> {to.name} came too late",
                level=logging.WARNING if current.terminal and to.terminal else logging.INFO,
                job_id=job_id,
                expected_status=expected.name,
                current_status=current.name,
            )
            return Applied(False, current)
        now = self._now_ms()
        summary = replace(job.record.summary, status=to)
        if to is Status.RUNNING:
            summary = replace(summary, started_at_ms=now)
        if to.terminal:
            summary = replace(summary, finished_at_ms=now)
            if to is Status.CANCELED and reason == CANCELED_UNSTARTED:  # RUNNING for a moment
                summary = replace(summary, started_at_ms=0)
            self._ended[job_id] = None
        failure = reason if to is Status.FAILED else ""
        job.record = replace(job.record, summary=summary, failure_reason=failure)
        return Applied(True, to)

    async def request_cancel(self, job_id: str, reason: str, *, request_id: str) -> Applied:
        """Set the flag of a job that is not terminal."""
        what = ("request_cancel", job_id)
        return self._repeats.answer(what, request_id, lambda: self._request_cancel(job_id))

    def _request_cancel(self, job_id: str) -> Applied:
        job = self._find(job_id)
        if job.status.terminal:
            return Applied(False, job.status)
        job.record = replace(job.record, summary=replace(job.record.summary, cancel_requested=True))
        return Applied(True, job.status)

    def _now_ms(self) -> int:
        """Never earlier than before: the order of creation is the order of times."""
        self._latest_ms = max(self._latest_ms, int(self._clock.now() * 1000))
        return self._latest_ms


def _with_status(jobs: Iterable[_Job], statuses: frozenset[Status]) -> list[_Job]:
    """Of all jobs there may be: nothing else is served meanwhile, so this must be quick."""
    if not statuses:
        return list(jobs)
    wanted = tuple(statuses)  # a member's hash costs more than looking at five
    return [job for job in jobs if job.record.summary.status in wanted]


def _sorted_slice(by_time: Sequence[_Job], start: int, end: int) -> list[Summary]:
    """That part of them, in which those of one millisecond are in the order of their ids."""
    first, last = start, min(end, len(by_time))
    if first >= last:
        return []
    while first > 0 and _created(by_time[first - 1]) == _created(by_time[first]):
        first -= 1
    while last < len(by_time) and _created(by_time[last]) == _created(by_time[last - 1]):
        last += 1
    ordered = [
        summary
        for _, same in groupby(by_time[first:last], key=_created)
        for summary in sorted((job.record.summary for job in same), key=lambda s: s.job_id)
    ]
    return ordered[start - first : end - first]


def _created(job: _Job) -> int:
    return job.record.summary.created_at_ms
