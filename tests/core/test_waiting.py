"""Waiting that obeys a cancel."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.waiting import GrowingPause, cancel_requested, is_set_within


async def test_an_event_is_waited_for_until_the_time_is_up() -> None:
    event = asyncio.Event()
    assert not await is_set_within(event, 0.001)
    waiting = asyncio.create_task(is_set_within(event, 60))
    await asyncio.sleep(0)
    event.set()
    assert await waiting
    assert await is_set_within(event, 60)


async def test_a_cancel_is_obeyed_though_the_event_is_set_already() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(is_set_within(event, 60))
    await asyncio.sleep(0)
    event.set()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_cancel_is_obeyed_though_the_time_is_up_already() -> None:
    waiting = asyncio.create_task(is_set_within(asyncio.Event(), 0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    assert not waiting.done()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_cancel_of_the_task_is_told_from_a_cancel_of_what_it_waits_for() -> None:
    async def wait(for_what: asyncio.Future[None]) -> bool:
        try:
            await for_what
        except asyncio.CancelledError:
            return cancel_requested()
        raise AssertionError("nothing was cancelled")

    inner: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(wait(inner))
    await asyncio.sleep(0)
    inner.cancel()
    assert await waiting is False

    waiting = asyncio.create_task(wait(asyncio.get_running_loop().create_future()))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await waiting is True


def test_each_pause_is_twice_as_long_as_the_last_up_to_the_longest() -> None:
    pause = GrowingPause(1.0, 5.0, draw=None)
    assert not pause.grown
    assert [pause.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert pause.grown
    pause.reset()
    assert not pause.grown
    assert pause.next() == 1.0


@pytest.mark.parametrize(("drawn", "share"), [(0.0, 1.0), (0.5, 0.75), (1.0, 0.5)])
async def test_chance_makes_a_pause_shorter_by_half_at_most(drawn: float, share: float) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    pause = GrowingPause(0.1, 0.4, draw=lambda: drawn, sleep=sleep)
    for _ in range(4):
        await pause.wait()
    assert slept == pytest.approx([0.1 * share, 0.2 * share, 0.4 * share, 0.4 * share])
