"""Workers get jobs of the types that they know, and nobody pays for what others know."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import Assignment, JobSpec, NewJob, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Claim
from tests import patience
from tests.engine.rig import Rig, Worker, until

NO_SAFETY_NET = 3_600.0


def known(*types: str) -> dict[str, Any]:
    return {"types": frozenset(types)}


class Claims:
    """Counts what the scheduler asks of the store in cycles of its own."""

    def __init__(self, rig: Rig) -> None:
        self.asked: list[list[Claim]] = []
        self._claim = rig.memory.jobs.claim
        rig.memory.jobs.claim = self._counted  # type: ignore[method-assign]

    async def _counted(self, claims: Sequence[Claim]) -> list[Assignment]:
        self.asked.append(list(claims))
        return await self._claim(claims)

    def workers(self) -> set[str]:
        """For whom something was asked."""
        return {worker for claims in self.asked for claim in claims for worker in claim.slots}


async def submit(rig: Rig, *types: str) -> list[str]:
    results = await rig.engine.submit([JobSpec(payload=b"x", type=type) for type in types])
    return [result.unwrap() for result in results]


@pytest.fixture(params=["serial", "parallel"])
async def rig(request: pytest.FixtureRequest, open_rig: Any) -> Rig:
    """Without the safety net: what is handed out is handed out because somebody said so."""
    rig: Rig = await open_rig(interval=NO_SAFETY_NET)
    rig.memory.parallel = request.param == "parallel"
    return rig


# -- registration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "said"),
    [
        (frozenset(), "types: name at least one"),
        (frozenset(f"t{n}" for n in range(5_001)), "types: 5001 are too many; at most 5000"),
        (frozenset({"x" * 201}), "types: 1 to 200 characters"),
        (frozenset({"\ud800"}), "types: has a lone surrogate"),
    ],
)
async def test_a_list_of_types_is_checked(rig: Rig, types: frozenset[str], said: str):
    with pytest.raises(InvalidArgument, match=said):
        await rig.worker(types=types)
    assert await rig.engine.list_workers() == []


async def test_a_worker_that_registers_again_is_taken_as_it_now_is(rig: Rig):
    old = await rig.worker("w", slots=5, **known("a"))
    b = (await submit(rig, "b"))[0]
    new = await rig.worker("w", slots=5, incarnation=2, **known("b"))
    assert (await new.gets_one()).id == b
    (a,) = await submit(rig, "a")
    assert await rig.state(a) is State.PENDING
    assert old.got == new.got == []
    (worker,) = await rig.engine.list_workers()
    assert worker.info.types == frozenset("b")


async def test_the_same_process_may_say_other_types(rig: Rig):
    await rig.worker("w", slots=5, **known("a"))
    again = await rig.worker("w", slots=5, **known("a", "b"))
    await submit(rig, "a", "b")
    assert sorted(one.type for one in await again.gets(2)) == ["a", "b"]


async def test_equal_lists_are_one_object(rig: Rig):
    for n in range(3):
        await rig.worker(f"w{n}", types=frozenset(["a", f"b{n // 2}"]))
    first, second, third = (
        rig.session(f"w{n}").info.types  # type: ignore[union-attr]
        for n in range(3)
    )
    assert first is second
    assert third == {"a", "b1"}


# -- who gets what -----------------------------------------------------------------------------


async def test_a_job_waits_for_a_worker_that_knows_it(rig: Rig):
    knows_a = await rig.worker("a", slots=5, **known("a"))
    ids = await submit(rig, *["b"] * 3, "a")
    assert (await knows_a.gets_one()).id == ids[3]
    knows_b = await rig.worker("b", slots=5, **known("b"))
    assert [one.id for one in await knows_b.gets(3)] == ids[:3]
    assert knows_a.got == []


async def test_a_worker_without_a_list_takes_every_type(rig: Rig):
    every = await rig.worker("every", slots=5)
    await submit(rig, "", "a", "b")
    assert sorted(one.type for one in await every.gets(3)) == ["", "a", "b"]


async def test_a_dry_scope_does_not_hold_back_another(rig: Rig):
    """The first looks in vain again and again; the second gets what it knows at once."""
    await rig.worker("a", slots=5, **known("a"))
    knows_b = await rig.worker("b", slots=1, **known("b"))
    for _ in range(20):
        (job_id,) = await submit(rig, "b")
        one = await knows_b.gets_one()
        assert one.id == job_id
        await knows_b.succeed(one, freed=1)


async def test_a_freed_slot_takes_what_waits_for_it(rig: Rig):
    worker = await rig.worker("ab", slots=1, **known("a", "b"))
    await rig.worker("c", slots=5, **known("c"))
    await submit(rig, "d", "b", "a", "d", "b")
    for type in "bab":
        one = await worker.gets_one()
        assert one.type == type
        await worker.succeed(one, freed=1)


async def test_the_batch_is_too_small_for_every_list(open_rig: Any):
    """Twenty lists, two slots in a batch: every one is asked about in the end."""
    rig: Rig = await open_rig(interval=NO_SAFETY_NET, batch_size=2)
    workers = [await rig.worker(f"w{n}", slots=3, **known(f"t{n}")) for n in range(20)]
    await submit(rig, *(f"t{n % 20}" for n in range(60)))
    for n, worker in enumerate(workers):
        assert {one.type for one in await worker.gets(3)} == {f"t{n}"}


async def test_slots_that_come_free_together_are_all_used(open_rig: Any):
    """Reports of many workers in one write; the batch has room for one of them."""
    rig: Rig = await open_rig(interval=NO_SAFETY_NET, batch_size=1)
    workers = [await rig.worker(f"w{n}", slots=1, **known(f"t{n}")) for n in range(5)]
    await submit(rig, *(f"t{n % 5}" for n in range(10)))
    first = [await worker.gets_one() for worker in workers]
    await asyncio.gather(
        *(worker.succeed(one, freed=1) for worker, one in zip(workers, first, strict=True))
    )
    for worker in workers:
        await worker.gets_one()


async def test_who_knows_less_goes_first_among_equals(rig: Rig):
    """So that the one that knows more is still free for what only it knows."""
    both = await rig.worker("both", slots=1, **known("a", "b"))
    only_a = await rig.worker("only-a", slots=1, **known("a"))
    every = await rig.worker("every", slots=1)
    await submit(rig, "a", "b", "c")
    assert (await only_a.gets_one()).type == "a"
    assert (await both.gets_one()).type == "b"
    assert (await every.gets_one()).type == "c"


@pytest.mark.parametrize("seed", range(4))
async def test_no_wake_up_is_lost_with_types(open_rig: Any, seed: int):
    rng = random.Random(seed)
    rig: Rig = await open_rig(interval=NO_SAFETY_NET, batch_size=rng.choice([1, 3, 100]))
    rig.memory.parallel = bool(seed % 2)
    kinds = ["", "a", "b", "c"]
    lists: list[Any] = [("a",), ("b",), ("", "c"), ("a", "b"), None]
    total, done = 150, 0
    workers = [
        await rig.worker(
            f"w{n}", slots=rng.choice([0, 1, 4]), types=None if one is None else frozenset(one)
        )
        for n, one in enumerate(lists)
    ]

    async def produce() -> None:
        left = total
        while left:
            count = min(left, rng.choice([1, 1, 2, 7, 30]))
            left -= count
            await submit(rig, *(rng.choice(kinds) for _ in range(count)))
            if rng.random() < 0.3:
                await asyncio.sleep(0.001)

    async def work(worker: Worker) -> None:
        nonlocal done
        worker.link.grant(1)
        while done < total:
            if not worker.got:
                await asyncio.sleep(0)
                continue
            held, worker.got = worker.got, []
            types = worker.info.types
            assert all(types is None or one.type in types for one in held)
            reports = [Transition.succeeded(a.seq, a.lease, None) for a in held]
            done += len(held)
            if rng.random() < 0.5:
                await worker.link.report(reports, freed=len(held))
            else:
                await worker.link.report(reports)
                worker.link.grant(len(held))

    async with patience.timeout(20):
        await asyncio.gather(produce(), *(work(worker) for worker in workers))


# -- what it costs -----------------------------------------------------------------------------


async def test_a_job_of_a_type_that_others_know_costs_nobody_else_a_claim(rig: Rig):
    for n in range(100):
        await rig.worker(f"w{n}", slots=1, **known(f"t{n}"))
    await until(lambda: len(rig.engine._scheduler._dry) == 100)
    claims = Claims(rig)
    await submit(rig, "t7")
    await until(lambda: not rig.engine._scheduler._wake.is_set())
    assert claims.workers() <= {"w7"}


async def test_jobs_that_nobody_knows_cost_no_claim(rig: Rig):
    await rig.worker("w", slots=5, **known("a"))
    await submit(rig, "a")
    await until(lambda: not rig.engine._scheduler._wake.is_set())
    claims = Claims(rig)
    for _ in range(10):
        await submit(rig, "stranger")
    await asyncio.sleep(0)
    assert claims.asked == []


async def test_a_hand_off_goes_to_who_knows_the_job(open_rig: Any):
    """One job, one slot of the batch: not spent on a worker that does not know it."""
    rig: Rig = await open_rig(interval=NO_SAFETY_NET)
    rig.memory.parallel = True
    for n in range(10):
        await rig.worker(f"w{n}", slots=1, **known(f"t{n}"))
    knows = await rig.worker("knows", slots=1, **known("x"))
    await until(lambda: len(rig.engine._scheduler._dry) == 11)
    claims = Claims(rig)
    await submit(rig, "x")
    assert [one.type for one in knows.got] == ["x"], "the submit itself handed it over"
    assert claims.asked == []


async def test_the_safety_net_looks_at_every_list_however_busy_another_is(open_rig: Any):
    """What became claimable without a word is found although somebody is woken all the time."""
    rig: Rig = await open_rig(interval=0.05)
    busy = await rig.worker("busy", slots=10, **known("a"))
    waiting = await rig.worker("waiting", slots=1, **known("b"))
    await until(lambda: len(rig.engine._scheduler._dry) == 2)
    (job_id,) = new_job_ids(1)
    await rig.memory.jobs.submit([NewJob(job_id, JobSpec(payload=b"x", type="b"))])
    async with patience.timeout(5):
        while not waiting.got:
            await submit(rig, "a")
            for one in await busy.gets(1):
                await busy.succeed(one, freed=1)
            await asyncio.sleep(0.001)


# -- the built-in pool -------------------------------------------------------------------------


async def test_the_pool_serves_its_own_types_and_leaves_an_apps_jobs_alone(rig: Rig):
    pool = await rig.worker("pool", slots=10, fallback=True, **known("", "echo"))
    ids = await submit(rig, *["add"] * 5, "", "echo")
    assert sorted(one.type for one in await pool.gets(2)) == ["", "echo"]
    assert pool.got == []
    app = await rig.worker("app", slots=10, **known("", "echo", "add"))
    assert [one.id for one in await app.gets(5)] == ids[:5]
    assert {one.attempt for one in app.got} <= {1}


async def test_the_pool_steps_aside_for_a_worker_that_knows_one_of_its_types(rig: Rig):
    pool = await rig.worker("pool", slots=10, fallback=True, **known("", "echo"))
    mine = await rig.worker("mine", slots=10, **known("", "add"))
    await submit(rig, "", "echo")
    assert (await mine.gets_one()).type == ""
    await mine.link.close()
    assert (await pool.gets_one()).type == "echo"


async def test_the_pool_stays_beside_a_worker_that_knows_none_of_its_types(rig: Rig):
    pool = await rig.worker("pool", slots=10, fallback=True, **known("", "echo"))
    mine = await rig.worker("mine", slots=10, **known("add"))
    await submit(rig, "add", "echo", "")
    assert sorted(one.type for one in await pool.gets(2)) == ["", "echo"]
    assert (await mine.gets_one()).type == "add"
