"""Bursts of calls that send no message: who opens them pays, and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from jobqueue.api.grpc import channel
from jobqueue.api.grpc.remote.backend import GrpcBackend
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.core.job import JobSpec
from jobqueue.engine.engine import Engine
from tests import patience
from tests.hostile.frames import Frames
from tests.hostile.target import LONGEST_WAIT, Target
from tests.hostile.test_messages import SUBMIT, answered, submit

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CALLS = 5_000  # of one burst; those of two or more are above what waits for the server: 8,000
BURSTS = 2
FEW = 4  # calls that a connection may have, in the tests of a client


async def healthy_waits(target: Target, over: asyncio.Event) -> list[float]:
    """How long each call of another caller takes; all of them have to be answered."""
    waits: list[float] = []
    async with target.channel() as calls:
        while not over.is_set() or len(waits) < 20:
            began = time.monotonic()
            await submit(calls, b"1")
            waits.append(time.monotonic() - began)
            await asyncio.sleep(0.02)
    return waits


async def burst(frames: Frames) -> None:
    """Begin calls as fast as the server reads them."""
    for number in range(CALLS):
        frames.begin(SUBMIT)
        if number % 100 == 0:
            await frames.send(1, b"")  # waits until this is on its way


@pytest.mark.parametrize("where", ["target", "open_target"])
async def test_a_burst_of_calls_without_messages_costs_nobody_else(
    where: str, request: pytest.FixtureRequest
):
    """Before, calls of others were cancelled, or waited for 8,000 of them, or for their room."""
    target: Target = request.getfixturevalue(where)
    async with contextlib.AsyncExitStack() as stack:
        attackers = [
            await stack.enter_async_context(Frames(target.grpc_target, "client", reads=True))
            for _ in range(3)
        ]
        over = asyncio.Event()
        with target.watched() as seen:
            healthy = asyncio.create_task(healthy_waits(target, over))
            await asyncio.sleep(0.2)
            for _ in range(BURSTS):
                await asyncio.gather(*map(burst, attackers))
            async with patience.timeout(60):
                while any(len(frames.ended) <= (BURSTS - 1) * CALLS for frames in attackers):
                    await asyncio.sleep(0.05)
            await answered(target)
            over.set()
            waits = await healthy
    assert max(waits) < LONGEST_WAIT * patience.slowness()
    assert seen.grown_mib < 150
    seen.check_healthy()


@pytest.mark.parametrize("name", ["client", ""])
async def test_calls_that_are_ended_as_soon_as_they_begin_cost_nobody_else(
    name: str, target: Target
):
    """Else they fill the line of the calls that wait to be taken, and others are cancelled."""
    over = asyncio.Event()
    async with Frames(target.grpc_target, name, reads=True) as frames:
        with target.watched() as seen:
            healthy = asyncio.create_task(healthy_waits(target, over))
            await asyncio.sleep(0.2)
            for _ in range(2 * CALLS // 100):
                for _ in range(100):
                    frames.reset(frames.begin(SUBMIT))
                await frames.send(1, b"")  # waits until they are on their way
                await asyncio.sleep(0)
            over.set()
            waits = await healthy
    assert max(waits) < LONGEST_WAIT * patience.slowness()
    assert seen.grown_mib < 100
    seen.check_healthy()


async def test_an_app_may_wait_for_more_jobs_than_a_connection_has_calls(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
):
    """Its waits, watches and workers' streams go to further connections."""
    monkeypatch.setattr(channel, "CALLS_PER_CONNECTION", FEW)
    face = GrpcFace(engine)
    port = await face.start("127.0.0.1", 0)
    backend = GrpcBackend(f"127.0.0.1:{port}")
    try:
        ids = [result.job_id for result in await backend.submit([JobSpec(payload=b"1")] * 5 * FEW)]
        waits = [asyncio.create_task(backend.wait(job_id, None)) for job_id in ids]
        watches = [backend.watch(job_id) for job_id in ids]
        async with patience.timeout(30):
            for watch in watches:
                assert (await anext(watch)).version == 1
            for job_id in ids:
                await backend.cancel(job_id)
            await asyncio.gather(*waits)
            for watch in watches:
                assert (await anext(watch)).version == 2
    finally:
        await backend.stop()
        await face.stop(1)
