"""Waiting that obeys a cancel."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.waiting import cancel_requested, is_set_within


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
