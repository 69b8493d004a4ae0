"""Large batches leave the event loop to others, probes above all, however many there are."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from jobqueue.access.callers import EVERY_ROLE, Caller, enter_call
from jobqueue.access.rules import MAX_BATCH
from jobqueue.api.grpc import client_servicer, work_codec
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.api.http import answers, bodies
from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.core.clock import milliseconds
from jobqueue.core.errors import NotFound
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import JobSpec, NewJob, SubmitResult, TimeQuery, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue
from jobqueue.core.store import JobFilter
from jobqueue.core.waiting import in_turns, turn
from jobqueue.engine import admission
from jobqueue.engine.batching import Batcher
from jobqueue.engine.engine import Engine
from jobqueue.pb.jq.v1 import client_pb2, client_pb2_grpc, types_pb2, worker_pb2
from jobqueue.stores.memory import MemoryStore
from jobqueue.stores.memory import reads as memory_reads
from tests import patience
from tests.hostile.target import Target, headers, metadata

MOST = 500  # items in one turn of the loop
BATCHES = 8  # of one caller at a time


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
    turns.count(client_servicer, "spec_from_pb")
    turns.count(client_servicer, "result_to_pb")
    stream = client.SubmitStream()
    await stream.write(client_pb2.SubmitStreamRequest(number=1, specs=SPECS))
    await stream.done_writing()
    answer = await stream.read()
    assert len({result.job_id for result in answer.results}) == MAX_BATCH
    assert (turns.total, turns.most <= MOST) == (2 * MAX_BATCH, True)


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "one is wrong"])
async def test_a_batch_over_http_is_read_in_turns(turns, wrong):
    turns.count(bodies, "_spec_or_error")
    jobs: list[dict[str, Any]] = [{"payload": n} for n in range(MAX_BATCH)]
    if wrong:
        jobs[7]["unknown"] = 1
    items = await bodies.decode_batch(json.dumps({"jobs": jobs}).encode(), HttpFaceSettings())
    assert [n for n, item in enumerate(items) if not isinstance(item, JobSpec)] == [7] * wrong
    assert (turns.total, turns.most <= MOST) == (MAX_BATCH, True)


async def test_the_progress_of_a_heartbeat_is_read_in_turns(turns):
    turns.count(work_codec, "_lease_progress")
    news = [worker_pb2.LeaseProgress(lease=n + 1, value=0.5) for n in range(MAX_BATCH)]
    beat = worker_pb2.HeartbeatRequest(progress=news)
    assert list(await work_codec.progress_from_pb(beat.progress)) == list(range(1, MAX_BATCH + 1))
    assert (turns.total, turns.most <= MOST) == (MAX_BATCH, True)


async def test_a_batch_is_judged_in_turns(engine, turns):
    turns.count(admission, "check_spec")
    specs = [JobSpec(payload=b"x") for _ in range(MAX_BATCH)]
    specs[7].priority = 10
    results = await engine.submit(specs)
    assert [n for n, result in enumerate(results) if result.error] == [7]
    assert (turns.total, turns.most <= MOST) == (MAX_BATCH, True)


RECORDS = 10_000
LOOKED_AT = 2_000  # records in one turn of the loop


async def filled() -> MemoryStore:
    store = MemoryStore()
    await store.open()
    await store.queues.create(Queue(name="default"))
    ids = new_job_ids(RECORDS)
    await store.jobs.submit([NewJob(job_id, JobSpec(payload=b"x")) for job_id in ids])
    return store


@pytest.mark.parametrize("method", ["list_jobs", "dead_letters"])
async def test_lists_of_a_memory_store_take_turns(turns, method):
    """Before, each of them looked at every job in one piece."""
    store = await filled()
    turns.count(memory_reads, "matches")
    if method == "dead_letters":
        seqs = [job.seq for job in await store.reads.list_jobs(JobFilter(limit=RECORDS))]
        await store.jobs.apply([Transition.cancelled(seq) for seq in seqs])
    turns.total = turns.most = 0
    wanted = JobFilter(type="nope", limit=RECORDS + 1)
    await asyncio.gather(*(getattr(store.reads, method)(wanted) for _ in range(BATCHES)))
    assert turns.total == RECORDS * BATCHES
    assert turns.most <= (BATCHES + 2) * LOOKED_AT  # each begins before its first turn


@pytest.mark.parametrize("ascending", [False, True])
async def test_a_list_by_time_of_a_memory_store_takes_turns(turns, ascending):
    """Before, it looked at every job in one piece."""
    store = await filled()
    turns.count(memory_reads, "_matches_time")
    wanted = TimeQuery(queue="default", type="", ascending=ascending, offset=RECORDS - 3, limit=10)
    pages = await asyncio.gather(*(store.reads.list_by_time(wanted) for _ in range(BATCHES)))
    jobs = sorted(store.reads.every_job(), key=lambda job: job.id)
    jobs.sort(key=lambda job: milliseconds(job.created_at), reverse=not ascending)
    assert [[job.id for job in page] for page in pages] == [[job.id for job in jobs[-3:]]] * BATCHES
    assert (turns.total, turns.most <= 2 * LOOKED_AT) == (RECORDS * BATCHES, True)


async def test_a_list_that_changes_while_it_is_read_shows_what_there_is(turns):
    store = await filled()
    first, *_, last = store.reads.every_job()
    gone = {job.id for job in store.reads.every_job()[100:200]}
    listing = asyncio.create_task(
        store.reads.list_jobs(JobFilter(limit=RECORDS, states=(State.PENDING,)))
    )
    await asyncio.sleep(0)
    assert not listing.done()
    (added,) = new_job_ids(1)
    await store.jobs.submit([NewJob(added, JobSpec(payload=b"x"))])
    for job in store.reads.every_job()[100:200]:
        await store.jobs.apply([Transition.cancelled(job.seq)])
        await store.upkeep.delete_job(job.id)
    await store.jobs.apply([Transition.cancelled(first.seq)])
    listed = [job.id for job in await listing]
    assert listed == [
        job.id
        for job in reversed(store.reads.every_job())
        if job.id not in {*gone, first.id, added}
    ]
    assert listed[0] == last.id


async def test_many_batches_of_a_caller_have_one_turn_over_grpc(client, turns):
    """Before, each of them had one, and all of them together the loop."""
    turns.count(client_servicer, "spec_from_pb")
    turns.count(client_servicer, "result_to_pb")
    turns.count(admission, "check_spec")
    batch = client_pb2.SubmitBatchRequest(specs=SPECS)
    answers = await asyncio.gather(*(client.SubmitBatch(batch) for _ in range(BATCHES)))
    assert all(len(answer.results) == MAX_BATCH for answer in answers)
    assert turns.total == 3 * MAX_BATCH * BATCHES
    assert turns.most <= 2 * MOST  # the counter itself has its turn sooner or later in a round


async def test_many_batches_of_a_caller_have_one_turn_over_http(turns):
    turns.count(bodies, "_spec_or_error")
    turns.count(answers, "_item_answer")
    body = json.dumps({"jobs": [{"payload": n} for n in range(MAX_BATCH)]}).encode()

    async def submit() -> None:
        items = await bodies.decode_batch(body, HttpFaceSettings())
        await answers.batch_answer([SubmitResult.refused(NotFound("no queue")) for _ in items])

    await asyncio.gather(*(submit() for _ in range(BATCHES)))
    assert (turns.total, turns.most <= 2 * MOST) == (2 * MAX_BATCH * BATCHES, True)


class Batches:
    """Conversions of callers' batches."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()  # items by caller

    def work(self, caller: str) -> None:
        self.done[caller] += 1

    async def convert(self, caller: str) -> None:
        enter_call(Caller(caller, EVERY_ROLE))
        await in_turns(self.work, [caller] * MAX_BATCH)

    def begin(self, caller: str) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.convert(caller)) for _ in range(BATCHES)]


async def test_callers_take_turns_whatever_they_have_under_way():
    batches = Batches()
    hungry = batches.begin("hungry")
    await asyncio.sleep(0)
    await asyncio.create_task(batches.convert("healthy"))
    assert batches.done["hungry"] <= MAX_BATCH + 4 * MOST
    await asyncio.gather(*hungry)


async def test_only_a_few_callers_have_a_turn_at_a_time(turns):
    """Who has many addresses is many callers, where nobody has to be known."""
    batches = Batches()
    turns.count(batches, "work")
    await asyncio.gather(*(batches.convert(f"caller {n}") for n in range(50)))
    assert (turns.total, turns.most <= 8 * MOST) == (50 * MAX_BATCH, True)


async def test_after_a_long_turn_others_have_as_long(turns):
    """A message that takes long to count is no batch that could be cut. A call takes rounds."""

    async def message() -> None:
        await turn()
        rounds.append(turns.rounds)
        began = time.thread_time()
        while time.thread_time() - began < 0.15:
            pass

    rounds: list[int] = []
    await asyncio.gather(*(message() for _ in range(4)))
    assert all(later - sooner > 20 for sooner, later in itertools.pairwise(rounds))


async def test_the_batch_that_was_begun_first_is_ended_first():
    """Batches that wait for a turn take the memory of their bytes only."""
    batches = Batches()
    stages: list[int] = []

    async def serve(batch: int) -> None:
        for _ in range(3):  # it is read, judged and answered
            await batches.convert("hungry")
            stages.append(batch)

    await asyncio.gather(*map(serve, range(BATCHES)))
    assert stages == sorted(stages)


async def test_a_batch_that_is_given_up_leaves_its_turn_to_others():
    batches = Batches()
    *given_up, last = batches.begin("hungry")
    await asyncio.sleep(0)
    for batch in given_up:
        batch.cancel()
    await last
    assert batches.done["hungry"] <= MAX_BATCH + MOST


async def test_writes_of_callers_take_turns():
    """Before, a job waited until everything was written that others had sent before."""
    written: list[str] = []

    async def flush(calls: Sequence[str]) -> list[None]:
        await asyncio.sleep(0)
        written.extend(calls)
        return [None] * len(calls)

    batcher: Batcher[str, None] = Batcher(flush, limit=1, weigh=lambda call: 1)

    async def submit(caller: str) -> None:
        enter_call(Caller(caller, EVERY_ROLE))
        await batcher.add(caller)

    await asyncio.gather(*(submit(caller) for caller in ["hungry"] * BATCHES + ["healthy"] * 2))
    assert written[:4] == ["hungry", "healthy", "hungry", "healthy"]


MANY = 40
ATTACKS = {
    "grpc, refused": types_pb2.JobSpec(),
    "grpc, written": types_pb2.JobSpec(payload=b"1"),
    "http": None,
}


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_healthy_caller_does_not_wait_for_all_batches_of_another(
    target: Target, attack: str
):
    """Before, it waited for nearly as long as the attack took."""
    waits: list[float] = []
    spec = ATTACKS[attack]
    now = asyncio.get_running_loop().time

    async def healthy(channel: grpc.aio.Channel) -> None:
        stub: Any = client_pb2_grpc.ClientServiceStub(channel)
        job = client_pb2.SubmitRequest(spec=types_pb2.JobSpec(payload=b"1"))
        while True:
            began = now()
            await stub.Submit(job, metadata=metadata("other"), timeout=patience.longest(60))
            waits.append(now() - began)

    with ThreadPoolExecutor(MANY) as threads:
        async with target.channel() as channel, target.channel() as attackers:
            calling = asyncio.create_task(healthy(channel))
            await asyncio.to_thread(patience.until, lambda: len(waits) > 3, "calls of a caller")
            waits.clear()
            began = now()
            with target.watched() as seen:
                if spec is None:
                    body = json.dumps({"jobs": [{}] * MAX_BATCH})
                    post = partial(target.ask, "POST", "/jobs/batch", headers("client"), body)
                    loop = asyncio.get_running_loop()
                    asked = (loop.run_in_executor(threads, post) for _ in range(MANY))
                    statuses = {status for status, _ in await asyncio.gather(*asked)}
                    assert statuses <= {400, 504}  # or it has waited as long as a request may
                else:
                    call: Any = attackers.unary_unary("/jq.v1.ClientService/SubmitBatch")
                    batch = client_pb2.SubmitBatchRequest(specs=[spec] * MAX_BATCH)
                    shown = {"metadata": metadata("client"), "timeout": patience.longest(200)}
                    data = batch.SerializeToString()
                    await asyncio.gather(*(call(data, **shown) for _ in range(MANY)))
            took = now() - began
            calling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await calling
    assert max(waits) < took / 4, f"{max(waits):.1f} s of {took:.1f} s"
    seen.check_healthy()
