"""Limits of a queue, set and seen through every face, on every deployment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests import patience
from tests.api.public.conftest import ConnectHand
from tests.api.public.face import PublicFace, Spec
from tests.api.public.hand import PATIENCE


async def submit(face: PublicFace) -> str:
    return (await face.submit(Spec(queue="mail"))).job_id


async def until(said: Callable[[], Awaitable[object]], expected: object) -> None:
    """Wait for an answer, because a server's figures of limits may be a second old."""
    async with patience.timeout(PATIENCE):
        while await said() != expected:
            await asyncio.sleep(0.05)


async def test_a_limit_is_set_changed_and_taken_away(face: PublicFace) -> None:
    await face.create_queue("mail", max_running=5, rate=100, rate_period=60.0, rate_burst=10)
    seen = await face.queue("mail")
    assert (seen.max_running, seen.rate, seen.rate_period, seen.rate_burst) == (5, 100, 60.0, 10)
    changed = await face.update_queue("mail", max_running=7, rate=0)
    for queue in (changed, await face.queue("mail")):
        assert (queue.max_running, queue.rate, queue.rate_period) == (7, None, None)
        assert (queue.rate_burst, list(queue.held_back)) == (None, [])
    assert (await face.update_queue("mail", max_running=None)).max_running is None


async def test_a_limit_of_running_jobs_holds_jobs_back_and_says_so(
    face: PublicFace, connect_hand: ConnectHand
) -> None:
    await face.create_queue("mail", max_running=2)
    hand = await connect_hand(queues=("mail",), slots=5)
    jobs = [await submit(face) for _ in range(4)]
    first, second = [await hand.take() for _ in range(2)]
    await hand.start(first)
    assert {first.id, second.id} == set(jobs[:2])

    async def held_back() -> object:
        return list((await face.queue("mail")).held_back)

    async def hint() -> str:
        return (await face.get(jobs[3])).hint

    await until(held_back, [("max_running", 2, None, "")])
    await until(hint, "waits until a job of queue 'mail' ends: 2 run, and max_running is 2")
    assert hand.jobs.empty()
    await hand.succeed(first)
    third = await hand.take()
    assert third.id == jobs[2]
    assert hand.jobs.empty()
    await face.update_queue("mail", max_running=3)
    fourth = await hand.take()
    assert fourth.id == jobs[3]
    await until(held_back, [])
    await until(hint, "")


async def test_a_rate_limit_holds_jobs_back_and_lets_them_go(
    face: PublicFace, connect_hand: ConnectHand
) -> None:
    await face.create_queue("mail", rate=1, rate_period=3_600.0)
    hand = await connect_hand(queues=("mail",), slots=5)
    first, second = [await submit(face) for _ in range(2)]
    assert (await hand.take()).id == first

    async def limit() -> object:
        return [one[:2] for one in (await face.queue("mail")).held_back]

    await until(limit, [("rate", 1)])
    ((_, _, opens_in, _),) = (await face.queue("mail")).held_back
    assert opens_in is not None
    assert 3_000 < opens_in <= 3_600
    assert "waits for the rate limit of queue 'mail'" in (await face.get(second)).hint
    await face.update_queue("mail", rate_period=0.2)
    assert (await hand.take()).id == second


async def test_limits_and_weights_of_keys_are_set_and_hold(
    face: PublicFace, connect_hand: ConnectHand
) -> None:
    await face.create_queue(
        "mail", key_max_running=1, key_rate=100, key_rate_period=60.0, key_rate_burst=50,
        key_weights={"tenant:1": 5, "*": 1},
    )  # fmt: skip
    seen = await face.queue("mail")
    assert (seen.key_max_running, seen.key_rate, seen.key_rate_period) == (1, 100, 60.0)
    assert (seen.key_rate_burst, seen.key_weights) == (50, {"tenant:1": 5, "*": 1})
    hand = await connect_hand(queues=("mail",), slots=5)
    keys = ("tenant:1", "tenant:1", "tenant:2", None)
    specs = [Spec(queue="mail", concurrency_key=key) for key in keys]
    one, two, three, four = [(await face.submit(spec)).job_id for spec in specs]
    assert [(await face.get(id)).concurrency_key for id in (one, four)] == ["tenant:1", None]
    taken = [await hand.take() for _ in range(3)]
    assert {job.id for job in taken} == {one, three, four}

    async def held_back() -> object:
        return list((await face.queue("mail")).held_back)

    await until(held_back, [("key_max_running", 1, None, "tenant:1")])
    assert "key 'tenant:1' in queue 'mail'" in (await face.get(two)).hint
    changed = await face.update_queue("mail", key_max_running=2, key_weights=None, key_rate=0)
    assert (changed.key_weights, changed.key_rate, changed.key_rate_burst) == (None, None, None)
    assert (await hand.take()).id == two
