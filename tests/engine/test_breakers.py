"""A worker gets no jobs of a type that it has paused, and one job for each trial."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.errors import InvalidArgument, Unavailable
from jobqueue.core.job import Assignment, JobSpec, Transition
from jobqueue.core.queue import QueueSpec
from tests.engine.rig import Rig, Worker

NO_SAFETY_NET = 3_600.0
TYPES = frozenset({"pay", "other"})


def paused(trial: int = 0, failures: int = 10, until: float = 1e10) -> OpenBreaker:
    return OpenBreaker("pay", failures, until, trial)


@pytest.fixture(params=["serial", "parallel"])
async def rig(request: pytest.FixtureRequest, open_rig: Any) -> Rig:
    rig: Rig = await open_rig(interval=NO_SAFETY_NET)
    rig.memory.parallel = request.param == "parallel"
    return rig


async def submit(rig: Rig, *types: str) -> list[str]:
    results = await rig.engine.submit([JobSpec(payload=b"x", type=type) for type in types])
    return [result.unwrap() for result in results]


async def quiet(worker: Worker) -> list[Assignment]:
    """Return the worker's jobs when the engine has nothing more to do."""
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)
    return worker.got


async def test_jobs_of_a_paused_type_wait_and_others_go_on(rig: Rig) -> None:
    worker = await rig.worker("w", slots=3, types=TYPES)
    worker.link.set_breakers([paused()])
    await submit(rig, "pay", "other", "pay", "other")
    assert [one.type for one in await worker.gets(2)] == ["other", "other"]
    assert await quiet(worker) == []
    worker.link.set_breakers([])
    assert (await worker.gets_one()).type == "pay"


async def test_the_report_that_opens_a_breaker_claims_no_further_job(rig: Rig) -> None:
    worker = await rig.worker("w", slots=1, types=TYPES)
    await submit(rig, "pay", "pay")
    one = await worker.gets_one()
    worker.link.set_breakers([paused()])
    await worker.link.report([Transition.failed(one.seq, one.lease, "away")], freed=1)
    assert await quiet(worker) == []


async def test_other_workers_take_a_type_that_one_has_paused(rig: Rig) -> None:
    worker = await rig.worker("w", slots=3, types=TYPES)
    worker.link.set_breakers([paused()])
    healthy = await rig.worker("healthy", slots=3, types=TYPES)
    await submit(rig, "pay", "pay")
    assert len(await healthy.gets(2)) == 2
    assert await quiet(worker) == []


@pytest.mark.parametrize("slots", [1, 5])
async def test_one_job_is_given_for_each_trial(rig: Rig, slots: int) -> None:
    worker = await rig.worker("w", slots=slots, types=TYPES)
    worker.link.set_breakers([paused()])
    await submit(rig, *["pay"] * 4)
    for trial in (1, 2):
        worker.link.set_breakers([paused(trial)])
        one = await worker.gets_one()
        assert one.type == "pay"
        worker.link.set_breakers([paused(trial, failures=11)])  # the same trial
        await worker.succeed(one, freed=1)
        assert await quiet(worker) == []
    worker.link.set_breakers([])
    assert len(await worker.gets(min(slots, 2))) == min(slots, 2)


@pytest.mark.parametrize("slots", [1, 3])
async def test_a_trial_without_a_job_keeps_no_slot_from_others(rig: Rig, slots: int) -> None:
    worker = await rig.worker("w", slots=slots, types=TYPES)
    worker.link.set_breakers([paused(1)])
    await submit(rig, *["other"] * slots)
    for one in await worker.gets(slots):
        assert one.type == "other"
        await worker.succeed(one, freed=1)
    await submit(rig, "pay", "pay")  # the trial still stands
    assert (await worker.gets_one()).type == "pay"
    assert await quiet(worker) == []


async def test_a_claim_that_fails_leaves_the_trial(open_rig: Any) -> None:
    rig: Rig = await open_rig(interval=0.01)
    worker = await rig.worker("w", slots=2, types=TYPES)
    worker.link.set_breakers([paused()])
    await submit(rig, "pay")
    rig.store.fail["jobs.claim"] = [Unavailable("away")] * 2
    worker.link.set_breakers([paused(1)])
    assert (await worker.gets_one()).type == "pay"


async def test_a_worker_may_pause_all_its_types(rig: Rig) -> None:
    worker = await rig.worker("w", slots=2, types=frozenset({"pay"}))
    worker.link.set_breakers([paused()])
    await submit(rig, "pay", "other")
    assert await quiet(worker) == []
    worker.link.set_breakers([paused(1)])
    assert (await worker.gets_one()).type == "pay"


async def test_breakers_are_recorded_and_gone_with_the_next_registration(rig: Rig) -> None:
    async def known() -> tuple[OpenBreaker, ...]:
        (worker,) = await rig.engine.list_workers()
        return worker.breakers

    worker = await rig.worker("w", slots=1, types=TYPES)
    for breakers in ([paused()], [paused(1)]):
        worker.link.set_breakers(breakers)
        await quiet(worker)
        assert await known() == tuple(breakers)
    again = await rig.worker("w", slots=1, types=TYPES)
    assert await known() == ()
    await submit(rig, "pay")
    assert (await again.gets_one()).type == "pay"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobqueue.core.waiting.RECENT", -1.0)


@pytest.mark.usefixtures("fresh")
async def test_a_waiting_job_says_that_its_type_is_paused_everywhere(rig: Rig) -> None:
    worker = await rig.worker("w", slots=1, types=TYPES)
    other = await rig.worker("other", types=TYPES)
    worker.link.set_breakers([paused(until=rig.clock.now() + 30)])
    (job_id,) = await submit(rig, "pay")
    await quiet(worker)

    async def hint() -> str:
        return (await rig.engine.get(job_id)).hint

    assert await hint() == "", "another worker takes it"
    elsewhere = await rig.worker("elsewhere", queues=("elsewhere",), types=TYPES)
    other.link.set_breakers([paused(until=rig.clock.now() + 20)])
    await quiet(worker)
    assert await hint() == (
        "the workers of type 'pay' take no jobs after 10 failed attempts in a row (breaker); in"
        " 20 s they try one job"
    )
    (stats,) = await rig.engine.list_queues()
    assert stats.unserved == (), "its workers are connected"
    await rig.engine.create_queue(QueueSpec(name="far"))
    far = await rig.submit(type="pay", queue="far")
    assert "no connected worker takes jobs from queue 'far'" in (await rig.engine.get(far)).hint
    await elsewhere.link.close()


@pytest.mark.parametrize("until", [float("nan"), -1.0, 1e300])
async def test_a_pause_without_a_possible_end_is_refused(rig: Rig, until: float) -> None:
    worker = await rig.worker("w", slots=1, types=TYPES)
    with pytest.raises(InvalidArgument, match=r"breakers\.until: must be a time"):
        worker.link.set_breakers([paused(until=until)])
    await submit(rig, "pay")
    assert (await worker.gets_one()).type == "pay"


async def test_types_that_a_worker_does_not_have_are_left_out(rig: Rig) -> None:
    worker = await rig.worker("w", slots=1, types=TYPES)
    worker.link.set_breakers([OpenBreaker("x" * 999, 3, 7.0), paused(), paused(failures=11)])
    await quiet(worker)
    (known,) = await rig.engine.list_workers()
    assert known.breakers == (paused(failures=11),)
    every = await rig.worker("every", slots=1)
    every.link.set_breakers([paused()])
    await submit(rig, "pay")
    assert (await every.gets_one()).type == "pay"
