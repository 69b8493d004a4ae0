"""A server's own pool leaves alone what other workers serve, and comes back when they leave."""

from __future__ import annotations

from jobqueue.core.job import JobSpec
from jobqueue.core.queue import QueueSpec
from tests.engine.rig import Rig


async def test_the_pool_steps_aside_while_another_worker_serves_the_queue(rig: Rig):
    pool = await rig.worker("pool", slots=10, fallback=True)
    mine = await rig.worker("mine", slots=2)
    ids = [await rig.submit(b"%d" % n) for n in range(4)]
    assert [a.id for a in await mine.gets(2)] == ids[:2]
    await mine.link.drain()
    assert {a.id for a in await pool.gets(2)} == set(ids[2:])


async def test_the_pool_takes_over_when_the_other_worker_leaves(rig: Rig):
    mine = await rig.worker("mine")
    pool = await rig.worker("pool", slots=1, fallback=True)
    job_id = await rig.submit()
    assert pool.got == []
    await mine.link.close()
    assert (await pool.gets_one()).id == job_id


async def test_a_pool_for_all_queues_leaves_out_just_the_served_ones(rig: Rig):
    for name in ("mail", "other"):
        await rig.engine.create_queue(QueueSpec(name=name))
    pool = await rig.worker("pool", slots=10, fallback=True, queues=("*",))
    await rig.worker("mine", queues=("mail",))
    await rig.submit(queue="mail")
    other = await rig.submit(queue="other")
    assert (await pool.gets_one()).id == other
    assert pool.got == []


async def test_two_pools_do_not_wait_for_each_other(rig: Rig):
    one = await rig.worker("one", slots=1, fallback=True)
    two = await rig.worker("two", slots=1, fallback=True)
    await rig.submit()
    await rig.submit()
    assert len(await one.gets(1)) == len(await two.gets(1)) == 1


async def test_the_pool_takes_over_at_once_when_the_other_worker_is_drained(open_rig):
    """Without the safety net: at once."""
    rig: Rig = await open_rig(interval=3_600.0)
    pool = await rig.worker("pool", slots=2, fallback=True)
    mine = await rig.worker("mine", slots=1)
    ids = [await rig.submit() for _ in range(2)]
    assert [a.id for a in await mine.gets(1)] == ids[:1]
    await rig.engine.drain_worker("mine")
    assert (await pool.gets_one()).id == ids[1]


async def test_the_pool_takes_over_at_once_when_the_other_worker_drains_itself(open_rig):
    rig: Rig = await open_rig(interval=3_600.0)
    pool = await rig.worker("pool", slots=2, fallback=True)
    mine = await rig.worker("mine", slots=1)
    ids = [await rig.submit() for _ in range(2)]
    assert [a.id for a in await mine.gets(1)] == ids[:1]
    await mine.link.drain()
    assert (await pool.gets_one()).id == ids[1]


async def test_the_pool_takes_over_at_once_what_a_worker_knows_no_more(open_rig):
    rig: Rig = await open_rig(interval=3_600.0)
    pool = await rig.worker("pool", slots=2, fallback=True, types=frozenset({"a", "b"}))
    await rig.worker("mine", slots=1, types=frozenset({"a", "c"}))
    await rig.engine.submit([JobSpec(payload=b"x", type="b")])
    assert pool.got == []
    await rig.worker("mine", types=frozenset({"c"}))  # and has no free slot
    assert (await pool.gets_one()).type == "b"
