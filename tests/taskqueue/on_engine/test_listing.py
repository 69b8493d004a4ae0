"""ListJobs over the engine: statuses as this face names them, order, offsets."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.job import Assignment, Transition
from jobqueue.engine.engine import Engine
from jobqueue.taskqueue.components.model import Listing, Sort, Spec, Status, SummaryPage
from jobqueue.taskqueue.on_engine import EngineTaskQueue
from tests.api.public.hand import Hand

ASC, DESC = Sort.CREATED_AT_ASC, Sort.CREATED_AT_DESC


def ids(page: SummaryPage) -> list[str]:
    return [job.job_id for job in page.jobs]


async def in_every_status(tasks: EngineTaskQueue, hand: Hand) -> dict[str, list[str]]:
    """Jobs of every status, and of every state behind QUEUED and CANCELED."""
    made: dict[str, list[str]] = {}

    async def submit() -> str:
        await asyncio.sleep(0.002)  # another millisecond
        return (await tasks.submit(Spec("any"), "")).job_id

    made["DONE"] = [await submit()]
    await hand.succeed(await hand.begin(), b"x")
    made["FAILED"] = [await submit()]
    await hand.fail(await hand.begin(), retryable=False)
    canceled = await submit()
    await tasks.cancel(canceled, "")
    stopped = await submit()
    job = await hand.begin()
    await tasks.cancel(stopped, "")
    await hand.link.report([_acknowledged(job)])
    made["CANCELED"] = [canceled, stopped]
    made["RUNNING"] = [await submit()]
    await hand.begin()
    handed_out = await submit()
    hand.link.grant(1)
    await hand.take()
    made["QUEUED"] = [handed_out, await submit()]
    return made


def _acknowledged(job: Assignment) -> Transition:
    return Transition.cancel_acknowledged(job.seq, job.lease)


@pytest.mark.req("tq:LIST", "tq:FR-5", "tq:LOCK-24")
async def test_statuses_are_those_of_this_face(tasks: EngineTaskQueue, hand: Hand):
    made = await in_every_status(tasks, hand)
    order = ("DONE", "FAILED", "CANCELED", "RUNNING", "QUEUED")
    for names in [
        *((name,) for name in order),
        ("FAILED", "CANCELED"),
        ("DONE", "CANCELED"),
        ("QUEUED", "FAILED"),
        ("RUNNING", "QUEUED", "DONE"),
        order,
        (),
    ]:
        expected = [job_id for name in (names or order) for job_id in made[name]]
        expected.sort(key=[job_id for name in order for job_id in made[name]].index)
        statuses = frozenset(Status[name] for name in names)
        page = await tasks.list(Listing(statuses, ASC))
        assert ids(page) == expected, names
        assert ids(await tasks.list(Listing(statuses, DESC))) == expected[::-1], names
        shown = {job.job_id: job.status.name for job in page.jobs}
        assert shown == {i: name for name in names or order for i in made[name]}


@pytest.mark.req("tq:LIST", "tq:LOCK-7", "tq:LOCK-16")
@pytest.mark.parametrize("sort", Sort)
async def test_pages_by_offset_make_the_whole(engine: Engine, tasks: EngineTaskQueue, sort: Sort):
    for _ in range(3):  # at once, so that some share a millisecond
        await asyncio.gather(*(tasks.submit(Spec("any"), "") for _ in range(7)))
    whole = await tasks.list(Listing(sort=sort))
    assert (len(whole.jobs), whole.next_offset) == (21, None)
    sign = 1 if sort is ASC else -1
    assert list(whole.jobs) == sorted(
        whole.jobs, key=lambda job: (sign * job.created_at_ms, job.job_id)
    )
    for size in (1, 5, 7, 20):
        found: list[str] = []
        offset: int | None = 0
        while offset is not None:
            page = await tasks.list(Listing(sort=sort, offset=offset, limit=size))
            found += ids(page)
            assert page.next_offset in (None, offset + size)
            offset = page.next_offset
        assert found == ids(whole)
    assert (await tasks.list(Listing(sort=sort, limit=21))).next_offset is None
    assert await tasks.list(Listing(sort=sort, offset=10**18 - 1)) == SummaryPage(())


@pytest.mark.req("tq:LIST")
async def test_a_listed_job_is_the_one_that_status_shows(tasks: EngineTaskQueue, hand: Hand):
    await in_every_status(tasks, hand)
    for job in (await tasks.list(Listing())).jobs:
        assert job == (await tasks.status(job.job_id)).summary
