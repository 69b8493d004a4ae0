"""Long lists leave the event loop and the store's readers to others, however many are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jobqueue.access.callers import EVERY_ROLE, Caller, enter_call
from jobqueue.api.grpc import client_servicer, operator_servicer
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.api.http import answers
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import (
    MAX_HISTORY,
    MAX_PAGE,
    Event,
    Job,
    JobQuery,
    JobSpec,
    NewJob,
    Worker,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import Queue, QueueStats
from jobqueue.core.store import JobFilter
from jobqueue.engine.engine import Engine
from jobqueue.pb.jq.v1 import (
    client_pb2,
    client_pb2_grpc,
    operator_pb2,
    operator_pb2_grpc,
    types_pb2,
)
from jobqueue.stores.memory import MemoryStore
from jobqueue.stores.memory.contents import Contents
from jobqueue.stores.memory.reads import MemoryReads
from tests import patience
from tests.hostile.target import Target, metadata

LISTS = 8  # of one caller at a time
JOBS = 125  # shown in one turn of the loop
READ = 250  # read in one turn
WORKERS = 10


async def fill(engine: Engine, count: int) -> None:
    await engine.store.queues.create(Queue(name="default"))
    await engine.store.jobs.submit(
        [NewJob(job_id, JobSpec(payload=b"x")) for job_id in new_job_ids(count)]
    )


def an_event(version: int) -> Event:
    return Event(
        new_job_ids(1)[0], version, None, State.PENDING, Reason.SUBMITTED, 1.0, 0, "", "", "q"
    )


def a_worker(number: int) -> Worker:
    info = WorkerInfo(
        id=f"w{number}", incarnation=1, hostname="h", pid=1, concurrency=1, queues=("default",)
    )
    return Worker(info=info, status=WorkerStatus.ONLINE, registered_at=1.0, last_seen=1.0)


async def test_lists_of_jobs_are_answered_in_turns_over_grpc(engine, turns):
    """Before, each page was converted in one piece."""
    await fill(engine, MAX_PAGE)
    turns.count(client_servicer, "job_to_pb")
    face = GrpcFace(engine)
    port = await face.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = client_pb2_grpc.ClientServiceStub(channel)
            asked = client_pb2.ListJobsRequest(page_size=MAX_PAGE)
            answers = await asyncio.gather(*(stub.ListJobs(asked) for _ in range(LISTS)))
    finally:
        await face.stop(0.2)
    seqs = [job.seq for job in answers[0].jobs]
    assert seqs == sorted(seqs, reverse=True)
    assert all(len(answer.jobs) == MAX_PAGE for answer in answers)
    assert (turns.total, turns.most <= 2 * JOBS) == (MAX_PAGE * LISTS, True)


OTHERS: dict[str, Any] = {
    "GetHistory": (
        client_pb2_grpc.ClientServiceStub,
        client_pb2.GetHistoryRequest(job_id=new_job_ids(1)[0]),
        ("history", [an_event(number + 1) for number in range(MAX_HISTORY)]),
        (client_servicer, "event_to_pb", JOBS),
    ),
    "ListQueues": (
        operator_pb2_grpc.OperatorServiceStub,
        operator_pb2.ListQueuesRequest(),
        ("list_queues", [QueueStats(queue=Queue(name=f"q{n}"), depth={}) for n in range(1_000)]),
        (operator_servicer, "stats_to_pb", JOBS),
    ),
    "ListWorkers": (
        operator_pb2_grpc.OperatorServiceStub,
        operator_pb2.ListWorkersRequest(),
        ("list_workers", [a_worker(number) for number in range(200)]),
        (operator_servicer, "worker_to_pb", WORKERS),
    ),
}


@pytest.mark.parametrize("method", OTHERS)
async def test_other_lists_are_answered_in_turns_over_grpc(engine, turns, monkeypatch, method):
    stub_class, request, (ask, found), (owner, name, most) = OTHERS[method]

    async def told(*_: object) -> list[Any]:
        return list(found)

    monkeypatch.setattr(engine, ask, told)
    turns.count(owner, name)
    face = GrpcFace(engine)
    port = await face.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = getattr(stub_class(channel), method)
            await asyncio.gather(*(call(request) for _ in range(LISTS)))
    finally:
        await face.stop(0.2)
    assert (turns.total, turns.most <= 2 * most) == (len(found) * LISTS, True)


async def test_lists_are_shown_in_turns_over_http(engine, turns):
    await fill(engine, MAX_PAGE)
    page = await engine.list_jobs(JobQuery(limit=MAX_PAGE))
    events = [an_event(number + 1) for number in range(MAX_HISTORY)]
    queues = [QueueStats(queue=Queue(name=f"q{n}"), depth={}) for n in range(1_000)]
    workers = [a_worker(number) for number in range(200)]
    shows: list[tuple[str, int, int, Callable[[], Awaitable[object]]]] = [
        ("job_view", MAX_PAGE, JOBS, lambda: answers.page_view(page, "canonical", 100)),
        ("event_view", MAX_HISTORY, JOBS, lambda: answers.event_views(events, "canonical")),
        ("queue_view", 1_000, JOBS, lambda: answers.queue_views(queues, "canonical")),
        ("_worker_view", 200, WORKERS, lambda: answers.worker_views(workers, "canonical", {})),
    ]
    for name, count, most, show in shows:
        turns.count(answers, name)
        turns.total = turns.most = 0
        await asyncio.gather(*(show() for _ in range(LISTS)))
        assert (name, turns.total, turns.most <= 2 * most) == (name, count * LISTS, True)


async def test_pages_are_read_in_turns(engine, turns):
    """Before, a page of 1,000 jobs was read in four pieces, up to 512 jobs in one."""
    await fill(engine, MAX_PAGE + 1)
    turns.count(Contents, "job")

    async def read() -> None:
        enter_call(Caller("hungry", EVERY_ROLE))
        page = await engine.list_jobs(JobQuery(limit=MAX_PAGE))
        assert len(page.jobs) == MAX_PAGE
        assert page.next_page_token

    await asyncio.gather(*(read() for _ in range(LISTS)))
    assert (turns.total, turns.most <= 2 * READ) == ((MAX_PAGE + 1) * LISTS, True)


class SlowReads(MemoryReads):
    """Lists of jobs wait until they are let go on."""

    def __init__(self, contents: Contents) -> None:
        super().__init__(contents)
        self.under_way: list[JobFilter] = []
        self.go_on = asyncio.Event()

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        self.under_way.append(wanted)
        try:
            await self.go_on.wait()
            return await super().list_jobs(wanted)
        finally:
            self.under_way.remove(wanted)


class SlowStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.reads: SlowReads = SlowReads(self._contents)


async def test_the_lists_of_a_caller_are_read_one_after_the_other():
    """Before, those of one caller took all readers of a store."""
    store = SlowStore()
    engine = Engine(store)
    await engine.start()

    async def read(caller: str) -> None:
        enter_call(Caller(caller, EVERY_ROLE))
        await engine.list_jobs(JobQuery(queue=caller))

    try:
        reads = [asyncio.create_task(read(who)) for who in ["hungry"] * LISTS + ["healthy"]]
        await asyncio.to_thread(
            patience.until, lambda: len(store.reads.under_way) >= 2, "reads of both callers"
        )
        for _ in range(20):
            await asyncio.sleep(0)
        assert sorted(wanted.queue or "" for wanted in store.reads.under_way) == [
            "healthy",
            "hungry",
        ]
        reads[0].cancel()  # who gives up leaves its place to the next
        await asyncio.to_thread(patience.until, reads[0].done, "the end of a read")
        store.reads.go_on.set()
        await asyncio.gather(*reads[1:])
    finally:
        await engine.stop()


MANY = 32
LABELS = {f"l{number:02d}": "v" * 16 for number in range(32)}


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("server", ["target", "durable"])
async def test_probes_and_callers_do_not_wait_for_the_lists_of_another(
    request: pytest.FixtureRequest, server: str
):
    """Before, they waited while the server worked on all of them. Its work counts, not the time."""
    target: Target = request.getfixturevalue(server)
    patient = patience.longest(200)

    async def work_during(call: Callable[[], Awaitable[object]]) -> float:
        began = target.cpu_seconds()
        await call()
        return target.cpu_seconds() - began

    async with target.channel() as channel, target.channel() as attackers:
        stub: Any = client_pb2_grpc.ClientServiceStub(channel)
        health: Any = health_pb2_grpc.HealthStub(channel)
        spec = types_pb2.JobSpec(payload=b"1", labels=LABELS)
        batch = client_pb2.SubmitBatchRequest(specs=[spec] * MAX_PAGE)
        shown = {"metadata": metadata("client"), "timeout": patient}
        answer = await stub.SubmitBatch(batch, **shown)
        get = client_pb2.GetJobRequest(job_id=answer.results[0].job_id)
        ask: Any = attackers.unary_unary("/jq.v1.ClientService/ListJobs")
        asked = client_pb2.ListJobsRequest(page_size=MAX_PAGE).SerializeToString()
        answered = 0

        async def list_on() -> None:
            nonlocal answered
            while True:
                await ask(asked, **shown)
                answered += 1

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "call": lambda: stub.GetJob(get, metadata=metadata("other"), timeout=patient),
            "probe": lambda: health.Check(health_pb2.HealthCheckRequest(), timeout=patient),
        }
        alone = await work_during(lambda: ask(asked, **shown))
        attack = [asyncio.create_task(list_on()) for _ in range(MANY)]
        await asyncio.to_thread(patience.until, lambda: answered > 8, "lists")
        work = {name: [await work_during(call) for _ in range(9)] for name, call in calls.items()}
        assert not any(task.done() for task in attack)
        for task in attack:
            task.cancel()
        await asyncio.gather(*attack, return_exceptions=True)
    for name, some in work.items():
        assert median(some) < 6 * alone, f"{name}: {some}, of one list: {alone}"


async def test_missing_queues_are_looked_for_in_turns(engine, turns):
    """Before, a call asked the store for ten thousand names without a turn for others."""
    # With a name: the sweeper asks for all queues, when the test takes long enough.
    turns.count(engine.store.queues, "stats", lambda *asked: bool(asked))
    names = [f"q{number}" for number in range(1_000)]

    async def ask() -> list[str]:
        enter_call(Caller("fleet", EVERY_ROLE))
        missing: list[str] = await engine.missing_queues([*names, *names])
        return missing

    answers = await asyncio.gather(*(asyncio.create_task(ask()) for _ in range(LISTS)))
    assert answers == [names] * LISTS
    assert (turns.total, turns.most <= 2 * JOBS) == (LISTS * len(names), True)
