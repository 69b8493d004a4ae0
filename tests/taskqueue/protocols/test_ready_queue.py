"""The owner of the order."""

from __future__ import annotations

import pytest

from jobqueue.taskqueue.components.state import ReadyQueue


class Asking:
    """Every call with an id of its own, unless one is given."""

    def __init__(self, queue: ReadyQueue) -> None:
        self.queue = queue
        self._count = 0

    def _id(self, request_id: str | None) -> str:
        self._count += 1
        return f"r{self._count}" if request_id is None else request_id

    async def add(
        self, job_id: str, *, rescue: bool = False, request_id: str | None = None
    ) -> bool:
        return await self.queue.enqueue(job_id, 1, rescue=rescue, request_id=self._id(request_id))

    async def take(self, request_id: str | None = None) -> str | None:
        return await self.queue.dequeue("w", request_id=self._id(request_id))

    async def remove(self, job_id: str, request_id: str | None = None) -> bool:
        return await self.queue.remove(job_id, request_id=self._id(request_id))

    async def rest(self) -> list[str]:
        found = []
        while (job_id := await self.take()) is not None:
            found.append(job_id)
        return found


@pytest.fixture
def queue() -> Asking:
    return Asking(ReadyQueue(max_queued=3))


@pytest.mark.req("tq:LOCK-31", "tq:LOCK-40")
async def test_first_in_first_out_and_what_is_taken_is_gone(queue: Asking):
    for job_id in "bac":
        assert await queue.add(job_id)
    assert await queue.rest() == ["b", "a", "c"]
    assert await queue.take() is None


@pytest.mark.req("tq:CODES")
async def test_a_job_is_in_the_queue_once_and_keeps_its_place(queue: Asking):
    for job_id in "aba":
        assert await queue.add(job_id)
    assert len(queue.queue) == 2
    assert await queue.rest() == ["a", "b"]


async def test_what_was_taken_can_come_again(queue: Asking):
    await queue.add("a")
    await queue.take()
    assert await queue.add("a")
    assert await queue.rest() == ["a"]


@pytest.mark.req("tq:CANCEL")
async def test_remove_says_whether_it_was_there(queue: Asking):
    for job_id in "abc":
        await queue.add(job_id)
    assert await queue.remove("b")
    assert not await queue.remove("b")
    assert not await queue.remove("never")
    assert await queue.rest() == ["a", "c"]


@pytest.mark.req("tq:NFR-5")
async def test_a_full_queue_refuses_and_drops_nothing(queue: Asking):
    for job_id in "abc":
        await queue.add(job_id)
    assert not await queue.add("d")
    assert await queue.add("b")  # it is there
    assert await queue.rest() == ["a", "b", "c"]


@pytest.mark.req("tq:NFR-5", "tq:LOCK-42")
async def test_what_a_lost_race_took_out_finds_room_again(queue: Asking):
    for job_id in "abc":
        await queue.add(job_id)
    assert await queue.add("d", rescue=True)
    assert await queue.rest() == ["a", "b", "c", "d"]


@pytest.mark.req("tq:CODES")
async def test_a_repeated_request_is_told_the_first_answer(queue: Asking):
    await queue.add("a", request_id="x")
    await queue.add("b")
    assert await queue.take("t") == "a"
    assert await queue.take("t") == "a"
    assert await queue.add("a", request_id="x")  # a late repetition must not bring it back
    assert len(queue.queue) == 1
    assert await queue.remove("b", "y")
    assert await queue.remove("b", "y")
    assert await queue.take("none") is None
    await queue.add("c")
    assert await queue.take("none") is None


@pytest.mark.req("tq:CODES")
async def test_an_id_that_was_used_for_another_job_is_no_repetition(queue: Asking):
    assert await queue.add("a", request_id="x")
    assert await queue.add("b", request_id="x")
    assert await queue.remove("a", "y")
    assert len(queue.queue) == 1
    assert await queue.remove("b", "y")
    assert len(queue.queue) == 0


@pytest.mark.req("tq:CODES")
async def test_a_take_is_repeated_for_another_worker(queue: Asking):
    await queue.add("a")
    await queue.add("b")
    taken = [await queue.queue.dequeue(name, request_id="t") for name in ("one", "two")]
    assert taken == ["a", "a"]
