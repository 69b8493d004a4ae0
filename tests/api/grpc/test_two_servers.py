"""Two servers on one store, real connections that break, and clients that know both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.api.grpc.remote.link import RemoteLink
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.core.errors import JobQueueError, OutcomeUnknown, Unavailable
from jobqueue.core.job import JobQuery, JobSpec, Transition, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.stores.sqlite.store import SqliteStore
from tests import patience
from tests.api.grpc.inbox import GatedEngine, RecordingInbox
from tests.api.grpc.proxy import Proxy
from tests.engine.rig import session_of


class Server:
    """An engine behind its face, and a relay in front of it."""

    def __init__(self, path: Path) -> None:
        self.engine = GatedEngine(SqliteStore(path))
        self.face = GrpcFace(self.engine)
        self.proxy = Proxy(0)
        self.target = ""

    async def start(self) -> None:
        await self.engine.start()
        self.proxy.target = await self.face.start("127.0.0.1", 0)
        self.target = f"127.0.0.1:{await self.proxy.start()}"

    async def stop(self) -> None:
        self.engine.open_gates()
        await self.face.stop(1.0)
        await self.proxy.stop()
        await self.engine.stop()

    def gone(self) -> None:
        """As a machine that is no more: connections break, new ones are refused."""
        self.proxy.refuse = True
        self.proxy.cut()


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[tuple[Server, Server]]:
    one, two = Server(tmp_path / "jobs.db"), Server(tmp_path / "jobs.db")
    await one.start()
    await two.start()
    yield one, two
    await one.stop()
    await two.stop()


Client = Callable[..., Awaitable[GrpcBackend]]


@pytest_asyncio.fixture
async def client(servers: tuple[Server, Server]) -> AsyncIterator[Client]:
    """Knows both servers, and begins with the first."""
    backends: list[GrpcBackend] = []

    async def make(timeout: float | None = None, first: int = 0) -> GrpcBackend:
        backend = GrpcBackend(
            ",".join(server.target for server in servers), timeout=timeout or patience.stretched(5)
        )
        backends.append(backend)
        backend._servers._current = first
        return backend

    yield make
    for backend in backends:
        await backend.stop()


async def submit(backend, count=1, **fields):
    specs = [JobSpec(**{"payload": b"x", **fields}) for _ in range(count)]
    return [result.unwrap() for result in await backend.submit(specs)]


def succeed(job, result=b"ok"):
    return Transition.succeeded(job.seq, job.lease, result, 0.01)


async def eventually(condition, within=5.0):
    async with patience.timeout(within):
        while not await condition():
            await asyncio.sleep(0.01)


# -- clients ---------------------------------------------------------------------------------


@pytest.mark.req("jq:NFR-008")
async def test_calls_go_on_at_the_other_server(servers, client):
    one, _ = servers
    backend = await client()
    (before,) = await submit(backend)
    await backend.get(before)
    one.gone()
    (after,) = await submit(backend, key="a submit without one may be an OutcomeUnknown")
    assert {job.id for job in (await backend.list_jobs(JobQuery())).jobs} == {before, after}
    assert (await backend.cancel(before)).state is State.DEAD_LETTERED
    one.proxy.refuse = False
    assert (await backend.get(after)).state is State.PENDING


async def test_the_first_call_finds_the_server_that_is_there(servers, client):
    one, _ = servers
    one.gone()
    for call in (submit, lambda b: b.list_queues()):
        assert await call(await client())


async def test_with_no_server_there_it_says_so(servers, client):
    for server in servers:
        server.gone()
    backend = await client(timeout=1.0)
    with pytest.raises(Unavailable):
        await submit(backend)
    with pytest.raises(Unavailable):
        await backend.list_queues()


@pytest.mark.req("jq:NFR-006")
@pytest.mark.parametrize("size", [1, 700_000], ids=["on the stream", "by a call of its own"])
async def test_a_submit_that_may_have_happened_is_not_repeated_without_a_key(servers, client, size):
    one, two = servers
    backend = await client()
    one.engine.submit_gate.clear()
    submitting = asyncio.create_task(submit(backend, payload=b"x" * size))
    await one.engine.until(lambda: one.engine.batches)  # written, not answered
    one.gone()
    with pytest.raises(OutcomeUnknown):
        await submitting
    assert len((await two.engine.list_jobs(JobQuery())).jobs) == 1
    assert two.engine.batches == []


@pytest.mark.parametrize("size", [1, 700_000], ids=["on the stream", "by a call of its own"])
async def test_a_submit_with_a_key_is_repeated_elsewhere_and_happens_once(servers, client, size):
    one, two = servers
    backend = await client()
    one.engine.submit_gate.clear()
    submitting = asyncio.create_task(submit(backend, payload=b"x" * size, key="k"))
    await one.engine.until(lambda: one.engine.batches)
    one.gone()
    (job_id,) = await submitting
    assert [job.id for job in (await two.engine.list_jobs(JobQuery())).jobs] == [job_id]
    assert two.engine.batches == [1]


async def test_a_wait_is_taken_up_by_the_other_server_and_keeps_its_time(servers, client):
    one, two = servers
    backend = await client()
    (job_id,) = await submit(backend)
    began = time.monotonic()
    limit = patience.Limit(3.0)
    waiting = asyncio.create_task(backend.wait(job_id, 1.5))
    await asyncio.sleep(0.7)
    one.gone()
    assert (await waiting).state is State.PENDING
    assert time.monotonic() - began > 1.3
    assert not limit.over
    waiting = asyncio.create_task(backend.wait(job_id, patience.longest(10)))
    await two.engine.cancel(job_id)
    assert (await waiting).state is State.DEAD_LETTERED


async def test_a_watch_goes_on_elsewhere_without_repeating_anything(servers, client):
    one, two = servers
    backend = await client()
    (job_id,) = await submit(backend)
    seen = []

    async def watch() -> None:
        async for event in backend.watch(job_id):
            seen.append(event.version)

    watching = asyncio.create_task(watch())
    while not seen:
        await asyncio.sleep(0.01)
    one.gone()
    await asyncio.sleep(0.2)
    await two.engine.cancel(job_id)
    await patience.wait_for(watching, 5)
    assert seen == [1, 2]


# -- workers ---------------------------------------------------------------------------------


@pytest.mark.req("jq:NFR-007", "jq:NFR-008")
async def test_a_worker_moves_on_and_keeps_what_it_holds(servers, client, worker_info):
    one, two = servers
    ids = await submit(one.engine, 2)
    inbox = RecordingInbox()
    link = await (await client()).connect(worker_info(concurrency=3), inbox)
    link.grant(3)
    await inbox.until(lambda inbox: len(inbox.jobs) == 2)
    running, unreported = inbox.jobs
    await link.report([Transition.started(running.seq, running.lease)])
    one.gone()
    # Reports are kept by the worker until one server has answered.
    async with patience.timeout(5):
        while True:
            try:
                assert await link.report([succeed(unreported)], freed=1) == [True]
                break
            except JobQueueError:
                await asyncio.sleep(0.01)
    assert len(two.engine.links) == 1
    assert (await two.engine.get(running.id)).state is State.RUNNING
    assert await link.report([succeed(running)], freed=1) == [True]
    assert {(await two.engine.get(job_id)).state for job_id in ids} == {State.DONE}
    await submit(two.engine, 5)
    await inbox.until(lambda inbox: len(inbox.jobs) == 5)
    await asyncio.sleep(0.1)
    assert len(inbox.jobs) == 5  # three slots, not more


@pytest.mark.req("jq:NFR-014")
async def test_a_server_that_stops_in_good_order_sends_its_workers_on_at_once(
    servers, client, worker_info
):
    one, two = servers
    inbox = RecordingInbox()
    link = await (await client()).connect(worker_info(), inbox)
    link.grant(2)
    await one.engine.until(lambda: one.engine.links and one.engine.links[0].granted == 2)
    limit = patience.Limit(2)
    stopping = asyncio.create_task(one.face.stop(5.0))
    await two.engine.until(lambda: two.engine.links and two.engine.links[0].granted == 2)
    assert not limit.over
    await stopping
    (job_id,) = await submit(two.engine)
    await inbox.until(lambda inbox: inbox.jobs)
    assert inbox.jobs[0].id == job_id


@pytest.mark.req("jq:FR-019")
async def test_heartbeats_go_on_at_any_server_that_answers(servers, client, worker_info):
    one, two = servers
    (job_id,) = await submit(one.engine)
    inbox = RecordingInbox()
    link = await (await client(timeout=2.0)).connect(worker_info(), inbox)
    link.grant(1)
    await inbox.until(lambda inbox: inbox.jobs)
    lease = inbox.jobs[0].lease
    one.proxy.mute = True  # it hangs: connected, but no answer comes
    pulse = await asyncio.to_thread(link.pulse, [lease], [lease])
    assert (pulse.known, pulse.lost, two.engine.links) == (True, [], [])
    assert (await two.engine.get(job_id)).state is State.ASSIGNED


async def test_a_worker_may_deregister_at_a_server_that_it_was_never_connected_to(
    servers, client, worker_info
):
    one, two = servers
    link = await (await client()).connect(worker_info(), RecordingInbox())
    assert isinstance(link, RemoteLink)
    link._closed = True  # it must not connect again meanwhile
    one.gone()
    link._closed = False
    await link.close()

    async def gone() -> bool:
        return await two.engine.list_workers() == []

    await eventually(gone)


@pytest.mark.req("jq:FR-021", "jq:NFR-008")
async def test_an_old_link_that_its_server_takes_for_alive_brings_no_second_share(
    servers, client, worker_info
):
    """The worker has moved on; the old server still has its stream, and free slots on it."""
    one, two = servers
    inbox = RecordingInbox()
    link = await (await client()).connect(worker_info(id="w", concurrency=4), inbox)
    link.grant(4)
    await one.engine.until(lambda: one.engine.links and one.engine.links[0].granted == 4)
    one.proxy.refuse = True
    one.proxy.cut_from_client()
    await two.engine.until(lambda: two.engine.links and two.engine.links[0].granted == 4)

    async def dropped() -> bool:
        return session_of(one.engine, "w") is None

    await eventually(dropped)  # long before the connection is found dead
    ids = await submit(one.engine, 20)
    await inbox.until(lambda inbox: len(inbox.jobs) == 4)
    await asyncio.sleep(0.2)
    assert len(inbox.jobs) == 4
    assert len(await two.engine.store.workers.held("w")) == 4
    for _ in range(20):
        job = inbox.jobs.pop()
        assert await link.report([succeed(job)], freed=1) == [True]
        if len(await two.engine.store.workers.held("w")) > len(inbox.jobs):
            await inbox.until(lambda inbox: inbox.jobs)
        assert len(inbox.jobs) <= 4
    assert {(await two.engine.get(job_id)).state for job_id in ids} == {State.DONE}


@pytest.mark.req("jq:FR-021")
async def test_jobs_sent_into_an_old_link_before_it_is_known_to_be_old_come_back(
    servers, client, worker_info
):
    one, two = servers
    inbox = RecordingInbox()
    link = await (await client()).connect(worker_info(id="w", concurrency=2), inbox)
    link.grant(2)
    await one.engine.until(lambda: one.engine.links and one.engine.links[0].granted == 2)
    one.proxy.refuse = True
    one.proxy.half_open = True  # the server's words get lost
    ids = await submit(one.engine, 2)  # claimed for a worker that never hears of it
    one.proxy.cut_from_client()
    await two.engine.until(lambda: two.engine.links and two.engine.links[0].granted == 2)

    async def arrived() -> bool:
        held = [job.lease for job in inbox.jobs]
        await asyncio.to_thread(link.pulse, held, held)
        return len(inbox.jobs) == 2

    await eventually(arrived)
    assert {job.id for job in inbox.jobs} == set(ids)
    assert {job.retry_count for job in inbox.jobs} == {0}
    assert all(await link.report([succeed(job) for job in inbox.jobs]))


@pytest.mark.req("jq:FR-021")
async def test_a_worker_says_at_its_new_server_what_it_has(servers, client, worker_info):
    """Jobs that a dead server sent to it in vain are handed out again without a heartbeat."""
    one, two = servers
    inbox = RecordingInbox()
    link = await (await client()).connect(worker_info(id="w", concurrency=3), inbox)
    link.grant(1)
    (kept,) = await submit(one.engine)
    await inbox.until(lambda inbox: inbox.jobs)
    job = inbox.jobs[0]
    inbox.listed = [job.lease]
    link.grant(2)
    await one.engine.until(lambda: one.engine.links[0].granted == 3)
    one.proxy.half_open = True
    lost = await submit(one.engine, 2)
    one.proxy.refuse = True
    one.proxy.cut_from_client()
    await inbox.until(lambda inbox: len(inbox.jobs) == 3)
    assert {one.id for one in inbox.jobs[1:]} == set(lost)
    assert {one.attempt for one in inbox.jobs[1:]} == {2}
    assert await link.report([succeed(job)]) == [True]
    assert (await two.engine.get(kept)).attempt == 1


@pytest.mark.req("jq:FR-023", "jq:FR-024")
async def test_drain_and_shutdown_through_the_server_that_the_worker_is_not_connected_to(
    servers, client, worker_info
):
    _, two = servers
    inbox = RecordingInbox()
    link = await (await client()).connect(worker_info(id="w"), inbox)
    link.grant(1)
    operator = GrpcBackend(two.target, timeout=patience.stretched(5))
    try:
        await operator.drain_worker("w")
        await inbox.until(lambda inbox: WorkerStatus.DRAINING in inbox.statuses)
        assert [w.status for w in await operator.list_workers()] == [WorkerStatus.DRAINING]
        await operator.shutdown_worker("w")
        await inbox.until(lambda inbox: WorkerStatus.STOPPING in inbox.statuses)
    finally:
        await operator.stop()


async def test_a_worker_goes_back_when_its_second_server_goes_too(servers, client, worker_info):
    one, two = servers
    inbox = RecordingInbox()
    link = await (await client()).connect(worker_info(), inbox)
    link.grant(1)
    await one.engine.until(lambda: one.engine.links and one.engine.links[0].granted == 1)
    one.gone()
    await two.engine.until(lambda: two.engine.links and two.engine.links[0].granted == 1)
    two.gone()
    one.proxy.refuse = False
    await one.engine.until(lambda: len(one.engine.links) == 2 and one.engine.links[1].granted == 1)
    (job_id,) = await submit(two.engine)
    await inbox.until(lambda inbox: inbox.jobs)
    assert inbox.jobs[0].id == job_id
