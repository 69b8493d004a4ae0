"""What workers name takes bounded memory, and no list of workers is too long to be read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
import pytest

from jobqueue.api.grpc.server import GrpcFace
from jobqueue.core.errors import RateLimited
from jobqueue.core.job import JobSpec, Worker, WorkerInfo, WorkerStatus
from jobqueue.engine import worker_names
from jobqueue.engine.engine import Engine
from jobqueue.engine.worker_names import WorkerNames, list_shortened
from jobqueue.pb.jq.v1 import operator_pb2, types_pb2, worker_pb2, worker_pb2_grpc
from jobqueue.stores.memory import MemoryStore
from jobqueue.stores.memory.workers import MemoryWorkers
from tests import patience
from tests.api.grpc.inbox import RecordingInbox
from tests.engine.rig import session_of
from tests.hostile.target import Target, headers, metadata

MIB = 1024 * 1024
WORKERS = 10  # looked at in one turn of the loop
WIDE = "\U0001f600"  # 4 bytes
e2e = pytest.mark.e2e


def names(number: int, count: int, text: str) -> list[str]:
    return [f"{number:05d}.{at:05d}.{text}" for at in range(count)]


async def register(channel: grpc.aio.Channel, number: int, types: list[str]) -> grpc.StatusCode:
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    info = types_pb2.WorkerInfo(
        id=f"w{number}",
        incarnation=number + 1,
        hostname="h",
        pid=1,
        concurrency=1,
        queues=["default"],
        types=types,
    )
    call = stub.Register(
        worker_pb2.RegisterRequest(worker=info),
        metadata=metadata("worker"),
        timeout=patience.longest(60),
    )
    code: grpc.StatusCode = await call.code()
    return code


@e2e
@pytest.mark.timeout(300)
async def test_the_names_of_workers_take_bounded_memory_and_can_be_listed(target: Target):
    """Before, each of these workers took up to 5 MiB, and no operator could list them."""
    async with target.channel() as channel:
        with target.watched() as seen:
            for number in range(30):
                code = await register(channel, number, names(number, 5_000, WIDE * 188))
                assert code is grpc.StatusCode.INVALID_ARGUMENT
            codes = [
                await register(channel, number, names(number, 1_000, "x" * 188))
                for number in range(60)
            ]
            assert set(codes) == {grpc.StatusCode.OK}
        assert seen.grown_mib < 100
        seen.check_healthy()
        call: Any = channel.unary_unary("/jq.v1.OperatorService/ListWorkers")
        answer = operator_pb2.ListWorkersResponse.FromString(
            await call(b"", metadata=metadata("operator"), timeout=patience.longest(60))
        )
        assert answer.ByteSize() < 4 * MIB  # what gRPC's clients take
        for worker in answer.workers:
            assert len(worker.info.types) + worker.types_left_out == 1_000
    status, text = await asyncio.to_thread(target.ask, "GET", "/workers", headers("operator"))
    assert status == 200
    assert len(text) < 4 * MIB
    for worker in json.loads(text)["workers"]:
        assert worker["types"] == sorted(worker["types"])
        assert len(worker["types"]) + worker["types_left_out"] == 1_000


@pytest.mark.parametrize("method", ["Register", "Connect"])
async def test_the_names_of_a_worker_that_is_gone_are_not_kept(engine: Engine, method: str):
    """Before, a server kept them for ten minutes, or as long as the stream, however many came."""
    face = GrpcFace(engine)
    port = await face.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
            worker = types_pb2.WorkerInfo(
                id="w", incarnation=1, hostname="h", pid=1, concurrency=1, queues=["default"],
                types=["a"],
            )  # fmt: skip
            if method == "Register":
                await stub.Register(worker_pb2.RegisterRequest(worker=worker))
            else:
                stream = stub.Connect()
                await stream.write(worker_pb2.ConnectRequest(hello=worker_pb2.Hello(worker=worker)))
                assert (await patience.wait_for(stream.read(), 10)).HasField("welcome")
            registration = face._registrations.get("w")
            session = session_of(engine, "w")
            assert registration is not None
            assert session is not None
            assert not registration.info.queues
            assert not registration.info.types
            assert session.info.types == frozenset({"a"})  # claims are made for these
            await engine.store.workers.set_status("w", WorkerStatus.OFFLINE)
            await engine._control.look()  # what the store's word brings about
            assert not session.info.queues
            assert not session.info.types
    finally:
        await face.stop(0.2)


def info(id: str, types: int, owner: str = "fleet", incarnation: int = 1) -> WorkerInfo:
    return WorkerInfo(
        id=id,
        incarnation=incarnation,
        hostname="h",
        pid=1,
        concurrency=1,
        queues=("default",),
        types=frozenset(names(0, types, "x" * 8)),
        owner=owner,
    )


async def test_the_workers_of_one_caller_name_so_much_at_most():
    store = MemoryStore()
    await store.open()
    workers = WorkerNames(store.workers, most=MIB)
    for number in range(24):  # a name takes 20 bytes, and 64 more
        await workers.register(info(f"w{number}", 500))
    with pytest.raises(RateLimited, match=r"types: .*'fleet'.* 1 MiB"):
        await workers.register(info("w24", 500))
    assert len(await store.workers.all()) == 24
    # Others have room of their own, and so has who registers anew.
    await workers.register(info("another", 500, owner="others"))
    await workers.register(info("w0", 500, incarnation=2))
    # Workers that are gone make room.
    await store.workers.set_status("w1", WorkerStatus.OFFLINE)
    await workers.register(info("next", 500))
    assert "w1" not in {worker.info.id for worker in await store.workers.all()}


async def test_names_are_counted_once_and_in_turns(turns):
    """Before, each registration counted all names of its caller's other workers in one piece."""
    store = MemoryStore()
    await store.open()
    workers = WorkerNames(store.workers)
    for number in range(40):
        await store.workers.register(info(f"w{number}", 500))
    turns.count(worker_names, "_size")
    await workers.register(info("next", 500))
    assert turns.total >= 40
    assert turns.most <= WORKERS + 2  # beside the worker that registers
    turns.total = 0
    for number in range(8):
        await workers.register(info("next", 500, incarnation=number + 2))
    assert turns.total <= 8 * 2
    # One that registers anew is counted anew.
    await store.workers.register(info("w0", 5_000, incarnation=2))
    turns.total = 0
    await workers.register(info("last", 500))
    assert 2 <= turns.total <= 4


async def test_workers_that_are_gone_are_not_remembered():
    store = MemoryStore()
    await store.open()
    workers = WorkerNames(store.workers)
    for number in range(50):
        await workers.register(info(f"w{number}", 500))
        await store.workers.set_status(f"w{number}", WorkerStatus.OFFLINE)
        await store.workers.forget(f"w{number}")
    assert len(workers._sizes) <= 2


async def test_long_lists_of_names_are_shortened_in_turns(turns):
    """Before, every look at the workers, as that of `/metrics`, sorted all names in one piece."""
    store = MemoryStore()
    await store.open()
    for number in range(60):
        await store.workers.register(info(f"w{number}", 500))
    turns.count(worker_names, "_shortened")
    await asyncio.gather(*(list_shortened(store.workers) for _ in range(4)))
    assert (turns.total, turns.most <= 2 * WORKERS) == (4 * 60, True)


async def test_a_large_fleet_registers_and_is_listed_in_full():
    """2,000 workers with one key and 50 types each."""
    store = MemoryStore()
    await store.open()
    workers = WorkerNames(store.workers)
    for number in range(2_000):
        await workers.register(info(f"w{number}", 50))
    assert await list_shortened(store.workers) == await store.workers.all()


async def test_a_list_of_many_workers_has_less_of_each():
    engine = Engine(MemoryStore())
    await engine.start()
    try:
        await engine.connect(info("one", 5_000), RecordingInbox())
        (worker,) = await engine.list_workers()
        assert worker.info.types is not None
        assert worker.types_left_out == 5_000 - len(worker.info.types)
        for number in range(1_000):
            await engine.store.workers.register(info(f"other{number}", 1))
        few = next(one for one in await engine.list_workers() if one.info.id == "one")
        assert few.types_left_out > worker.types_left_out > 0
        assert few.info.queues == ("default",)
        assert few.info.types
    finally:
        await engine.stop()


async def test_the_names_of_all_workers_are_never_read_together(monkeypatch: pytest.MonkeyPatch):
    """Before, each registration and each look at a waiting job read them on every server."""
    read: list[int] = []
    everyone, some = MemoryWorkers.all, MemoryWorkers.infos

    async def all_of(self: MemoryWorkers, *, names: bool = True) -> list[Worker]:
        assert not names
        return await everyone(self, names=False)

    async def infos(self: MemoryWorkers, worker_ids: Sequence[str]) -> list[WorkerInfo]:
        read.append(len(worker_ids))
        return await some(self, worker_ids)

    store = MemoryStore()
    await store.open()
    for number in range(50):  # of other servers
        await store.workers.register(info(f"w{number}", 500))
    monkeypatch.setattr(MemoryWorkers, "all", all_of)
    monkeypatch.setattr(MemoryWorkers, "infos", infos)
    engine = Engine(store)
    await engine.start()
    try:
        await engine.connect(info("mine", 500), RecordingInbox())
        assert read == [20, 20, 10]  # its caller's names, which are counted once
        read.clear()
        await engine.connect(info("mine", 500, incarnation=2), RecordingInbox())
        await engine._control.look()
        await engine._sweeper._clear_up()
        assert read == []
        (job,) = await engine.submit([JobSpec(payload=b"1", type="nobody's")])
        for _ in range(3):
            assert "nobody's" in (await engine.get(job.job_id)).hint
            engine._unserved.workers_changed()
        assert read == [20, 20, 10]  # not those that are connected here, and once
        read.clear()
        assert len(await engine.list_workers()) == 51
        assert max(read) <= 20
    finally:
        await engine.stop()
