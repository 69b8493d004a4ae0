"""Implement the task queue on an engine, so that a store keeps its jobs.

A job is QUEUED while it waits for a worker, is assigned but not started, or waits for a retry. The
engine's own states are in ``core.lifecycle``.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from jobqueue.core.api import ClientApi, OperatorApi, TimelineApi
from jobqueue.core.clock import Clock, SystemClock, milliseconds
from jobqueue.core.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    KeyConflict,
    NotFound,
    Unavailable,
)
from jobqueue.core.job import Job, JobSpec, SubmitResult, TimeQuery
from jobqueue.core.lifecycle import State, project
from jobqueue.core.queue import QueueSpec
from jobqueue.core.waiting import JOB, in_turns
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.model import (
    CANCELED_RUNNING,
    CANCELED_UNSTARTED,
    MAX_SUMMARY,
    MAX_UINT32,
    Canceled,
    Envelope,
    JobRecord,
    Listing,
    Sort,
    Spec,
    Status,
    Submitted,
    Summary,
    SummaryPage,
    checksum,
)
from jobqueue.taskqueue.components.requests import check_key, check_reason, check_spec
from jobqueue.taskqueue.components.worker_loop import done_summary
from jobqueue.taskqueue.engine_job import QUEUE, TYPE, to_job, to_spec

_VIEW = "taskqueue"
_DEAD = frozenset({Status.FAILED, Status.CANCELED})  # both are dead letters to the engine


class EngineApi(ClientApi, TimelineApi, OperatorApi, Protocol):
    """The part of an engine that ``EngineTaskQueue`` calls."""


Submit = Callable[[Sequence[JobSpec]], Awaitable[list[SubmitResult]]]
CreateQueue = Callable[[QueueSpec], Awaitable[object]]


class EngineTaskQueue:
    """Implements ``TaskQueue`` on an engine. Jobs of other queues or types are not found."""

    def __init__(
        self,
        engine: EngineApi,
        *,
        submit: Submit | None = None,
        create_queue: CreateQueue | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Wrap an engine.

        ``submit`` replaces the engine's submit, for example to apply a rate limit. ``create_queue``
        replaces the engine's create_queue, for example to write the audit log.
        """
        self._engine = engine
        self._submit = submit or engine.submit
        self._create_queue = create_queue or engine.create_queue
        self._clock = clock or SystemClock()

    async def submit(self, spec: Spec, key: str) -> Submitted:
        check_spec(spec)
        check_key(key)
        job = to_job(spec, key)
        (result,) = await self._submit([job])
        if isinstance(result.error, NotFound):
            with suppress(AlreadyExists):  # another server has just created it
                await self._create_queue(QueueSpec(name=QUEUE))
            (result,) = await self._engine.submit([job])  # the rate limit has been applied
        if isinstance(result.error, KeyConflict):
            raise KeyConflict(
                "client_request_id: already used for a job with another spec; use a new id",
                result.job_id,
            )
        return Submitted(result.unwrap(), milliseconds(self._clock.now()))

    async def status(self, job_id: str) -> JobRecord:
        return _record(await self._find(job_id))

    async def result(self, job_id: str) -> Envelope | None:
        job = await self._find(job_id)
        return _envelope(job) if _status(job).terminal else None

    async def cancel(self, job_id: str, reason: str) -> Canceled:
        check_reason(reason)
        status = _status(await self._find(job_id))
        if status.terminal:
            return Canceled(job_id, True, status, already_terminal=True)
        try:
            answer = await self._engine.cancel(job_id)
        except Conflict as error:
            raise Unavailable(error.message) from error  # its state changes too fast: try again
        if answer.already_terminal:  # it ended after our read: read how
            status = _status(await self._find(job_id))
            return Canceled(job_id, True, status, already_terminal=True)
        event, message, status = (
            (
                "cancel_requested",
                f"a cancel of job {job_id} was requested; it runs, and its worker is told",
                Status.RUNNING,
            )
            if answer.requested
            else ("canceled", f"job {job_id} was canceled while it was QUEUED", Status.CANCELED)
        )
        journal.note(event, message, job_id=job_id, reason=reason, current_status=status.name)
        return Canceled(job_id, True, status, already_terminal=False)

    async def list(self, listing: Listing) -> SummaryPage:
        query = TimeQuery(
            queue=QUEUE,
            type=TYPE,
            states=_states(listing.statuses),
            cancelled=_cancelled(listing.statuses),
            ascending=listing.sort is Sort.CREATED_AT_ASC,
            offset=listing.offset,
            limit=listing.limit + 1,
        )
        found = await in_turns(_summary, await self._engine.list_by_time(query), JOB)
        more = len(found) > listing.limit
        return SummaryPage(
            tuple(found[: listing.limit]), listing.offset + listing.limit if more else None
        )

    async def _find(self, job_id: str) -> Job:
        missing = NotFound(f"there is no job {job_id}")
        try:
            job = await self._engine.get(job_id)
        except (NotFound, InvalidArgument):  # a text that is not a UUID is not a job id
            raise missing from None
        if job.queue != QUEUE or job.type != TYPE:
            raise missing
        return job


def _status(job: Job) -> Status:
    return Status[project(_VIEW, job.state, job.reason)]


def _spec(job: Job) -> Spec:
    try:
        return to_spec(job.payload)
    except InvalidArgument:
        return Spec("")  # submitted through another API: the job fails, but is shown


def _summary(job: Job) -> Summary:
    status = _status(job)
    return Summary(
        job.id,
        status,
        _spec(job).job_type,
        milliseconds(job.created_at),
        _time(_started_at(job)),
        _time(job.completed_at) if status.terminal else 0,
        job.cancel_requested,
    )


def _record(job: Job) -> JobRecord:
    summary = _summary(job)
    failure = _failure(job) if summary.status is Status.FAILED else ""
    return JobRecord(summary, _spec(job), failure)


def _envelope(job: Job) -> Envelope:
    status = _status(job)
    output = (job.result or b"") if status is Status.DONE else b""
    if status is Status.DONE:
        said = done_summary(len(output))
    elif status is Status.FAILED:
        said = _failure(job)[:MAX_SUMMARY]
    else:
        said = CANCELED_UNSTARTED if _started_at(job) is None else CANCELED_RUNNING
    return Envelope(job.id, status, _runtime(job), said, output, checksum(output))


def _failure(job: Job) -> str:
    return job.error or job.reason.value


def _started_at(job: Job) -> float | None:
    """Return when the last run started; None if the job waits or was canceled while waiting."""
    status = _status(job)
    # The cancel flag is set on running jobs only; a queued job is canceled without the flag.
    waited = status is Status.CANCELED and not job.cancel_requested
    return None if waited or status is Status.QUEUED else job.started_at


def _runtime(job: Job) -> int:
    """Return the duration of the last run in milliseconds, rounded up."""
    started_at = _started_at(job)
    if started_at is None or job.completed_at is None:
        return 0
    passed = round((job.completed_at - started_at) * 1000, 3)  # the times are not more exact
    return min(max(math.ceil(passed), 0), MAX_UINT32)


def _time(at: float | None) -> int:
    return 0 if at is None else milliseconds(at)


def _states(wanted: frozenset[Status]) -> tuple[State, ...]:
    """Return the engine's states for the wanted statuses. Empty means all."""
    if not wanted:
        return ()
    names = {status.name for status in wanted}
    return tuple(
        state
        for state in State
        if project(_VIEW, state, None) in names
        or (state is State.DEAD_LETTERED and Status.CANCELED in wanted)
    )


def _cancelled(wanted: frozenset[Status]) -> bool | None:
    """Return True if only cancelled dead letters are wanted, False if only failed ones.

    Return None if both or neither are wanted.
    """
    return None if len(wanted & _DEAD) != 1 else Status.CANCELED in wanted
