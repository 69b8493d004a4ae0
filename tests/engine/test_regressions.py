"""Defects that were found once, each by the shortest way to it."""

from __future__ import annotations

import asyncio
import math

import pytest
import pytest_asyncio

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import JobSpec, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueSpec
from jobqueue.core.retry import PROFILES
from tests import patience
from tests.engine.rig import PATIENCE, Rig, Unreliable, until


class Slow(Unreliable):
    """A store that can be held up right before a call, and goes on although its caller left."""

    def __init__(self, store) -> None:
        super().__init__(store)
        self.gates: dict[str, asyncio.Event] = {}
        self.entered: dict[str, asyncio.Event] = {}

    def hold(self, name: str) -> None:
        self.gates[name] = asyncio.Event()
        self.entered[name] = asyncio.Event()

    def wrapped(self, name: str, real):
        real = super().wrapped(name, real)
        if name not in self.gates:
            return real

        async def call(*args, **kwargs):
            self.entered[name].set()
            await self.gates[name].wait()
            return await real(*args, **kwargs)

        async def shielded(*args, **kwargs):
            return await asyncio.shield(asyncio.ensure_future(call(*args, **kwargs)))

        return shielded


@pytest_asyncio.fixture
async def rig(open_rig) -> Rig:
    return await open_rig(store=Slow)


@pytest.fixture
def slow(rig: Rig) -> Slow:
    assert isinstance(rig.store, Slow)
    return rig.store


async def test_a_caller_that_gives_up_strands_nobodys_jobs(rig: Rig, slow: Slow):
    """A cancel's write also claims; what it claimed must be delivered all the same."""
    await rig.engine._scheduler.stop()  # so that only that write can claim
    doomed = await rig.submit(b"doomed")
    other = await rig.submit(b"other")
    worker = await rig.worker(slots=1)
    slow.hold("jobs.apply")
    cancelling = asyncio.create_task(rig.engine.cancel(doomed))
    await slow.entered["jobs.apply"].wait()
    cancelling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelling
    slow.gates["jobs.apply"].set()
    assert (await worker.gets_one()).id == other


async def test_a_job_that_comes_while_the_only_slot_is_promised_is_not_forgotten(open_rig):
    rig: Rig = await open_rig(interval=60.0, store=Slow)
    store = rig.store
    assert isinstance(store, Slow)
    store.hold("jobs.claim")
    worker = await rig.worker(slots=1)
    await store.entered["jobs.claim"].wait()
    job_id = await rig.submit()  # finds no free slot
    # The claim under way was made before the submit: it comes back empty.
    real = rig.memory.jobs.claim
    rig.memory.jobs.claim = _nothing  # type: ignore[method-assign]
    store.gates["jobs.claim"].set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rig.memory.jobs.claim = real  # type: ignore[method-assign]
    assert (await worker.gets_one()).id == job_id


async def _nothing(claims):
    return []


@pytest.mark.parametrize("complete", [True, False])
async def test_a_list_that_is_not_complete_loses_nothing(rig: Rig, complete: bool):
    worker, running = await rig.running()
    for _ in range(3):
        worker.link.pulse([], [], complete)
    await asyncio.sleep(0.05)
    expected = State.FAILED if complete else State.RUNNING
    assert await rig.state(running.id) is expected


async def test_what_never_reached_the_worker_is_handed_out_again_without_a_failure(rig: Rig):
    worker = await rig.worker(slots=1)
    job_id = await rig.submit(max_retries=0)
    await worker.gets_one()
    for _ in range(2):
        worker.link.pulse([])
    job = await rig.reaches(job_id, State.PENDING)
    assert job.retry_count == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("field", ["ran_for", "retry_after"])
async def test_a_report_with_an_impossible_number_is_refused_alone(
    rig: Rig, field: str, value: float
):
    worker, running = await rig.running()
    report = Transition.failed(running.seq, running.lease, "boom")
    setattr(report, field, value)
    with pytest.raises(InvalidArgument, match=field):
        await worker.link.report([report])
    assert await rig.state(running.id) is State.RUNNING


async def test_a_cancelled_assignment_counts_once_against_the_load(rig: Rig):
    """Else a worker whose jobs were cancelled would look idler than idle."""
    one = await rig.worker("one", slots=1)
    for n in range(3):
        job_id = await rig.submit(b"%d" % n)
        a = await one.gets_one()
        await rig.engine.cancel(job_id)
        await one.link.report([Transition.cancel_acknowledged(a.seq, a.lease)], freed=1)
    await one.link.drain()
    two = await rig.worker("two", slots=4)
    one.link.grant(4)
    await rig.engine.submit([JobSpec(payload=b"%d" % n) for n in range(4)])
    assert len(await one.gets(2)) == len(await two.gets(2)) == 2


async def test_one_bad_row_does_not_stop_the_sweep(rig: Rig):
    """A retry profile of a newer version, say."""
    worker = await rig.worker(slots=2)
    first, second = await rig.submit(b"1"), await rig.submit(b"2")
    for a in await worker.gets(2):
        await worker.fail(a)
    queue = rig.memory._contents.queues["default"].settings
    queue.retry_profile = "of-tomorrow"
    rig.clock.advance(PROFILES["default"].cap)
    await rig.reaches(first, State.PENDING)
    await rig.reaches(second, State.PENDING)
    worker.link.grant(1)
    a = await worker.gets_one()
    assert await worker.fail(a)  # and its failure is retried by the default profile


async def test_a_defect_in_one_move_spares_the_others(rig: Rig):
    worker = await rig.worker(slots=2)
    bad, good = await rig.submit(b"bad"), await rig.submit(b"good")
    for a in await worker.gets(2):
        await worker.fail(a)
    seq = (await rig.engine.get(bad)).seq
    real = rig.memory.jobs._move

    def move(asked, now, freed):
        if asked.seq == seq:
            raise RuntimeError("a defect")
        return real(asked, now, freed)

    rig.memory.jobs._move = move  # type: ignore[method-assign]
    rig.clock.advance(PROFILES["default"].cap)
    await rig.reaches(good, State.PENDING)
    assert await rig.state(bad) is State.FAILED
    rig.memory.jobs._move = real  # type: ignore[method-assign]
    await rig.reaches(bad, State.PENDING)


async def test_a_clock_that_is_set_back_does_not_stop_the_sweeper(rig: Rig):
    job_id = await rig.submit(delay=10.0)
    real = rig.memory.upkeep.due
    jumped = asyncio.Event()

    async def due(limit: int):
        answer = await real(limit)
        if not jumped.is_set():
            jumped.set()
            rig.clock.advance(-3_600.0)  # while a sweep is under way
        return answer

    rig.memory.upkeep.due = due  # type: ignore[method-assign]
    await jumped.wait()
    await asyncio.sleep(0.05)
    rig.clock.advance(3_611.0)
    worker = await rig.worker(slots=1)
    assert (await worker.gets_one()).id == job_id


async def test_a_clock_that_is_set_forward_makes_nobody_silent(open_rig):
    rig: Rig = await open_rig(heartbeat_timeout=2.0)
    await asyncio.sleep(2.1)  # it judges by now
    _, running = await rig.running()
    rig.clock.advance(3_600.0)
    await asyncio.sleep(0.2)
    assert await rig.state(running.id) is State.RUNNING


async def test_workers_that_are_long_gone_are_forgotten(open_rig):
    rig: Rig = await open_rig(heartbeat_timeout=0.2)
    await rig.worker("yesterday")
    rig.clock.advance(0.5)
    async with patience.timeout(PATIENCE):
        while (await rig.engine.list_workers())[0].status.value != "OFFLINE":
            await asyncio.sleep(0.01)
    rig.clock.advance(2 * 86_400.0)

    async def gone() -> bool:
        return not await rig.engine.list_workers()

    async with patience.timeout(PATIENCE):
        while not await gone():
            await asyncio.sleep(0.01)


async def test_the_goodbye_of_an_old_incarnation_does_not_remove_the_new_one(rig: Rig):
    old = await rig.worker("w", incarnation=1)
    new = await rig.worker("w", incarnation=2, slots=1)
    await old.link.close()
    await rig.submit()
    await until(lambda: len(new.got) == 1)
    assert [w.info.incarnation for w in await rig.engine.list_workers()] == [2]


async def test_a_batch_too_small_for_every_scope_leaves_none_behind(open_rig):
    rig: Rig = await open_rig(interval=60.0, batch_size=1)
    for name in ("a", "b"):
        await rig.engine.create_queue(QueueSpec(name=name))
    await rig.engine.pause_queue("b")
    await rig.worker("first", queues=("a",), slots=1)
    second = await rig.worker("second", queues=("b",), slots=1)
    job_id = await rig.submit(queue="b")
    await asyncio.sleep(0.05)
    await rig.engine.resume_queue("b")  # one wake-up, and the first scope takes the whole batch
    assert (await second.gets_one()).id == job_id


async def test_a_lease_that_ended_without_its_worker_is_no_load(rig: Rig):
    """The worker may never report on it."""
    one = await rig.worker("one", slots=3)
    jobs = [await rig.submit(b"%d" % n) for n in range(3)]
    await one.gets(3)
    for job_id in jobs:
        await rig.engine.cancel(job_id)
    two = await rig.worker("two", slots=3)
    one.link.grant(3)
    await rig.engine.submit([JobSpec(payload=b"%d" % n) for n in range(4)])
    assert len(await one.gets(2)) == len(await two.gets(2)) == 2
