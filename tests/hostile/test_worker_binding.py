"""A worker belongs to the credential that registered it, on every server of the store."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from jobqueue.access.keyring import Keyring, parse_keys
from jobqueue.access.policy import Access, Shown
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.core import ids
from jobqueue.core.errors import InvalidArgument, Unauthenticated
from jobqueue.core.job import IN_PROCESS, JobSpec, WorkerInfo, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Rules
from jobqueue.engine.admission import MAX_QUEUES
from jobqueue.engine.engine import Engine
from jobqueue.pb.jq.v1 import types_pb2, worker_pb2, worker_pb2_grpc
from jobqueue.stores.sqlite.store import SqliteStore
from tests import patience
from tests.api.grpc.inbox import RecordingInbox

pytestmark = pytest.mark.req("inp:PROD")

MOST_WORKERS = 3
DENIED = grpc.StatusCode.PERMISSION_DENIED
INCARNATION = 4711


def keys(*names: str) -> Access:
    """Worker keys of these names."""
    entries = [f"{name}:worker:{name}-key-0123456789" for name in names]
    return Access(keys=Keyring(parse_keys(entries, "auth.api_keys")))


def info(worker_id: str = "w", incarnation: int = INCARNATION, **said: Any) -> types_pb2.WorkerInfo:
    standard: dict[str, Any] = {"hostname": "h", "pid": 1, "concurrency": 4, "queues": ["default"]}
    return types_pb2.WorkerInfo(id=worker_id, incarnation=incarnation, **(standard | said))


@dataclass
class Server:
    """An engine on the file behind its gRPC face."""

    engine: Engine
    face: GrpcFace
    channel: grpc.aio.Channel | None = None
    stub: Any = None

    async def start(self) -> None:
        await self.engine.start()
        port = await self.face.start("127.0.0.1", 0)
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.stub = worker_pb2_grpc.WorkerServiceStub(self.channel)

    async def stop(self) -> None:
        assert self.channel is not None
        await self.channel.close()
        await self.face.stop(0.5)
        await self.engine.stop()

    def by(self, name: str) -> Caller:
        return Caller(self, name)


@dataclass
class Caller:
    """A worker's key at one server. Answers are messages, or the status of a refusal."""

    server: Server
    name: str
    refusals: list[str] = field(default_factory=list)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.name}-key-0123456789"),) if self.name else ()

    async def ask(self, method: str, request: Any) -> Any:
        call = getattr(self.server.stub, method)
        try:
            return await call(request, metadata=self.metadata, timeout=patience.longest(20))
        except grpc.aio.AioRpcError as error:
            self.refusals.append(error.details() or "")
            return error.code()

    async def register(self, worker: types_pb2.WorkerInfo | None = None) -> Any:
        return await self.ask("Register", worker_pb2.RegisterRequest(worker=worker or info()))

    async def connect(self, worker: types_pb2.WorkerInfo | None = None) -> Any:
        """Open a stream: the call once it is welcome, or the status of its refusal."""
        call = self.server.stub.Connect(metadata=self.metadata)
        try:
            await call.write(
                worker_pb2.ConnectRequest(hello=worker_pb2.Hello(worker=worker or info()))
            )
            if await call.read() is grpc.aio.EOF:
                return await call.code()
        except grpc.aio.AioRpcError as error:
            return error.code()
        except grpc.aio.UsageError:
            return await call.code()
        return call

    async def fetch(self, worker_id: str = "w", incarnation: int = INCARNATION) -> Any:
        request = worker_pb2.FetchRequest(
            worker_id=worker_id, incarnation=incarnation, limit=1, wait_seconds=5
        )
        return await self.ask("Fetch", request)

    async def report(
        self,
        seq: int,
        lease: int,
        kind: Any = worker_pb2.REPORT_KIND_SUCCEEDED,
        worker_id: str = "w",
        incarnation: int = INCARNATION,
        **said: Any,
    ) -> Any:
        one = worker_pb2.Report(kind=kind, seq=seq, lease=lease, **said)
        return await self.ask(
            "Report",
            worker_pb2.ReportRequest(worker_id=worker_id, incarnation=incarnation, reports=[one]),
        )

    async def beat(self, worker_id: str = "w", incarnation: int = INCARNATION, **said: Any) -> Any:
        request = worker_pb2.HeartbeatRequest(worker_id=worker_id, incarnation=incarnation, **said)
        return await self.ask("Heartbeat", request)

    async def deregister(self, worker_id: str = "w", incarnation: int = INCARNATION) -> Any:
        request = worker_pb2.DeregisterRequest(worker_id=worker_id, incarnation=incarnation)
        return await self.ask("Deregister", request)


@dataclass
class Servers:
    """Servers on one file: two that ask who calls, and one that does not."""

    here: Server
    there: Server
    open: Server

    async def submit(self, payload: bytes = b"1") -> str:
        return (await self.here.engine.submit([JobSpec(payload=payload)]))[0].unwrap()

    async def state(self, job_id: str) -> State:
        return (await self.here.engine.get(job_id)).state

    async def registered(self) -> dict[str, int]:
        """The incarnation that holds each name."""
        found = await self.here.engine.list_workers()
        return {worker.info.id: worker.info.incarnation for worker in found}


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    def server(access: Access | None) -> Server:
        rules = Rules(workers_per_owner=MOST_WORKERS)
        engine = Engine(SqliteStore(tmp_path / "jobs.db", rules=rules))
        return Server(engine, GrpcFace(engine, access=access))

    known = keys("alice", "mallory")
    made = Servers(server(known), server(known), server(None))
    for one in (made.here, made.there, made.open):
        await one.start()
    yield made
    for one in (made.open, made.there, made.here):
        await one.stop()


async def test_another_key_cannot_register_a_workers_id(servers: Servers):
    alice = servers.here.by("alice")
    await alice.register()
    for server in (servers.here, servers.there):
        mallory = server.by("mallory")
        for incarnation in (INCARNATION, 666):
            assert await mallory.register(info(incarnation=incarnation)) is DENIED
            assert await mallory.connect(info(incarnation=incarnation)) is DENIED
        assert "'w'" in mallory.refusals[0]
        assert "alice" not in mallory.refusals[0]
    assert await servers.registered() == {"w": INCARNATION}
    job_id = await servers.submit()
    (job,) = (await alice.fetch()).assignments
    assert list((await alice.report(job.seq, job.lease)).accepted) == [True]
    assert await servers.state(job_id) is State.DONE


async def test_another_key_cannot_end_a_workers_stream(servers: Servers):
    stream = await servers.here.by("alice").connect()
    for server in (servers.here, servers.there):
        assert await server.by("mallory").connect() is DENIED
        assert await server.by("mallory").register() is DENIED
        assert await server.by("mallory").deregister() is DENIED
    await stream.write(worker_pb2.ConnectRequest(slots=1))
    await servers.submit()
    async with patience.timeout(20):
        while not (message := await stream.read()).assignments:
            assert message is not grpc.aio.EOF
    stream.cancel()


async def test_another_key_cannot_speak_for_a_worker(servers: Servers):
    """Fetch, report, beat, leave: at the worker's server and at another."""
    alice = servers.here.by("alice")
    await alice.register()
    held = await servers.submit(b"held")
    (job,) = (await alice.fetch()).assignments
    await alice.report(job.seq, job.lease, worker_pb2.REPORT_KIND_STARTED)
    await servers.submit(b"waiting")
    progress = [worker_pb2.LeaseProgress(lease=job.lease, value=0.5, text="forged")]

    mallory = servers.here.by("mallory")
    assert await mallory.fetch() is DENIED
    assert await mallory.report(job.seq, job.lease) is DENIED
    for server in (servers.here, servers.there):
        mallory = server.by("mallory")
        assert await mallory.beat(leases=[job.lease], progress=progress) is DENIED
        assert await mallory.beat() is DENIED
        assert await mallory.deregister() is DENIED
    # Another incarnation is no way around it.
    assert await servers.here.by("mallory").fetch(incarnation=666) is DENIED
    assert await servers.here.by("mallory").beat(incarnation=666) is DENIED

    job_now = await servers.here.engine.get(held)
    assert (job_now.state, job_now.progress) == (State.RUNNING, None)
    pulse = (await alice.beat(leases=[job.lease])).pulse
    assert (pulse.known, list(pulse.lost)) == (True, [])
    assert len((await alice.fetch()).assignments) == 1
    assert list((await alice.report(job.seq, job.lease)).accepted) == [True]


async def test_a_lease_is_reported_by_the_worker_that_holds_it(servers: Servers):
    """Who learns of a lease (a log, a guess) cannot use it under an id of its own."""
    alice, mallory = servers.here.by("alice"), servers.there.by("mallory")
    await alice.register()
    job_id = await servers.submit()
    (job,) = (await alice.fetch()).assignments
    await alice.report(job.seq, job.lease, worker_pb2.REPORT_KIND_STARTED)
    await mallory.register(info("m", 13))
    own: dict[str, Any] = {"worker_id": "m", "incarnation": 13}
    for kind in worker_pb2.ReportKind.values():
        if kind:
            answer = await mallory.report(job.seq, job.lease, kind, error="forged", **own)
            assert list(answer.accepted) == [False], kind
    progress = [worker_pb2.LeaseProgress(lease=job.lease, value=0.5, text="forged")]
    pulse = (await mallory.beat(leases=[job.lease], progress=progress, **own)).pulse
    assert list(pulse.lost) == [job.lease]
    job_now = await servers.here.engine.get(job_id)
    assert (job_now.state, job_now.progress) == (State.RUNNING, None)
    assert list((await alice.report(job.seq, job.lease)).accepted) == [True]


async def test_the_id_of_a_worker_that_is_gone_can_be_taken(servers: Servers):
    """After a key was renamed, or a worker moved: nobody has to clean up by hand."""
    alice, mallory = servers.here.by("alice"), servers.there.by("mallory")
    await alice.register()
    job_id = await servers.submit()
    (job,) = (await alice.fetch()).assignments
    await servers.here.engine.store.workers.set_status("w", WorkerStatus.OFFLINE)
    # Even under its incarnation: what the old owner holds is lost, not inherited.
    assert not isinstance(await mallory.register(), grpc.StatusCode)
    assert await servers.state(job_id) is State.FAILED
    assert list((await mallory.report(job.seq, job.lease)).accepted) == [False]
    assert await alice.register() is DENIED


async def test_the_new_owner_of_an_id_is_not_refused_where_the_old_one_was_connected(
    servers: Servers,
):
    """That server still knows the old registration: it is told to register, as anywhere else."""
    await servers.here.by("alice").register()
    await servers.here.engine.store.workers.set_status("w", WorkerStatus.OFFLINE)
    await servers.there.by("mallory").register(info(incarnation=13))
    mallory = servers.here.by("mallory")
    assert await mallory.fetch(incarnation=13) is grpc.StatusCode.NOT_FOUND
    assert await mallory.report(1, 1, incarnation=13) is grpc.StatusCode.NOT_FOUND
    await servers.submit()
    assert not isinstance(await mallory.register(info(incarnation=13)), grpc.StatusCode)
    assert len((await mallory.fetch(incarnation=13)).assignments) == 1
    # The old owner is refused by the same rule.
    assert await servers.here.by("alice").fetch() is DENIED


async def test_a_worker_that_deregistered_leaves_its_id_free(servers: Servers):
    alice, mallory = servers.here.by("alice"), servers.there.by("mallory")
    await alice.register()
    await alice.deregister()
    assert not isinstance(await mallory.register(), grpc.StatusCode)
    assert await alice.register() is DENIED


async def test_a_worker_without_an_owner_belongs_to_the_first_that_registers_it(servers: Servers):
    """From before the upgrade, or before anybody had to say who they are."""
    await servers.open.by("").register()
    for caller in (servers.here.by("alice"), servers.there.by("alice")):
        assert not isinstance(await caller.register(), grpc.StatusCode)
    assert await servers.here.by("mallory").register() is DENIED


async def test_where_nobody_says_who_they_are_nothing_changes(servers: Servers):
    for incarnation in (1, 2):
        assert not isinstance(
            await servers.open.by("").register(info(incarnation=incarnation)), grpc.StatusCode
        )
    assert (await servers.open.by("").beat(incarnation=2)).pulse.known
    assert not isinstance(await servers.open.by("").deregister(incarnation=2), grpc.StatusCode)


async def test_a_servers_own_pool_cannot_be_taken(servers: Servers):
    pool = WorkerInfo(
        id="server-pool", incarnation=1, hostname="h", pid=1, concurrency=1, queues=("*",)
    )
    await servers.here.engine.connect(pool, RecordingInbox())
    for server in (servers.here, servers.there):
        assert await server.by("mallory").register(info("server-pool")) is DENIED
        assert await server.by("mallory").beat("server-pool", 1) is DENIED
        assert await server.by("mallory").deregister("server-pool", 1) is DENIED
    assert await servers.registered() == {"server-pool": 1}


async def test_a_caller_has_so_many_workers_at_most(servers: Servers):
    mallory = servers.here.by("mallory")
    for n in range(MOST_WORKERS):
        assert not isinstance(await mallory.register(info(f"m{n}")), grpc.StatusCode)
    refused = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await mallory.register(info("m-more")) is refused
    assert await servers.there.by("mallory").connect(info("m-more")) is refused
    assert f"{MOST_WORKERS}" in mallory.refusals[0]
    # One of its own may come back, others are not concerned, and who leaves makes room.
    assert not isinstance(await mallory.register(info("m0", 5)), grpc.StatusCode)
    assert not isinstance(await servers.here.by("alice").register(), grpc.StatusCode)
    await mallory.deregister("m0", 5)
    assert not isinstance(await mallory.register(info("m-more")), grpc.StatusCode)
    # What is OFFLINE makes room as well, and does not pile up.
    await servers.here.engine.store.workers.set_status("m1", WorkerStatus.OFFLINE)
    assert not isinstance(await mallory.register(info("m-last")), grpc.StatusCode)
    assert set(await servers.registered()) == {"w", "m2", "m-more", "m-last"}


async def test_a_worker_names_so_many_queues_at_most(servers: Servers):
    alice = servers.here.by("alice")
    queues = [f"q{n}" for n in range(MAX_QUEUES + 1)]
    assert await alice.register(info(queues=queues)) is grpc.StatusCode.INVALID_ARGUMENT
    assert alice.refusals[-1].startswith("queues: ")
    assert not isinstance(await alice.register(info(queues=queues[1:])), grpc.StatusCode)


def test_no_caller_is_called_like_the_owner_of_the_pool():
    certificates = Access(certificates=True)
    with pytest.raises(Unauthenticated, match="printable"):
        certificates.identify(Shown(certificate=IN_PROCESS))
    with pytest.raises(InvalidArgument, match="the name must have"):
        parse_keys([f"a{IN_PROCESS}:worker:some-key-0123456789"], "auth.api_keys")
    # A token's sub must be printable, too: tests/access/test_tokens.py.


def test_leases_are_drawn_from_the_systems_entropy(monkeypatch: pytest.MonkeyPatch):
    """624 outputs of Python's generator give away all that follow."""
    drawn: list[bytes] = []
    urandom = os.urandom

    def watched(size: int) -> bytes:
        drawn.append(urandom(size))
        return drawn[-1]

    monkeypatch.setattr(os, "urandom", watched)
    leases = [ids.new_lease() for _ in range(5_000)]
    assert len(set(leases)) == 5_000
    assert all(0 < lease < 1 << 63 for lease in leases)
    entropy = sum(map(len, drawn))
    assert entropy >= 8 * (5_000 - 1_024), "the leases came from somewhere else"
