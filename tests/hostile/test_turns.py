"""The largest batch that is allowed leaves the event loop to others, probes above all."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from jobqueue.access.rules import MAX_BATCH
from jobqueue.api.grpc import client_servicer, submit_stream
from jobqueue.api.grpc.codec import work
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.api.http import bodies
from jobqueue.api.http.settings import HttpSettings
from jobqueue.core.job import JobSpec
from jobqueue.engine import admission
from jobqueue.engine.engine import Engine
from jobqueue.pb.jq.v1 import client_pb2, client_pb2_grpc, types_pb2, worker_pb2
from jobqueue.stores.memory import MemoryStore

MOST = 500  # items in one turn of the loop


class Turns:
    """How often functions are called between two turns of the loop, at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._calls = 0
        self.total = 0
        self.most = 0

    def count(self, owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def counting(*args: Any) -> Any:
            self._calls += 1
            self.total += 1
            return inner(*args)

        self._monkeypatch.setattr(owner, name, counting)

    async def run(self) -> None:
        while True:
            self.most = max(self.most, self._calls)
            self._calls = 0
            await asyncio.sleep(0)


@pytest_asyncio.fixture
async def turns(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Turns]:
    turns = Turns(monkeypatch)
    running = asyncio.create_task(turns.run())
    yield turns
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine(MemoryStore())
    await engine.start()
    yield engine
    await engine.stop()


@pytest_asyncio.fixture
async def client(engine: Engine) -> AsyncIterator[Any]:
    face = GrpcFace(engine)
    port = await face.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield client_pb2_grpc.ClientServiceStub(channel)
    await face.stop(0.2)


SPECS = [types_pb2.JobSpec(payload=b"x")] * MAX_BATCH


async def test_a_batch_over_grpc_is_read_and_answered_in_turns(client, turns):
    turns.count(client_servicer, "spec_from_pb")
    turns.count(client_servicer, "result_to_pb")
    answer = await client.SubmitBatch(client_pb2.SubmitBatchRequest(specs=SPECS))
    assert len({result.job_id for result in answer.results}) == MAX_BATCH
    assert (turns.total, turns.most <= MOST) == (2 * MAX_BATCH, True)


async def test_a_message_of_a_submit_stream_is_read_and_answered_in_turns(client, turns):
    turns.count(submit_stream, "spec_from_pb")
    turns.count(submit_stream, "result_to_pb")
    stream = client.SubmitStream()
    await stream.write(client_pb2.SubmitStreamRequest(number=1, specs=SPECS))
    await stream.done_writing()
    answer = await stream.read()
    assert len({result.job_id for result in answer.results}) == MAX_BATCH
    assert (turns.total, turns.most <= MOST) == (2 * MAX_BATCH, True)


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "one is wrong"])
async def test_a_batch_over_http_is_read_in_turns(turns, wrong):
    turns.count(bodies, "_decode_item" if wrong else "_spec_or_error")
    jobs: list[dict[str, Any]] = [{"payload": n} for n in range(MAX_BATCH)]
    if wrong:
        jobs[7]["unknown"] = 1
    items = await bodies.decode_batch(json.dumps({"jobs": jobs}).encode(), HttpSettings())
    assert [n for n, item in enumerate(items) if not isinstance(item, JobSpec)] == [7] * wrong
    assert (turns.total, turns.most <= MOST) == (MAX_BATCH, True)


async def test_the_progress_of_a_heartbeat_is_read_in_turns(turns):
    turns.count(work, "_lease_progress")
    news = [worker_pb2.LeaseProgress(lease=n + 1, value=0.5) for n in range(MAX_BATCH)]
    beat = worker_pb2.HeartbeatRequest(progress=news)
    assert list(await work.progress_from_pb(beat.progress)) == list(range(1, MAX_BATCH + 1))
    assert (turns.total, turns.most <= MOST) == (MAX_BATCH, True)


async def test_a_batch_is_judged_in_turns(engine, turns):
    turns.count(admission, "check_spec")
    specs = [JobSpec(payload=b"x") for _ in range(MAX_BATCH)]
    specs[7].priority = 10
    results = await engine.submit(specs)
    assert [n for n, result in enumerate(results) if result.error] == [7]
    assert (turns.total, turns.most <= MOST) == (MAX_BATCH, True)
