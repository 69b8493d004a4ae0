"""Waiting for a job and watching it."""

from __future__ import annotations

import asyncio
import time

import pytest

from jobqueue.core.job import Event, Transition
from jobqueue.core.lifecycle import Reason, State
from tests import patience
from tests.engine.rig import Rig

P, A, R, D, F, X = State


async def test_wait_returns_as_soon_as_the_job_is_done(rig: Rig):
    worker, assignment = await rig.running()
    waiting = asyncio.create_task(rig.engine.wait(assignment.id, patience.longest(5)))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    began = time.monotonic()
    await worker.succeed(assignment)
    job = await waiting
    assert (job.state, job.result) == (D, b"r")
    assert time.monotonic() - began < 0.5, "it was told, and did not poll"


async def test_wait_returns_the_job_as_it_is_when_the_time_is_up(rig: Rig):
    job_id = await rig.submit()
    began = time.monotonic()
    assert (await rig.engine.wait(job_id, 0.05)).state is P
    assert 0.04 < time.monotonic() - began < 1.0
    assert (await rig.engine.wait(job_id, 0)).state is P


async def test_wait_for_a_finished_job_returns_at_once(rig: Rig):
    job_id = await rig.submit()
    await rig.engine.cancel(job_id)
    assert (await rig.engine.wait(job_id, None)).state is X


async def test_wait_goes_on_through_a_failed_attempt(rig: Rig):
    worker, assignment = await rig.running()
    waiting = asyncio.create_task(rig.engine.wait(assignment.id, patience.longest(10)))
    await worker.fail(assignment)
    await asyncio.sleep(0.02)
    assert not waiting.done(), "FAILED is not the end while a retry is due"
    await rig.engine.cancel(assignment.id)
    assert (await waiting).state is X


async def test_watch_tells_the_past_then_the_present_until_the_end(rig: Rig):
    worker, assignment = await rig.running()
    seen: list[Event] = []

    async def watch() -> None:
        async for event in rig.engine.watch(assignment.id):
            seen.append(event)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.02)
    assert [e.to_state for e in seen] == [P, A, R]
    await worker.succeed(assignment)
    await patience.wait_for(watching, 5)
    assert [(e.version, e.to_state) for e in seen] == [(1, P), (2, A), (3, R), (4, D)]
    assert seen == await rig.engine.history(assignment.id)


async def test_watch_misses_nothing_however_fast_it_goes(rig: Rig):
    worker = await rig.worker(slots=1)
    job_id = await rig.submit()
    assignment = await worker.gets_one()
    watching = asyncio.create_task(_reasons(rig, job_id))
    await worker.link.report(
        [
            Transition.started(assignment.seq, assignment.lease),
            Transition.failed(assignment.seq, assignment.lease, "boom", retryable=False),
        ]
    )
    assert await patience.wait_for(watching, 5) == [
        Reason.SUBMITTED,
        Reason.ASSIGNED,
        Reason.STARTED,
        Reason.HANDLER_FAILED,
        Reason.NOT_RETRYABLE,
    ]


async def _reasons(rig: Rig, job_id: str) -> list[Reason]:
    return [event.reason async for event in rig.engine.watch(job_id)]


async def test_a_watcher_that_leaves_early_leaves_nothing_behind(rig: Rig):
    job_id = await rig.submit()
    watching = rig.engine.watch(job_id)
    assert (await anext(aiter(watching))).to_state is P
    await watching.aclose()  # type: ignore[attr-defined]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_reasons(rig, job_id), 0.05)
    assert not rig.is_watched


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("call", ["wait", "watch"])
async def test_a_cancel_is_obeyed_at_every_step_of_waking_up(rig: Rig, call: str, steps: int):
    """As of Ctrl-C on ``jq-ctl job watch`` at the moment when other jobs change."""
    job_id = await rig.submit()
    seen = asyncio.Event()

    async def watch() -> None:
        async for _ in rig.engine.watch(job_id):
            seen.set()

    async def wait() -> None:
        seen.set()
        await rig.engine.wait(job_id, None)

    waiting = asyncio.create_task({"wait": wait, "watch": watch}[call]())
    await seen.wait()
    for _ in range(10):  # until it waits
        await asyncio.sleep(0)
    for watchers in rig.engine._watchers._by_job.values():
        for watcher in watchers:
            watcher.wake()
    for _ in range(steps):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting], timeout=10)
    assert waiting.cancelled()
