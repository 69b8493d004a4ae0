"""Keep jobs with their keys, the order of the waiting jobs, and results, all in memory.

Each class has one instance in a deployment, or in a node, and that instance is authoritative.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from jobqueue.core.clock import Clock, SystemClock, milliseconds
from jobqueue.core.errors import InvalidArgument, KeyConflict, NotFound, PermissionDenied, QueueFull
from jobqueue.core.ids import new_job_ids
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.model import (
    CANCELED_UNSTARTED,
    MAX_DEDUP_KEYS,
    MAX_OUTPUT_BYTES,
    OUTPUT_TOO_LARGE,
    TRANSITIONS,
    Applied,
    CreatedJob,
    Envelope,
    JobRecord,
    Listing,
    Sort,
    Spec,
    Status,
    Stored,
    Summary,
    SummaryPage,
    checksum,
)
from jobqueue.taskqueue.components.repeats import Repeats
from jobqueue.taskqueue.components.requests import page_size

MAX_JOBS = 100_000
_SHOWN = 64  # characters of an unknown id in an error: a caller may send a very long text


@dataclass(slots=True)
class _Job:
    record: JobRecord
    key: str

    @property
    def status(self) -> Status:
        return self.record.summary.status


def new_job_id() -> str:
    return new_job_ids(1)[0]


class JobLedger:
    """Holds the jobs by id, in the order of their creation, and their idempotency keys.

    The ledger keeps at most ``max_jobs`` jobs. To make room for a new job, it deletes the job that
    ended first. It never deletes a job that has not ended.
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
        """Return the number of jobs that have not ended."""
        return len(self._jobs) - len(self._ended)

    async def create(self, spec: Spec, key: str, *, request_id: str) -> CreatedJob:
        what = ("create", key, spec.job_type, spec.work_duration_ms, spec.payload_size_bytes)
        labels = frozenset(spec.labels.items())
        return self._repeats.answer((*what, labels), request_id, lambda: self._create(spec, key))

    def _create(self, spec: Spec, key: str) -> CreatedJob:
        if key and (job_id := self._keys.get(key)) is not None:
            job = self._jobs[job_id]
            if job.record.spec != spec:
                raise KeyConflict(
                    "client_request_id: already used for a job with another spec; use a new id",
                    job_id,
                )
            return CreatedJob(job_id, job.status, created=False)
        self._make_room()
        job_id = self._new_id()
        summary = Summary(job_id, Status.QUEUED, spec.job_type, self._now_ms())
        self._jobs[job_id] = _Job(JobRecord(summary, spec), key)
        if key:
            self._keys[key] = job_id
            if len(self._keys) > self._max_keys:
                self._keys.popitem(last=False)
        return CreatedJob(job_id, Status.QUEUED, created=True)

    def _make_room(self) -> None:
        if len(self._jobs) < self._max_jobs:
            return
        if not self._ended:
            raise QueueFull(
                f"{len(self._jobs)} jobs have not ended, which is the maximum: submit again later"
            )
        oldest, _ = self._ended.popitem(last=False)
        self._forget(oldest)

    def _forget(self, job_id: str) -> None:
        job = self._jobs.pop(job_id)
        if job.key and self._keys.get(job.key) == job_id:
            del self._keys[job.key]

    async def delete_if(self, job_id: str, expected: Status, *, request_id: str) -> Applied:
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

    async def get(self, job_id: str) -> JobRecord:
        return self._find(job_id).record

    def _find(self, job_id: str) -> _Job:
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id[:_SHOWN]!r}")
        return job

    async def list(self, listing: Listing) -> SummaryPage:
        if listing.offset < 0:
            raise InvalidArgument("page.page_token", "must be a non-negative integer")
        limit = page_size(listing.limit)
        matching = _with_status(self._jobs.values(), listing.statuses)
        if listing.sort is Sort.CREATED_AT_DESC:
            matching.reverse()
        end = listing.offset + limit
        more = end < len(matching)
        return SummaryPage(
            tuple(_sorted_slice(matching, listing.offset, end)), end if more else None
        )

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
        allowed = TRANSITIONS.get((expected, to))
        if allowed is None:
            journal.warn(
                "invalid_transition",
                f"refused {expected.name} -> {to.name}: there is no such transition; the job is"
                " unchanged",
                job_id=job_id,
                actor=actor,
            )
            raise InvalidArgument(
                "to_status", f"there is no transition from {expected.name} to {to.name}"
            )
        if actor != allowed:
            raise PermissionDenied(
                f"only the {allowed} may change a job from {expected.name} to {to.name}"
            )
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
                f"refused {expected.name} -> {to.name}: the job is {current.name} already",
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
            if (
                to is Status.CANCELED and reason == CANCELED_UNSTARTED
            ):  # it was RUNNING for a moment only
                summary = replace(summary, started_at_ms=0)
            self._ended[job_id] = None
        failure = reason if to is Status.FAILED else ""
        job.record = replace(job.record, summary=summary, failure_reason=failure)
        return Applied(True, to)

    async def request_cancel(self, job_id: str, reason: str, *, request_id: str) -> Applied:
        what = ("request_cancel", job_id)
        return self._repeats.answer(what, request_id, lambda: self._request_cancel(job_id))

    def _request_cancel(self, job_id: str) -> Applied:
        job = self._find(job_id)
        if job.status.terminal:
            return Applied(False, job.status)
        job.record = replace(job.record, summary=replace(job.record.summary, cancel_requested=True))
        return Applied(True, job.status)

    def _now_ms(self) -> int:
        """Return the time in ms. It never goes back, so jobs stay sorted by creation time."""
        self._latest_ms = max(self._latest_ms, milliseconds(self._clock.now()))
        return self._latest_ms


def _with_status(jobs: Iterable[_Job], statuses: frozenset[Status]) -> list[_Job]:
    """Return the jobs that have one of the statuses; all jobs if there are no statuses."""
    # This runs on the event loop and blocks all other calls, so it must be fast.
    if not statuses:
        return list(jobs)
    wanted = tuple(statuses)  # hashing an enum member is slower than comparing five
    return [job for job in jobs if job.record.summary.status in wanted]


def _sorted_slice(by_time: Sequence[_Job], start: int, end: int) -> list[Summary]:
    """Return the jobs from ``start`` to ``end``, with jobs of the same millisecond sorted by id.

    ``by_time`` is sorted by creation time.
    """
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


MAX_QUEUED = 100_000


class ReadyQueue:
    """Holds the ids of the waiting jobs in their order, each at most once.

    A job that was taken out comes back only if it is enqueued again.
    """

    def __init__(self, *, max_queued: int = MAX_QUEUED) -> None:
        self._max_queued = max_queued
        self._ids: OrderedDict[str, int] = OrderedDict()
        self._repeats = Repeats()

    def __len__(self) -> int:
        return len(self._ids)

    async def enqueue(
        self, job_id: str, enqueued_at_ms: int, *, rescue: bool = False, request_id: str
    ) -> bool:
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
        return job_id in self._ids

    async def dequeue(self, worker_id: str, *, request_id: str) -> str | None:
        return self._repeats.answer("dequeue", request_id, self._dequeue)

    def _dequeue(self) -> str | None:
        return self._ids.popitem(last=False)[0] if self._ids else None

    async def remove(self, job_id: str, *, request_id: str) -> bool:
        return self._repeats.answer(("remove", job_id), request_id, lambda: self._remove(job_id))

    def _remove(self, job_id: str) -> bool:
        return self._ids.pop(job_id, None) is not None


MAX_RESULT_BYTES = 2**30


class ResultShelf:
    """Holds one envelope for each job. The first envelope stays; later ones are ignored.

    The shelf keeps the latest ``max_results`` envelopes, which must be more than the jobs that the
    ledger keeps. All outputs together have at most ``max_bytes``. Beyond either limit the shelf
    deletes the oldest envelopes.
    """

    def __init__(
        self,
        *,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        max_results: int = 2 * MAX_JOBS,
        max_bytes: int = MAX_RESULT_BYTES,
    ) -> None:
        self._max_output_bytes = max_output_bytes
        self._max_results = max_results
        self._max_bytes = max_bytes
        self._bytes = 0
        self._envelopes: OrderedDict[str, Envelope] = OrderedDict()
        self._repeats = Repeats()

    def __len__(self) -> int:
        return len(self._envelopes)

    async def store(self, envelope: Envelope, *, request_id: str) -> Stored:
        if not envelope.status.terminal:
            raise InvalidArgument(
                "terminal_status",
                f"must be DONE, FAILED or CANCELED, got {envelope.status.name}",
            )
        what = ("store", envelope.job_id, envelope.status)
        return self._repeats.answer(what, request_id, lambda: self._store(envelope))

    def _store(self, envelope: Envelope) -> Stored:
        envelope = self._bounded(envelope)
        found = self._envelopes.get(envelope.job_id)
        if found is None:
            self._envelopes[envelope.job_id] = envelope
            self._bytes += len(envelope.output)
            while len(self._envelopes) > self._max_results or self._bytes > self._max_bytes:
                _, oldest = self._envelopes.popitem(last=False)
                self._bytes -= len(oldest.output)
            return Stored(True, False, envelope.status)
        same = found == envelope
        if not same:
            journal.warn(
                "result_conflict",
                f"the job already has the result {found.status.name}; a later, different result"
                f" {envelope.status.name} is ignored",
                job_id=envelope.job_id,
                current_status=found.status.name,
            )
        return Stored(same, True, found.status)

    def _bounded(self, envelope: Envelope) -> Envelope:
        size = len(envelope.output)
        if size > self._max_output_bytes:
            return replace(
                envelope,
                status=Status.FAILED,
                output=b"",
                output_summary=too_large(size, self._max_output_bytes),
                checksum=checksum(b""),
            )
        actual = checksum(envelope.output)
        if envelope.checksum and envelope.checksum != actual:
            raise InvalidArgument(
                "checksum", "must be the SHA-256 of output_bytes in lowercase hex digits"
            )
        return replace(envelope, checksum=actual)

    async def get(self, job_id: str) -> Envelope | None:
        return self._envelopes.get(job_id)


def too_large(size: int, most: int) -> str:
    """Return the failure reason of a job whose output has ``size`` bytes, more than ``most``."""
    return f"{OUTPUT_TOO_LARGE}: {size} bytes of output, at most {most} are kept"
