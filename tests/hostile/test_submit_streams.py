"""Submits whose messages do not end, or whose answers nobody reads, take bounded memory."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest

from jobqueue.access.budgets import DEFAULTS
from jobqueue.access.rules import BudgetKind
from jobqueue.api.grpc.channel import MIB, MIN_RECEIVE_BYTES
from jobqueue.core.job import JobSpec
from jobqueue.pb.jq.v1 import client_pb2, types_pb2
from tests import patience
from tests.hostile.frames import Frames, message
from tests.hostile.known_callers import over_grpc, serving
from tests.hostile.target import Target
from tests.hostile.test_messages import ROOM_MIB, listed, send_on, settled

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SUBMIT_STREAM = "/jq.v1.ClientService/SubmitStream"
STREAMS = DEFAULTS[BudgetKind.SUBMIT_STREAM].per_caller
# Each is refused with the longest text that there is.
REFUSED = [types_pb2.JobSpec(queue="\x00" * 64, payload=b"1")] * 2_500


async def test_answers_of_submit_streams_that_are_not_read_are_bounded(target: Target):
    """Before, each stream had 8 of any size."""
    batch = client_pb2.SubmitStreamRequest(number=1, specs=REFUSED).SerializeToString()
    with target.watched() as seen:
        async with Frames(target.grpc_target, "client") as frames, target.channel() as channel:
            left = {
                (frames, frames.begin(SUBMIT_STREAM)): message(batch) * 9 for _ in range(STREAMS)
            }
            await send_on(target, left)
            await settled(target)
            assert not frames.closed
            assert await listed(channel, "other") is grpc.StatusCode.OK
            assert await listed(channel, "operator") is grpc.StatusCode.OK
    # Batches that wait for the room of their answers are in memory as well.
    assert seen.grown_mib < ROOM_MIB * 1.5
    seen.check_healthy()


async def test_half_messages_on_submit_streams_are_bounded(target: Target):
    """Before, one caller could have 4,000 of them, of 4 MiB each, for ever."""
    unfinished = message(b"\x12" * (MIN_RECEIVE_BYTES - 1000), MIN_RECEIVE_BYTES)
    with target.watched() as seen:
        async with contextlib.AsyncExitStack() as stack:
            attackers = [
                await stack.enter_async_context(Frames(target.grpc_target, "client", reads=True))
                for _ in range(3)
            ]
            left = {
                (frames, frames.begin(SUBMIT_STREAM)): unfinished
                for frames in attackers
                for _ in range(2 * STREAMS)
            }
            await send_on(target, left)
            assert sum(len(frames.ended) for frames in attackers) == 5 * STREAMS
    assert seen.grown_mib < STREAMS * MIN_RECEIVE_BYTES / MIB * 1.5
    seen.check_healthy()


async def test_a_client_without_a_place_for_its_stream_submits_by_calls():
    """A fleet of apps has one key. Before there were few places, each of them had a stream."""
    async with contextlib.AsyncExitStack() as stack:
        limits = serving(limits__submit_streams_per_caller="1")
        server = await stack.enter_async_context(limits)
        for n in range(3):
            app = await stack.enter_async_context(over_grpc(server, "web"))
            specs = [JobSpec(payload=b"1", key=f"{n}-{job}") for job in range(40)]
            async with patience.timeout(30):
                alone = await asyncio.gather(*(app.submit([spec]) for spec in specs))
                again = await app.submit(specs)
            assert [result.unwrap() for (result,) in alone] == [r.unwrap() for r in again]
            assert len({result.job_id for result in again}) == 40
