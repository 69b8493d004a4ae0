"""QUEUED jobs that are in no queue, because a process died between two calls, are found and end."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.errors import Unavailable
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.model import (
    CANCELED_UNSTARTED,
    DEFAULT_PAGE_SIZE,
    Canceled,
    Envelope,
    Status,
)
from tests.taskqueue.protocols.faulty import fails, first
from tests.taskqueue.protocols.rig import SPEC, Rig
from tests.taskqueue.protocols.virtual_time import virtual_time

Q, R, D, F, C = Status

pytestmark = pytest.mark.req("tq:NFR-5")


async def taken(rig: Rig) -> str:
    """A job that a coordinator took from the queue before it was killed."""
    job_id = await rig.submit()
    assert await rig.queue.dequeue("w", request_id="") == job_id
    rig.new_coordinator()
    return job_id


@pytest.mark.req("tq:DISPATCH")
@virtual_time
async def test_a_job_that_a_killed_coordinator_had_taken_is_put_back(rig: Rig):
    job_id = await taken(rig)
    await rig.reconciler.round()
    assert await rig.work_off() == []  # it may be on its way
    await rig.reconciler.round()
    (line,) = rig.lines.of(journal.NOT_IN_QUEUE)
    assert (line.__dict__["job_id"], line.levelname) == (job_id, "WARNING")
    assert await rig.work_off() == [job_id]
    await rig.check()


@pytest.mark.req("tq:SUBMIT")
@virtual_time
async def test_a_job_that_a_killed_gateway_had_created_is_queued(rig: Rig):
    job_id = (await rig.ledger.create(SPEC, "", request_id="")).job_id
    rig.new_gateway()
    await rig.reconcile()
    assert await rig.work_off() == [job_id]
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:TERMINAL")
@pytest.mark.parametrize("stored", [True, False], ids=["envelope stored", "only removed"])
@virtual_time
async def test_a_cancel_that_a_killed_gateway_left_half_way_is_finished_if_it_left_a_trace(
    rig: Rig, stored
):
    job_id = await rig.submit()
    await rig.queue.remove(job_id, request_id="")
    if stored:
        await rig.shelf.store(Envelope(job_id, C, output_summary=CANCELED_UNSTARTED), request_id="")
    rig.new_gateway()
    await rig.reconcile()
    assert rig.lines.of(journal.NOT_IN_QUEUE, job_id)
    assert await rig.work_off() == ([] if stored else [job_id])
    assert await rig.status(job_id) is (C if stored else D)
    await rig.check()


@pytest.mark.req("tq:CANCEL")
@virtual_time
async def test_one_cancel_of_a_missing_job_is_finished_by_the_reconciler(rig: Rig):
    job_id = await taken(rig)
    assert await rig.gateway.cancel(job_id, "") == Canceled(job_id, True, Q, False)
    await rig.reconcile()
    assert await rig.status(job_id) is C
    assert await rig.work_off() == []
    await rig.check()


@pytest.mark.req("tq:CANCEL")
@virtual_time
async def test_a_second_cancel_of_a_missing_job_ends_it(rig: Rig):
    job_id = await taken(rig)
    assert await rig.gateway.cancel(job_id, "") == Canceled(job_id, True, Q, False)
    assert await rig.gateway.cancel(job_id, "") == Canceled(job_id, True, C, False)
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:DISPATCH")
@virtual_time
async def test_a_second_cancel_that_loses_to_the_start_asks_the_running_job(rig: Rig):
    job_id = await rig.submit()
    await rig.queue.dequeue("w", request_id="")

    async def start() -> None:
        await rig.ledger.transition(job_id, Q, R, actor="coordinator", request_id="")

    rig.gateway_calls.on("jobs.transition QUEUED->CANCELED", first(start))
    assert [(await rig.gateway.cancel(job_id, "")).current for _ in range(2)] == [Q, R]
    await rig.report(job_id)
    assert await rig.status(job_id) is C


@virtual_time
async def test_a_job_that_is_only_on_its_way_is_left_alone(rig: Rig):
    job_id = await rig.submit()
    rig.coordinator_calls.on("jobs.get", first(rig.reconciler.round))
    assert (await rig.fetch()).job_id == job_id
    waiting = await rig.submit()
    await rig.reconciler.round()
    assert not rig.lines.of(journal.NOT_IN_QUEUE)
    await rig.report(job_id)
    assert await rig.work_off() == [waiting]
    await rig.check()


@virtual_time
async def test_a_whole_queue_that_was_lost_is_filled_again(rig: Rig):
    jobs = [await rig.submit() for _ in range(2 * DEFAULT_PAGE_SIZE + 20)]
    while await rig.queue.dequeue("w", request_id=""):
        pass
    await rig.reconcile()
    assert sorted(await rig.work_off()) == sorted(jobs)
    assert len(rig.lines.of(journal.NOT_IN_QUEUE)) == len(jobs)
    await rig.check()


@virtual_time
async def test_every_page_has_its_turn(rig: Rig):
    """Of many jobs that wait, one round looks at one page; what is missing further on is found."""
    for _ in range(2 * DEFAULT_PAGE_SIZE):
        await rig.submit()
    rig.clock.advance(1)  # those of one time are in the order of their ids
    last = await rig.submit()
    await rig.queue.remove(last, request_id="")
    await rig.reconciler.round()
    assert len(rig.gateway_calls.of("queue.contains")) == DEFAULT_PAGE_SIZE
    await rig.reconciler.round()
    await rig.reconciler.round()
    await rig.reconciler.round()
    assert len(rig.queue) == 2 * DEFAULT_PAGE_SIZE + 1


@pytest.mark.req("tq:SUBMIT")
@virtual_time
async def test_a_submit_that_is_not_undone_yet_is_undone_and_not_queued(rig: Rig):
    rig.gateway_calls.on("queue.enqueue", fails())
    rig.gateway_calls.on("jobs.delete_if", fails())
    with pytest.raises(Unavailable):
        await rig.submit()
    await rig.reconcile()
    assert await rig.jobs() == []
    assert len(rig.queue) == 0


@virtual_time
async def test_it_begins_at_once_and_goes_on_after_failures_that_it_tells_of_once(rig: Rig):
    job_id = await taken(rig)
    rig.gateway_calls.on("jobs.list", fails(), fails(Unavailable("down")))
    await rig.reconciler.start()
    await asyncio.sleep(0.5)
    assert len(rig.lines.of("reconcile_failed")) == 1
    await asyncio.sleep(4.0)
    await rig.reconciler.stop()
    await rig.reconciler.stop()
    assert len(rig.lines.of("reconcile_failed")) == 1
    assert await rig.work_off() == [job_id]
    await rig.check()
