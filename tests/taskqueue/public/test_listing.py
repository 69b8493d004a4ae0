"""ListJobs: order, filters, pages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from jobqueue.core.clock import SystemClock
from jobqueue.pb import taskqueue_public_pb2 as pb
from jobqueue.taskqueue import JobSort, JobStatus, JobSummary
from tests.taskqueue.public.deployments import STAMPED_ELSEWHERE
from tests.taskqueue.public.public import Public, refused

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NO_STATUS: Any = 6
NO_SORT: Any = 3
ASC, DESC = JobSort.CREATED_AT_ASC, JobSort.CREATED_AT_DESC


def _in_order(jobs: Sequence[JobSummary], sort: JobSort) -> list[JobSummary]:
    """As it must be: equal times by id, ascending, in both."""
    sign = 1 if sort is ASC else -1
    return sorted(jobs, key=lambda job: (sign * job.created_at_ms, job.job_id))


@pytest.mark.req("tq:NFR-1", "tq:FR-5", "tq:LIST", "tq:LOCK-5", "tq:LOCK-16", "tq:LOCK-7")
async def test_both_orders_and_every_page_size(tq: Public, monkeypatch: pytest.MonkeyPatch) -> None:
    await tq.hold()
    async with tq.with_one_list() as one:
        (before,) = await one.lists()
        with monkeypatch.context() as still:  # time stands still for the first of them
            now = SystemClock().now()
            still.setattr(SystemClock, "now", lambda self: now)
            same = await _submitted(one, 41)
        submitted = same | await _submitted(one, 164)
        (jobs,) = await one.lists()
        assert {job.job_id for job in jobs} - {job.job_id for job in before} == submitted
        times = {job.created_at_ms for job in jobs if job.job_id in same}
        assert len(times) == 1 or tq.name in STAMPED_ELSEWHERE

        for sort in (ASC, DESC):
            expected = _in_order(jobs, sort)
            for size in (200, 201, 0, 41):
                assert await one.lists(sort=sort, page_size=size) == [expected]
            for asked, given in ((0, 50), (1, 1), (200, 200), (201, 200), (2**32 - 1, 200)):
                page = await one.client.list_jobs(page_size=asked, sort=sort)
                assert list(page.jobs) == expected[:given]
                assert page.next_page_token == str(given)
            for offset in (0, 1, 199, len(jobs) - 1):
                page = await one.client.list_jobs((), 1, str(offset), sort)
                assert list(page.jobs) == expected[offset : offset + 1]
                last = offset == len(jobs) - 1
                assert page.next_page_token == ("" if last else str(offset + 1))
            for offset in (len(jobs), len(jobs) + 1, 10**18 - 1):  # past the end
                page = await one.client.list_jobs((), 10, str(offset), sort)
                assert (page.jobs, page.next_page_token) == ((), "")
        unsaid = await one.stub().ListJobs(pb.ListJobsRequest())
        assert [job.job_id for job in unsaid.jobs] == [
            job.job_id for job in _in_order(jobs, DESC)[:50]
        ]


async def _submitted(tq: Public, count: int) -> set[str]:
    """A few at a time: the calls between services have one second each, also on a busy machine."""
    made: set[str] = set()
    while count > len(made):
        few = min(4, count - len(made))
        jobs = await asyncio.gather(*(tq.client.submit_job(job_type="any") for _ in range(few)))
        made |= {job.job_id for job in jobs}
    return made


async def _one_of_each(tq: Public) -> dict[JobStatus, set[str]]:
    """Jobs of every status, all in one list: of some several."""
    found: dict[JobStatus, set[str]] = {status: set() for status in JobStatus}
    for job_type, status in (("any", JobStatus.DONE), ("fail", JobStatus.FAILED)):
        for _ in range(2):
            job_id = (await tq.client.submit_job(job_type=job_type)).job_id
            await tq.end(job_id)
            found[status].add(job_id)
    return found


@pytest.mark.req("tq:NFR-1", "tq:FR-5", "tq:LIST", "tq:LOCK-24")
async def test_filters_by_each_status_and_by_several(tq: Public) -> None:
    async with tq.with_one_list() as one:
        found = await _one_of_each(one)
        await tq.hold()
        for number in range(4):
            job_id = (await one.client.submit_job(job_type=f"kind-{number}")).job_id
            if number % 2:
                await one.client.cancel_job(job_id)
            found[JobStatus.CANCELED if number % 2 else JobStatus.QUEUED].add(job_id)
        (everything,) = await one.lists()
        found[JobStatus.RUNNING] = {
            job.job_id for job in everything if job.status is JobStatus.RUNNING
        }
        assert all(found.values())
        assert {job.job_id for job in everything} == set.union(*found.values())

        filters: list[list[JobStatus]] = [[status] for status in JobStatus]
        filters += [
            [JobStatus.FAILED, JobStatus.CANCELED],
            [JobStatus.CANCELED, JobStatus.DONE],
            [JobStatus.QUEUED, JobStatus.FAILED],
            [JobStatus.RUNNING, JobStatus.RUNNING],
            [JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELED],
            list(JobStatus),
            [],
        ]
        for wanted in filters:
            for sort in (ASC, DESC):
                expected = [
                    job
                    for job in _in_order(everything, sort)
                    if not wanted or job.job_id in set.union(*(found[s] for s in wanted))
                ]
                for size in (1, 200):
                    assert await one.lists(wanted, sort, size) == [expected]


@pytest.mark.req("tq:NFR-1", "tq:FR-5", "tq:LIST", "tq:LOCK-41")
async def test_a_list_shows_what_the_status_shows(tq: Public) -> None:
    async with tq.with_one_list() as one:
        await _one_of_each(one)
        (running, *_) = await tq.hold()
        await tq.client.cancel_job(running)
        await one.client.submit_job(job_type="any")
        (jobs,) = await one.lists()
        for job in jobs:
            state = await one.client.get_job_status(job.job_id)
            assert (state.status, state.cancel_requested) == (job.status, job.cancel_requested)
            assert state.created_at_ms == job.created_at_ms > 0
            assert state.started_at_ms == job.started_at_ms
            assert state.finished_at_ms == job.finished_at_ms
            assert (job.started_at_ms == 0) == (job.status is JobStatus.QUEUED)
            assert (job.finished_at_ms == 0) == (not job.status.terminal)


@pytest.mark.req("tq:NFR-1", "tq:LIST", "tq:CODES", "tq:LOCK-7")
async def test_what_is_no_page_is_refused_with_its_field(tq: Public) -> None:
    await tq.client.submit_job(job_type="any")
    tokens = ["-1", "x", "1.5", " 1", "1 ", "٣", "+1", "1_0", "0x1", "1e3", "9" * 19, "²"]
    requests = [
        *(
            ("page.page_token", pb.ListJobsRequest(page=pb.PageRequest(page_token=token)))
            for token in tokens
        ),
        ("status_filter", pb.ListJobsRequest(status_filter=[pb.JOB_STATUS_UNSPECIFIED])),
        ("status_filter", pb.ListJobsRequest(status_filter=[pb.DONE, NO_STATUS])),
        ("sort", pb.ListJobsRequest(sort=NO_SORT)),
    ]
    for field, request in requests:
        code, text = await refused(tq.stub().ListJobs(request))
        assert (code, text.partition(":")[0]) == (INVALID, field)
    for token in ("0", "00"):
        page = pb.PageRequest(page_token=token)
        answers = [
            await tq.stub().ListJobs(pb.ListJobsRequest(page=page)) for _ in tq.running.targets
        ]
        assert sum(len(answer.jobs) for answer in answers) == (
            1 if tq.running.routed else len(answers)
        )
