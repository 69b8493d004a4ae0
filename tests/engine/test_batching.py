"""Natural batching: one flush at a time, nothing waits when nothing is in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from jobqueue.core.errors import Unavailable
from jobqueue.engine.batching import Batcher


class Gate:
    """A flush that the test lets through."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def flush(self, calls: Sequence[int]) -> list[int]:
        self.batches.append(list(calls))
        await self.open.wait()
        if self.error:
            raise self.error
        return [call * 10 for call in calls]


def batcher(gate: Gate, limit: int = 100) -> Batcher[int, int]:
    return Batcher(gate.flush, limit=limit, weigh=lambda call: 1)


async def test_a_lone_call_goes_at_once():
    gate = Gate()
    assert await batcher(gate).add(7) == 70
    assert gate.batches == [[7]]


async def test_calls_that_come_meanwhile_share_the_next_batch():
    gate = Gate()
    gate.open.clear()
    one = batcher(gate)
    tasks = [asyncio.create_task(one.add(n)) for n in range(1)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(one.add(n)) for n in range(1, 20)]
    await asyncio.sleep(0)
    gate.open.set()
    assert await asyncio.gather(*tasks) == [n * 10 for n in range(20)]
    assert gate.batches == [[0], list(range(1, 20))]


async def test_a_batch_has_a_limit():
    gate = Gate()
    one = batcher(gate, limit=4)
    assert await asyncio.gather(*(one.add(n) for n in range(10))) == [n * 10 for n in range(10)]
    assert [len(batch) for batch in gate.batches] == [4, 4, 2]


async def test_an_error_reaches_everybody_in_its_batch_and_nobody_else():
    gate = Gate()
    one = batcher(gate)
    gate.error = Unavailable("down")
    answers = await asyncio.gather(*(one.add(n) for n in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable] * 3
    gate.error = None
    assert await one.add(4) == 40


async def test_a_caller_that_gave_up_before_the_flush_is_left_out():
    gate = Gate()
    gate.open.clear()
    one = batcher(gate)
    first = asyncio.create_task(one.add(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second, third = asyncio.create_task(one.add(2)), asyncio.create_task(one.add(3))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    gate.open.set()
    assert (await first, await third) == (10, 30)
    assert gate.batches == [[1], [3]]


async def test_closing_answers_what_was_taken_and_refuses_the_rest():
    gate = Gate()
    gate.open.clear()
    one = batcher(gate)
    tasks = [asyncio.create_task(one.add(n)) for n in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    closing = asyncio.create_task(one.close())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await one.add(9)
    gate.open.set()
    await closing
    assert await asyncio.gather(*tasks) == [0, 10, 20]
    await one.close()
