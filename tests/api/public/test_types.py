"""Workers that know some types of jobs, and jobs that nobody knows, through every face."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from jobqueue.core.errors import InvalidArgument
from tests import patience
from tests.api.public.conftest import ConnectHand
from tests.api.public.face import PublicFace, Spec
from tests.api.public.hand import PATIENCE


async def submit(face: PublicFace, type: str) -> str:
    return (await face.submit(Spec(type=type))).job_id


async def until(said: Callable[[], Awaitable[object]], expected: object) -> None:
    """What a server says of workers may be a second old."""
    async with patience.timeout(PATIENCE):
        while await said() != expected:
            await asyncio.sleep(0.05)


async def test_a_worker_gets_jobs_of_its_types(face: PublicFace, connect_hand: ConnectHand) -> None:
    some = await connect_hand(worker_id="some", types=("b", ""), slots=5)
    every = await connect_hand(worker_id="every")
    first, second, third = [await submit(face, type) for type in ("a", "b", "")]
    # Two claims may be under way at once: which of two free slots hears first is not said.
    assert {(await some.take()).id for _ in range(2)} == {second, third}
    assert (await every.run()).id == first
    seen = {worker.worker_id: worker.types for worker in await face.workers()}
    assert seen == {"some": ["", "b"], "every": None}


async def test_a_job_that_nobody_takes_says_so(face: PublicFace, connect_hand: ConnectHand) -> None:
    job_id = await submit(face, "a")
    assert (await face.get(job_id)).hint == "no connected worker takes jobs from queue 'default'"
    await connect_hand(worker_id="b", types=("b",))

    async def hint() -> str:
        return (await face.get(job_id)).hint

    await until(hint, "no connected worker takes type 'a' from queue 'default'")
    assert (await face.wait(job_id, 0.05)).hint
    assert [job.hint for job in (await face.list()).jobs] == [""]
    knows = await connect_hand(worker_id="a", types=("a",))
    await until(hint, "")
    assert (await knows.run()).id == job_id
    done = await face.get(job_id)
    assert (done.state, done.attempt, done.hint) == ("DONE", 1, "")


async def test_a_queue_lists_the_types_that_nobody_takes(
    face: PublicFace, connect_hand: ConnectHand
) -> None:
    await connect_hand(worker_id="b", types=("b",))
    for type in ("a", "", "a", "b"):
        await submit(face, type)

    async def unserved() -> object:
        return list((await face.queue("default")).unserved)

    async def of_all() -> object:
        return [list(queue.unserved) for queue in await face.queues()]

    await until(unserved, [("a", 2), ("", 1)])
    await until(of_all, [[("a", 2), ("", 1)]])
    await connect_hand(worker_id="a", types=("a",))
    await until(unserved, [("", 1)])


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ([f"t{n}" for n in range(5_001)], "5001 are too many; at most 5000 are allowed"),
        (["x" * 201], "1 to 200 characters are allowed"),
    ],
)
async def test_a_list_of_types_that_is_refused(
    face: PublicFace, connect_hand: ConnectHand, types: list[str], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"types: {said}") as refused:
        await connect_hand(types=types)
    assert refused.value.field == "types"
    assert list(await face.workers()) == []
