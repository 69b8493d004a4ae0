"""A start that is given up cleans up to the end."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.connect.starting import started


@pytest.mark.parametrize("first", ["start", "caller"])
async def test_a_start_that_asyncio_run_cancels_cleans_up_to_the_end(first: str) -> None:
    """`asyncio.run` cancels the start and its caller at once, in any order."""
    under_way = asyncio.Event()
    cleaned: list[str] = []

    async def start() -> None:
        under_way.set()
        try:
            await asyncio.sleep(3_600)
        finally:
            for step in ("one", "two"):
                await asyncio.sleep(0)
                cleaned.append(step)

    before = asyncio.all_tasks()
    caller = asyncio.create_task(started(start(), asyncio.Event()))
    await under_way.wait()
    cancelled = [caller, *(asyncio.all_tasks() - before - {caller})]
    if first == "start":
        cancelled.reverse()
    for task in cancelled:
        task.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled()
    assert cleaned == ["one", "two"]
