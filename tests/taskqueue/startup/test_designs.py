"""Both designs, wired: real gRPC on loopback, all of it in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jobqueue.access.tls import Credentials, Tls
from jobqueue.core.errors import PermissionDenied, QueueFull, Unavailable
from jobqueue.taskqueue.components.coordinator import Coordinator
from jobqueue.taskqueue.components.model import (
    MAX_OUTPUT_BYTES,
    Actor,
    Envelope,
    Listing,
    Spec,
    Status,
)
from jobqueue.taskqueue.components.ownership import owner_index
from jobqueue.taskqueue.components.protocols import (
    Coordination,
    JobOwner,
    QueueOwner,
    ResultOwner,
    new_request_id,
)
from jobqueue.taskqueue.components.worker_loop import WorkerLoop
from jobqueue.taskqueue.designs import catalogue, wiring
from jobqueue.taskqueue.designs.wiring import PROGRAMS, Grace, Links, node
from jobqueue.taskqueue.grpc.peer import Peer
from jobqueue.taskqueue.grpc.remote import RemoteJobs, RemoteQueue, RemoteTaskQueue
from tests import patience
from tests.access.certificates import Authority
from tests.taskqueue.together import design_a, design_b

PATIENCE = 20.0
LOOPBACK = {"BIND_HOST": "127.0.0.1"}
AT_ONCE = {"SHUTDOWN_TIMEOUT_MS": "0"}  # jobs of these tests need not end
LONG = Spec("long", work_duration_ms=60_000)


@contextlib.asynccontextmanager
async def client(
    target: str, credentials: Credentials | None = None
) -> AsyncIterator[RemoteTaskQueue]:
    made = RemoteTaskQueue(target, credentials)
    try:
        yield made
    finally:
        await made.close()


async def result_of(queue: RemoteTaskQueue, job_id: str) -> Envelope:
    async with patience.timeout(PATIENCE):
        while True:
            with contextlib.suppress(Unavailable):
                if (found := await queue.result(job_id, timeout=patience.longest(5))) is not None:
                    return found
            await asyncio.sleep(0.02)


async def counted(queue: RemoteTaskQueue, **wanted: int) -> None:
    """Wait until so many jobs have these statuses."""
    async with patience.timeout(PATIENCE):
        while True:
            jobs = (await queue.list(Listing(), timeout=patience.longest(5))).jobs
            found = {name: sum(job.status.name == name for job in jobs) for name in wanted}
            if found == wanted:
                return
            await asyncio.sleep(0.02)


# -- the two designs ------------------------------------------------------------------------------


@pytest.mark.req("tq:FR-1", "tq:FR-3")
async def test_design_a_runs_a_job() -> None:
    async with design_a() as addresses, client(addresses["gateway"]) as queue:
        assert list(addresses) == ["job", "queue", "result", "coordinator", "gateway"]
        accepted = await queue.submit(Spec("short", payload_size_bytes=3), "")
        assert (await result_of(queue, accepted.job_id)).output == b"xxx"


@pytest.mark.req("tq:INGRESS", "tq:LOCK-27", "tq:LOCK-37", "tq:LOCK-43")
async def test_a_node_owns_every_job_that_it_accepts() -> None:
    async with design_b(3) as addresses:
        for index, address in enumerate(addresses):
            async with client(address) as queue:
                accepted = [await queue.submit(Spec("short"), "") for _ in range(8)]
                assert {owner_index(one.job_id, 3) for one in accepted} == {index}
                for one in accepted:
                    assert (await result_of(queue, one.job_id)).status is Status.DONE
                assert len((await queue.list(Listing())).jobs) == 8  # its own, and no other's


@pytest.mark.req("tq:FAIR", "tq:LOCK-2", "tq:NFR-6")
async def test_design_a_runs_six_jobs_at_once_and_no_more() -> None:
    async with design_a(AT_ONCE) as addresses, client(addresses["gateway"]) as queue:
        for _ in range(8):
            await queue.submit(LONG, "")
        await counted(queue, RUNNING=6, QUEUED=2)
        await asyncio.sleep(0.5)  # two hints later there is still no seventh
        await counted(queue, RUNNING=6, QUEUED=2)


@pytest.mark.req("tq:FAIR", "tq:LOCK-2", "tq:NFR-6")
async def test_design_b_runs_one_job_at_once_in_each_of_six_nodes() -> None:
    async with design_b(environ=AT_ONCE) as addresses, contextlib.AsyncExitStack() as stack:
        assert len(addresses) == 6
        queues = [await stack.enter_async_context(client(address)) for address in addresses]
        for queue in queues:
            for _ in range(2):
                await queue.submit(LONG, "")
        for queue in queues:
            await counted(queue, RUNNING=1, QUEUED=1)
        await asyncio.sleep(0.5)
        for queue in queues:
            await counted(queue, RUNNING=1, QUEUED=1)


# -- every variable reaches what it is for ---------------------------------------------------------


@pytest.mark.req("tq:CODES", "tq:LOCK-23")
@pytest.mark.parametrize("design", ["a", "b"])
async def test_the_oldest_results_are_forgotten_when_their_outputs_are_too_much(design) -> None:
    bounds = {"MAX_RESULT_BYTES": str(MAX_OUTPUT_BYTES), **AT_ONCE}
    async with contextlib.AsyncExitStack() as stack:
        if design == "a":
            target = (await stack.enter_async_context(design_a(bounds)))["gateway"]
        else:
            (target,) = await stack.enter_async_context(design_b(1, bounds))
        queue = await stack.enter_async_context(client(target))
        spec = Spec("large", payload_size_bytes=MAX_OUTPUT_BYTES)
        jobs = []
        for _ in range(2):
            jobs.append((await queue.submit(spec, "")).job_id)
            assert len((await result_of(queue, jobs[-1])).output) == MAX_OUTPUT_BYTES
        with pytest.raises(Unavailable):
            await queue.result(jobs[0])
        assert (await queue.status(jobs[0])).summary.status is Status.DONE


@pytest.mark.req("tq:DEDUP", "tq:LOCK-25", "tq:RESULT", "tq:LOCK-18")
@pytest.mark.parametrize("design", ["a", "b"])
async def test_bounds_that_were_set_count(design: str) -> None:
    bounds = {
        "MAX_DEDUP_KEYS": "1",
        "MAX_QUEUED_JOBS": "2",
        "MAX_OUTPUT_BYTES": "10",
        "WORKER_SLOTS": "1",
        **AT_ONCE,
    }
    async with contextlib.AsyncExitStack() as stack:
        if design == "a":
            addresses = await stack.enter_async_context(design_a(bounds))
            target = addresses["gateway"]
        else:
            (target,) = await stack.enter_async_context(design_b(1, bounds))
        queue = await stack.enter_async_context(client(target))
        large = await queue.submit(Spec("large", payload_size_bytes=11), "")
        assert (await result_of(queue, large.job_id)).status is Status.FAILED
        first = await queue.submit(Spec("keyed"), "one")
        assert (await queue.submit(Spec("keyed"), "one")).job_id == first.job_id
        await result_of(queue, (await queue.submit(Spec("keyed"), "two")).job_id)
        again = await queue.submit(Spec("keyed"), "one")
        assert again.job_id != first.job_id
        await result_of(queue, again.job_id)
        await queue.submit(LONG, "")
        await counted(queue, RUNNING=1)  # the one slot is taken
        for _ in range(2):
            await queue.submit(LONG, "")
        with pytest.raises(QueueFull):
            await queue.submit(LONG, "")


@pytest.mark.req("tq:STARTUP", "tq:LIVENESS")
@pytest.mark.parametrize("design", ["a", "b"])
async def test_times_that_were_set_count(design: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, dict[str, Any]] = {}

    def noting(part: type) -> type:
        class Noting(part):  # type: ignore[misc]
            def __init__(self, *args: Any, **more: Any) -> None:
                told[part.__name__] = more
                super().__init__(*args, **more)

        return Noting

    for part in (Coordinator, WorkerLoop):
        monkeypatch.setattr(wiring, part.__name__, noting(part))
    environ = {
        "HEARTBEAT_INTERVAL_MS": "700",
        "WORKER_TIMEOUT_MS": "7000",
        "RETRY_AFTER_MS": "70",
        **AT_ONCE,
    }
    async with design_a(environ) if design == "a" else design_b(1, environ):
        coordinator, worker = told["Coordinator"], told["WorkerLoop"]
    assert coordinator["heartbeat_interval_ms"] == worker["heartbeat_interval_ms"] == 700
    assert coordinator["worker_timeout_ms"] == 7_000
    assert coordinator["retry_after_ms"] == 70


# -- what lies between -----------------------------------------------------------------------------


class Counting(Links):
    """Counts the calls on every way."""

    def __init__(self) -> None:
        self.calls: set[str] = set()

    def jobs(self, jobs: JobOwner) -> JobOwner:
        return self._watch("jobs", jobs)

    def queue(self, queue: QueueOwner) -> QueueOwner:
        return self._watch("queue", queue)

    def results(self, results: ResultOwner) -> ResultOwner:
        return self._watch("results", results)

    def coordination(self, coordination: Coordination) -> Coordination:
        return self._watch("coordination", coordination)

    def _watch(self, name: str, part: Any) -> Any:
        calls = self.calls

        class Watched:
            def __getattr__(self, method: str) -> Any:
                calls.add(f"{name}.{method}")
                return getattr(part, method)

        return Watched()


@pytest.mark.parametrize("design", ["a", "b"])
async def test_every_way_between_parts_can_be_watched(design: str) -> None:
    links = Counting()
    async with contextlib.AsyncExitStack() as stack:
        if design == "a":
            addresses = await stack.enter_async_context(design_a(links=links))
            target = addresses["gateway"]
        else:
            (target,) = await stack.enter_async_context(design_b(1, links=links))
        queue = await stack.enter_async_context(client(target))
        job = await queue.submit(Spec("short"), "")
        await result_of(queue, job.job_id)
    assert links.calls >= {
        "jobs.create",
        "jobs.transition",
        "queue.enqueue",
        "queue.dequeue",
        "results.store",
        "results.get",
        "coordination.heartbeat",
        "coordination.fetch",
        "coordination.report",
    }


# -- stopping --------------------------------------------------------------------------------------


class Held(Links):
    """An enqueue that waits until it is let go."""

    def __init__(self) -> None:
        self.address = ""  # of the queue service
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    def queue(self, queue: QueueOwner) -> QueueOwner:
        held = self

        class Waiting:
            async def enqueue(self, *args: Any, **more: Any) -> bool:
                held.begun.set()
                await held.go.wait()
                return await queue.enqueue(*args, **more)

            def __getattr__(self, method: str) -> Any:
                return getattr(queue, method)

        return Waiting()


@pytest.mark.req("tq:STARTUP", "tq:SUBMIT")
async def test_a_gateway_that_stops_answers_the_calls_under_way_and_takes_no_more() -> None:
    links = Held()
    async with contextlib.AsyncExitStack() as owners, client_of_a_gateway(owners, links) as made:
        gateway, queue = made
        call = asyncio.create_task(
            queue.submit(Spec("short"), "", timeout=patience.longest(PATIENCE))
        )
        await links.begun.wait()
        stopping = asyncio.create_task(gateway.aclose())
        async with patience.timeout(PATIENCE):
            while True:  # until it takes no more
                try:
                    await queue.list(Listing(), timeout=patience.longest(5))
                except Unavailable:
                    break
                await asyncio.sleep(0.02)
        assert not call.done()
        assert not stopping.done()
        links.go.set()
        assert (await call).job_id
        await stopping


@pytest.mark.req("tq:STARTUP", "tq:SUBMIT")
async def test_a_gateway_that_stops_finishes_a_submit_that_its_client_gave_up() -> None:
    links = Held()
    async with contextlib.AsyncExitStack() as owners, client_of_a_gateway(owners, links) as made:
        gateway, queue = made
        call = asyncio.create_task(
            queue.submit(Spec("short"), "", timeout=patience.longest(PATIENCE))
        )
        await links.begun.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        stopping = asyncio.create_task(gateway.aclose())
        async with patience.timeout(PATIENCE):
            with contextlib.suppress(Unavailable):
                while True:  # until it takes no more
                    await queue.list(Listing(), timeout=patience.longest(5))
        links.go.set()
        await stopping
        coordinator = Peer(links.address, "queue", Actor.COORDINATOR)
        owners.push_async_callback(coordinator.close)
        queued = await RemoteQueue(coordinator).dequeue("w", request_id=new_request_id())
        assert queued is not None  # neither lost half-way nor undone


@contextlib.asynccontextmanager
async def client_of_a_gateway(
    owners: contextlib.AsyncExitStack, links: Held
) -> AsyncIterator[tuple[contextlib.AsyncExitStack, RemoteTaskQueue]]:
    """A gateway over real owners, which can be stopped apart from them."""
    told = dict(LOOPBACK)
    for name in ("job", "queue", "result"):
        values = catalogue.SERVICES[name].read({**told, f"{name.upper()}_PORT": "0"})
        running = await owners.enter_async_context(PROGRAMS[name](values, Links()))
        told[f"{name.upper()}_SERVICE_ADDR"] = running.address
    links.address = told["QUEUE_SERVICE_ADDR"]
    async with contextlib.AsyncExitStack() as gateway:
        values = catalogue.GATEWAY.read({**told, "GATEWAY_PORT": "0"})
        running = await gateway.enter_async_context(PROGRAMS["gateway"](values, links))
        async with client(running.address) as queue:
            yield gateway, queue


@pytest.mark.req("tq:STARTUP")
async def test_a_node_that_stops_finishes_what_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    values = catalogue.NODE.read({**LOOPBACK, "NODE_PORT": "0", "NODES": "a:1", "NODE_INDEX": "0"})
    caplog.set_level("INFO")
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(node(values))
        async with client(running.address) as queue:
            for _ in range(3):
                await queue.submit(Spec("half", work_duration_ms=500), "")
            await counted(queue, RUNNING=1, QUEUED=2)
    (lost,) = (r for r in caplog.records if getattr(r, "event", "") == "state_lost")
    counts = vars(lost)
    # The one that ran has ended, and its result with it; the others were not begun.
    assert (counts["jobs"], counts["unfinished_jobs"]) == (3, 2)
    assert (counts["queued_jobs"], counts["results"]) == (2, 1)
    assert not [r for r in caplog.records if getattr(r, "event", "") == "stopped_early"]


@pytest.mark.req("tq:STARTUP")
async def test_calls_and_jobs_that_do_not_end_share_the_time_of_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wiring, "_CLOSING", 0.0)  # calls may take all of it, as jobs may
    told = {**LOOPBACK, "NODE_PORT": "0", "NODES": "a:1", "NODE_INDEX": "0"}
    values = catalogue.NODE.read({**told, "SHUTDOWN_TIMEOUT_MS": "4000"})
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(node(values))
        async with (
            client(running.address) as queue,
            grpc.aio.insecure_channel(running.address) as channel,
        ):
            await queue.submit(LONG, "")
            await counted(queue, RUNNING=1)
            # Watching never ends by itself.
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            limit = patience.Limit(2 * 4.0)  # one after the other would take that
            await stack.aclose()
            assert not limit.over


@pytest.mark.req("tq:STARTUP")
def test_the_time_of_a_stop_runs_from_its_beginning() -> None:
    now = 500.1  # a time at which adding an hour and taking it off again is not exact
    grace = Grace(catalogue.JOB.read({"SHUTDOWN_TIMEOUT_MS": "3600000"}), clock=lambda: now)
    assert grace.left() == 3600
    now += 100
    assert grace.left() == pytest.approx(3500)
    assert grace.left(keep=1_000) == pytest.approx(2500)
    assert grace.left(keep=10_000) == pytest.approx(1750)  # the half of it is always there
    now += 3600
    assert grace.left() == 0
    assert Grace(catalogue.JOB.read({"SHUTDOWN_TIMEOUT_MS": "0"})).left(keep=3) == 0


async def test_a_port_that_is_taken_leaves_nothing_behind() -> None:
    async with design_b(1) as (address,):
        port = address.rpartition(":")[2]
        values = catalogue.NODE.read(
            {**LOOPBACK, "NODE_PORT": port, "NODES": "a:1", "NODE_INDEX": "0"}
        )
        with pytest.raises(Unavailable, match=port):
            async with node(values):
                pass


# -- mutual TLS ------------------------------------------------------------------------------------


@pytest.mark.req("tq:MATRIX", "tq:STARTUP")
async def test_with_certificates_the_services_know_each_other(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def files(name: str) -> dict[str, str]:
        pair = authority.issue(name, "IP:127.0.0.1")
        return {"TLS_CERT": str(pair.cert), "TLS_KEY": str(pair.key), "TLS_CA": str(authority.ca)}

    def shown(name: str) -> Credentials:
        told = files(name)
        return Credentials(tls=Tls(told["TLS_CA"], told["TLS_CERT"], told["TLS_KEY"]))

    each = {service.name: files(service.name) for service in catalogue.DESIGN_A}
    async with design_a(each=each) as addresses:
        async with client(addresses["gateway"], shown("somebody")) as queue:
            job = await queue.submit(Spec("short"), "")
            assert (await result_of(queue, job.job_id)).status is Status.DONE
        async with client(addresses["gateway"]) as nobody:
            with pytest.raises(Unavailable):
                await nobody.submit(Spec("short"), "")
        # The certificate says who it is, whatever the caller says.
        liar = Peer(addresses["job"], "job", Actor.GATEWAY, credentials=shown("worker"))
        with pytest.raises(PermissionDenied):
            await RemoteJobs(liar).get(job.job_id)
        await liar.close()


@pytest.mark.req("tq:MATRIX")
async def test_each_service_says_who_it_is() -> None:
    """A wrong name would be refused at the first call; here the right ones are not."""
    async with design_a() as addresses:
        worker = Peer(addresses["queue"], "queue", Actor.WORKER)
        with pytest.raises(PermissionDenied):
            await RemoteQueue(worker).dequeue("w", request_id=new_request_id())
        await worker.close()
