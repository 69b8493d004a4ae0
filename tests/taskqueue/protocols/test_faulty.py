"""The double itself: what it says went wrong went wrong."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.errors import DeadlineExceeded, Unavailable
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.model import Status
from jobqueue.taskqueue.components.state import ReadyQueue
from tests.taskqueue.protocols.faulty import (
    Failpoints,
    Hold,
    answers,
    fails,
    first,
    loses_reply,
    passes,
    then,
    twice,
)
from tests.taskqueue.protocols.rig import SPEC, Rig
from tests.taskqueue.protocols.virtual_time import virtual_time


class Parts:
    def __init__(self) -> None:
        self.queue = ReadyQueue()
        self.points = Failpoints()
        self.faulty = self.points.around(self.queue, "queue")

    async def add(self) -> bool:
        return await self.faulty.enqueue("a", 1, request_id="r")


@virtual_time
async def test_what_fails_did_not_happen_and_only_the_planned_call_fails():
    parts = Parts()
    parts.points.on("queue.enqueue", fails(), passes, fails(DeadlineExceeded("late")))
    with pytest.raises(Unavailable):
        await parts.add()
    assert len(parts.queue) == 0
    assert await parts.add()
    assert parts.points.unmet == ["queue.enqueue"]
    with pytest.raises(DeadlineExceeded):
        await parts.add()
    assert parts.points.unmet == []


@virtual_time
async def test_a_lost_reply_happened():
    parts = Parts()
    parts.points.on("queue.enqueue", loses_reply())
    with pytest.raises(Unavailable):
        await parts.add()
    assert len(parts.queue) == 1


@virtual_time
async def test_twice_is_the_same_request_two_times_and_notices_a_second_answer():
    parts = Parts()
    await parts.queue.enqueue("a", 1, request_id="x")
    await parts.queue.enqueue("b", 1, request_id="y")
    parts.points.on("queue.dequeue", twice, twice)
    assert await parts.faulty.dequeue("w", request_id="r") == "a"
    assert len(parts.queue) == 1
    await parts.queue.enqueue("c", 1, request_id="z")
    with pytest.raises(AssertionError, match="when repeated"):
        await parts.faulty.dequeue("w", request_id="")  # nobody repeats an answer without an id


@virtual_time
async def test_a_hold_stands_before_or_after():
    parts = Parts()
    before, after = Hold(), Hold()
    parts.points.on("queue.enqueue", before.before)
    parts.points.on("queue.remove", after.after)
    adding = asyncio.create_task(parts.add())
    await before.reached.wait()
    assert len(parts.queue) == 0
    before.release()
    assert await adding
    removing = asyncio.create_task(parts.faulty.remove("a", request_id="q"))
    await after.reached.wait()
    assert len(parts.queue) == 0
    assert not removing.done()
    after.release()
    assert await removing


@virtual_time
async def test_hooks_run_before_and_after_and_an_answer_can_be_made_up():
    parts = Parts()
    seen: list[int] = []

    async def look() -> None:
        seen.append(len(parts.queue))

    parts.points.on("queue.enqueue", first(look), then(look), answers(False))
    assert await parts.add()
    assert await parts.add()
    assert seen == [0, 1]
    assert not await parts.faulty.enqueue("b", 1, request_id="s")


@virtual_time
async def test_points_have_names(rig: Rig):
    job_id = await rig.running()
    await rig.report(job_id)
    await rig.queue.enqueue("x", 1, rescue=True, request_id="")
    names = [call.point for call in rig.coordinator_calls.calls]
    assert names == [
        "queue.dequeue",
        "jobs.get",
        "jobs.transition QUEUED->RUNNING",
        "jobs.get",
        "results.store",
        "jobs.transition RUNNING->DONE",
    ]
    around = rig.gateway_calls.around(rig.queue, "queue")
    await around.enqueue("y", 1, rescue=True, request_id="")
    assert rig.gateway_calls.calls[-1].point == "queue.enqueue rescue"


@virtual_time
async def test_the_checker_finds_a_job_that_is_stranded(rig: Rig):
    created = await rig.ledger.create(SPEC, "", request_id="")
    with pytest.raises(AssertionError, match="nobody says so"):
        await rig.check()
    journal.anomaly("stranded", job_id=created.job_id)
    await rig.check()
    rig.accepted.add(created.job_id)
    with pytest.raises(AssertionError, match="never ended"):
        await rig.check()
    await rig.check(lenient=True)
    await rig.ledger.delete_if(created.job_id, Status.QUEUED, request_id="")
    with pytest.raises(AssertionError, match="gone"):
        await rig.check()


@virtual_time
async def test_the_checker_finds_an_end_without_an_envelope(rig: Rig):
    job_id = await rig.running()
    await rig.ledger.transition(
        job_id, Status.RUNNING, Status.DONE, actor="coordinator", request_id=""
    )
    with pytest.raises(AssertionError, match="without an envelope"):
        await rig.check()


@virtual_time
async def test_the_checker_finds_a_second_start(rig: Rig):
    job_id = await rig.running()
    await rig.report(job_id)
    await rig.check()
    call = rig.coordinator_calls.of("jobs.transition QUEUED->RUNNING")[0]
    call.keywords = {**call.keywords, "request_id": "another"}
    rig.coordinator_calls.calls.append(
        type(call)(call.point, call.arguments, {"request_id": "x"}, call.inner, call.answers)
    )
    with pytest.raises(AssertionError, match="started 2 times"):
        await rig.check()
