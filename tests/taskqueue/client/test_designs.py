"""The client against both designs, over gRPC: what it is told, it finds again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest

from jobqueue import DeadlineExceeded, InvalidArgument, TaskQueueClient
from jobqueue.core.errors import KeyConflict, NotFound, Unavailable
from jobqueue.taskqueue import Deadlines, JobSort, JobStatus
from jobqueue.taskqueue.components.ownership import owner_index
from jobqueue.taskqueue.components.protocols import JobOwner, QueueOwner, ResultOwner, TaskQueue
from jobqueue.taskqueue.designs.catalogue import SERVICES
from jobqueue.taskqueue.designs.wiring import DIRECT, PROGRAMS, Links
from jobqueue.taskqueue.grpc.host import ServiceHost
from jobqueue.taskqueue.grpc.servicers import PublicServicer
from tests import patience, ports
from tests.taskqueue.together import design_a, design_b

PATIENCE = patience.longest(30.0)
# This machine may be busy: what is tested here is not how fast it is.
UNHURRIED = Deadlines(20, 20, 20, 20, 20)
UNKNOWN = "00000000-0000-4000-8000-000000000000"


@asynccontextmanager
async def client_of(design: str) -> AsyncIterator[TaskQueueClient]:
    if design == "A":
        async with (
            design_a() as addresses,
            TaskQueueClient(gateway=addresses["gateway"], deadlines=UNHURRIED) as client,
        ):
            yield client
    else:
        async with (
            design_b() as nodes,
            TaskQueueClient(nodes=nodes, deadlines=UNHURRIED) as client,
        ):
            yield client


@pytest.fixture(params=["A", "B"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[TaskQueueClient]:
    async with client_of(request.param) as made:
        yield made


@pytest.mark.req("tq:INGRESS", "tq:LOCK-27", "tq:LOCK-37", "tq:NFR-1")
async def test_every_job_is_found_by_its_id(client: TaskQueueClient) -> None:
    ids = [
        (await client.submit_job(job_type="noop", payload_size_bytes=n)).job_id for n in range(12)
    ]
    for size, job_id in enumerate(ids):
        result = await client.wait_result(job_id, PATIENCE)
        assert (result.job_id, result.status) == (job_id, JobStatus.DONE)
        assert len(result.output) == size
        state = await client.get_job_status(job_id)
        assert (state.job_id, state.status) == (job_id, JobStatus.DONE)
        assert 0 < state.created_at_ms <= state.started_at_ms <= state.finished_at_ms
        assert (await client.cancel_job(job_id, "too late")).already_terminal


@pytest.mark.req("tq:INGRESS", "tq:LOCK-38", "tq:DEDUP")
async def test_a_key_means_one_job(client: TaskQueueClient) -> None:
    for number in range(6):
        key = f"order-{number}"
        first, again = [
            await client.submit_job(job_type="noop", labels={"n": "1"}, client_request_id=key)
            for _ in range(2)
        ]
        assert first.job_id == again.job_id
        with pytest.raises(KeyConflict):
            await client.submit_job(job_type="other", client_request_id=key)
        await client.wait_result(first.job_id, PATIENCE)


async def test_errors_are_the_same_as_elsewhere(client: TaskQueueClient) -> None:
    for call in (client.get_job_status, client.get_job_result, client.cancel_job):
        with pytest.raises(NotFound):
            await call(UNKNOWN)
    failed = await client.submit_job(job_type="fail")
    result = await client.wait_result(failed.job_id, PATIENCE)
    assert result.status is JobStatus.FAILED
    assert (await client.get_job_status(failed.job_id)).failure_reason
    long = await client.submit_job(job_type="noop", work_duration_ms=3_000)
    with pytest.raises(DeadlineExceeded):
        await client.wait_result(long.job_id, 0.01)
    assert (await client.cancel_job(long.job_id)).accepted
    assert (await client.wait_result(long.job_id, PATIENCE)).status is JobStatus.CANCELED


@pytest.mark.req("tq:LIST", "tq:LOCK-28")
async def test_a_gateway_lists_all_a_node_its_own() -> None:
    for design in ("A", "B"):
        async with client_of(design) as client:
            ids = [(await client.submit_job(job_type="noop")).job_id for _ in range(12)]
            for job_id in ids:
                await client.wait_result(job_id, PATIENCE)
            if design == "A":
                first = await client.list_jobs([JobStatus.DONE], 5, sort=JobSort.CREATED_AT_ASC)
                assert len(first.jobs) == 5
                rest = await client.list_jobs(
                    [JobStatus.DONE], 50, first.next_page_token, JobSort.CREATED_AT_ASC
                )
                assert rest.next_page_token == ""
                assert sorted(job.job_id for job in (*first.jobs, *rest.jobs)) == sorted(ids)
            else:
                for node in range(6):
                    page = await client.list_jobs(node=node)
                    assert {owner_index(job.job_id, 6) for job in page.jobs} == {node}
                    assert {job.job_id for job in page.jobs} == {
                        job_id for job_id in ids if owner_index(job_id, 6) == node
                    }
                    assert len(page.jobs) == 2


@pytest.mark.req("tq:INGRESS", "tq:LOCK-38", "tq:LOCK-37", "tq:RETRY")
async def test_a_dead_owner_is_not_replaced_by_a_living_node() -> None:
    async with design_b(nodes=2) as living:
        nodes = [living[0], f"127.0.0.1:{ports.take()}"]
        keys = {owner_index(key, 2): key for key in (f"order-{n}" for n in range(20))}
        async with TaskQueueClient(nodes=nodes) as client:
            with pytest.raises(Unavailable):
                await client.submit_job(job_type="noop", client_request_id=keys[1])
            job = await client.submit_job(job_type="noop", client_request_id=keys[0])
            await client.wait_result(job.job_id, PATIENCE)
            assert len((await client.list_jobs(node=0)).jobs) == 1


async def test_a_refusal_of_the_server_names_its_field(client: TaskQueueClient) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.submit_job(job_type="noop", labels={str(n): "" for n in range(33)})
    assert caught.value.field == "spec.labels"


class Counting(Links):
    """Counts the calls that a part makes to others."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def jobs(self, jobs: JobOwner) -> JobOwner:
        return cast(JobOwner, Counted("jobs", jobs, self.calls))

    def queue(self, queue: QueueOwner) -> QueueOwner:
        return cast(QueueOwner, Counted("queue", queue, self.calls))

    def results(self, results: ResultOwner) -> ResultOwner:
        return cast(ResultOwner, Counted("results", results, self.calls))


class Counted:
    def __init__(self, name: str, part: object, calls: Counter[str]) -> None:
        self._name = name
        self._part = part
        self._calls = calls

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._part, method)

        async def counted(*arguments: Any, **options: Any) -> Any:
            self._calls[f"{self._name}.{method}"] += 1
            return await call(*arguments, **options)

        return counted


@pytest.mark.parametrize("key", ["", "order-"])
@pytest.mark.req("tq:SUBMIT")
async def test_a_submit_costs_the_gateway_two_calls_and_no_more(key: str) -> None:
    links = Counting()
    told = {"BIND_HOST": "127.0.0.1"}
    async with AsyncExitStack() as stack:
        # No coordinator: all calls are the gateway's.
        for name in ("job", "queue", "result", "gateway"):
            values = SERVICES[name].read({**told, f"{name.upper()}_PORT": "0"})
            between = links if name == "gateway" else DIRECT
            running = await stack.enter_async_context(PROGRAMS[name](values, between))
            told[f"{name.upper()}_SERVICE_ADDR"] = running.address
        gateway = told["GATEWAY_SERVICE_ADDR"]
        client = await stack.enter_async_context(TaskQueueClient(gateway, deadlines=UNHURRIED))
        for number in range(5):
            request_id = f"{key}{number}" if key else ""
            await client.submit_job(job_type="noop", client_request_id=request_id)
        for look in ("jobs.list", "queue.contains"):  # for jobs that are in no queue
            del links.calls[look]
        assert links.calls == {"jobs.create": 5, "queue.enqueue": 5}


class Stuck:
    """A server that takes every call and answers none."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __getattr__(self, method: str) -> Any:
        async def never(*_: Any) -> None:
            self.calls[method] += 1
            await asyncio.Event().wait()

        return never


@pytest.mark.req("tq:DEADLINE", "tq:RETRY")
async def test_a_server_that_does_not_answer_is_given_up_on() -> None:
    stuck = Stuck()
    host = ServiceHost("gateway")
    host.add(partial(PublicServicer, cast(TaskQueue, stuck)))
    port = await host.start("127.0.0.1", 0)
    soon = Deadlines(0.3, 0.3, 0.3, 0.3, 0.3)
    try:
        async with TaskQueueClient(f"127.0.0.1:{port}", deadlines=soon) as client:
            calls: list[Awaitable[object]] = [
                client.submit_job(job_type="noop"),
                client.get_job_status(UNKNOWN),
                client.get_job_result(UNKNOWN),
                client.cancel_job(UNKNOWN),
                client.list_jobs(),
            ]
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, DeadlineExceeded)
    finally:
        await host.stop(0)
    # Where the machine is short of time, an attempt may end before it reaches the server.
    assert stuck.calls["submit"] <= 1
    assert all(stuck.calls[method] <= 4 for method in ("status", "result", "cancel", "list"))
    assert stuck.calls


@pytest.mark.parametrize("timeout", ["5", True, float("nan")])
async def test_a_timeout_that_is_no_number_of_seconds_is_refused_by_name(
    client: TaskQueueClient, timeout: Any
) -> None:
    job = await client.submit_job(job_type="noop")
    with pytest.raises(InvalidArgument, match="timeout: expected seconds"):
        await client.wait_result(job.job_id, timeout)
