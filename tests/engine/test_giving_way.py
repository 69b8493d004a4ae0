"""A server without the event stream leaves the lead to one that has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from jobqueue.engine.leadership import Leadership
from jobqueue.stores.memory import MemoryStore
from tests.engine.rig import until

TTL = 1.5  # longer than a busy machine stops us


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


class Standing:
    """Servers that stand for the lead of one store."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self._made: list[Leadership] = []

    def start(self, gives_way) -> Leadership:
        one = Leadership(self.store.leadership, TTL, lambda: None, gives_way)
        one.start()
        self._made.append(one)
        return one

    async def stop(self) -> None:
        for one in self._made:
            await one.stop()


@pytest_asyncio.fixture
async def standing() -> AsyncIterator[Standing]:
    made = Standing()
    yield made
    await made.stop()


async def test_whoever_gives_way_is_followed_by_one_that_does_not(standing: Standing):
    first = standing.start(yes)
    await until(lambda: first.term is not None)
    second = standing.start(None)
    await until(lambda: second.term is not None)
    for _ in range(10):
        await asyncio.sleep(TTL / 5)
        assert first.term is None


async def test_nobody_else_there_it_leads_again(standing: Standing):
    only = standing.start(yes)
    await until(lambda: only.term is not None)
    before = only.term
    await until(lambda: only.term is None)
    only.nudge()  # its own resignation is no reason to hurry
    await asyncio.sleep(TTL / 5)
    assert only.term is None
    await until(lambda: only.term is not None)
    assert before is not None
    assert only.term is not None
    assert only.term.epoch > before.epoch


async def test_without_a_reason_the_lead_is_kept(standing: Standing):
    first = standing.start(no)
    await until(lambda: first.term is not None)
    term = first.term
    second = standing.start(None)
    for _ in range(10):
        await asyncio.sleep(TTL / 5)
        assert second.term is None
    assert first.term == term
