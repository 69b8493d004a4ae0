"""Clients' and operators' calls, from the remote backend through the server to the engine."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import grpc.aio
import pytest

from jobqueue.api.grpc.codec import job_to_pb
from jobqueue.core.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    KeyConflict,
    NotFound,
    QueueFull,
)
from jobqueue.core.explain import Cause
from jobqueue.core.grouping import DeadLetterGroups
from jobqueue.core.job import (
    Deleted,
    JobQuery,
    JobSpec,
    Retried,
    RetryQuery,
    SubmitStatus,
    Transition,
    WorkerStatus,
)
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import QueueSpec, QueueUpdate
from jobqueue.engine import paging
from jobqueue.pb.jq.v1 import client_pb2, client_pb2_grpc
from tests import patience
from tests.api.grpc.inbox import RecordingInbox


async def submit_one(backend, **fields):
    (result,) = await backend.submit([JobSpec(**{"payload": b'{"a": 1}', **fields})])
    return result.unwrap()


@pytest.mark.req("jq:FR-001", "jq:FR-002", "jq:FR-003", "jq:FR-005", "jq:FR-007")
async def test_a_job_is_stored_as_submitted(remote):
    payload = bytes(range(256))
    job_id = await submit_one(
        remote, payload=payload, priority=7, max_retries=9, type="t", labels={"k": "v"}, ttl=60.0
    )
    assert uuid.UUID(job_id).version == 4
    job = await remote.get(job_id)
    assert (job.payload, job.priority, job.max_retries, job.type) == (payload, 7, 9, "t")
    assert (job.labels, job.ttl, job.state) == ({"k": "v"}, 60.0, State.PENDING)
    plain = await remote.get(await submit_one(remote))
    assert (plain.priority, plain.max_retries) == (0, 3)


async def test_the_remote_backend_shows_what_the_engine_shows(engine, remote):
    job_id = await submit_one(remote, delay=60.0, key="k")
    assert await remote.get(job_id) == await engine.get(job_id)
    assert await remote.history(job_id) == await engine.history(job_id)
    assert await remote.list_queues() == await engine.list_queues()
    assert await remote.queue_stats("default") == await engine.queue_stats("default")
    assert await remote.list_jobs(JobQuery()) == await engine.list_jobs(JobQuery())
    assert await remote.health() == await engine.health()
    assert await remote.list_workers() == []


async def test_a_batch_answers_each_spec_in_order(remote):
    results = await remote.submit(
        [
            JobSpec(payload=b"1", key="k"),
            JobSpec(payload=b"1", priority=11),
            JobSpec(payload=b"1", priority=2**40),
            JobSpec(payload=b"1", key="k"),
            JobSpec(payload=b"2", key="k"),
            JobSpec(payload=b"1", queue="nowhere"),
        ]
    )
    accepted, high, higher, same, other, lost = results
    assert accepted.status is SubmitStatus.ACCEPTED
    assert (same.status, same.job_id) == (SubmitStatus.DUPLICATE, accepted.job_id)
    assert isinstance(high.error, InvalidArgument)
    assert high.error.field == "priority"
    assert isinstance(higher.error, InvalidArgument)
    assert higher.error.field == "priority"
    assert isinstance(other.error, KeyConflict)
    assert other.error.job_id == other.job_id == accepted.job_id
    assert isinstance(lost.error, NotFound)


@pytest.mark.parametrize("count", [0, 1, 1000, 2501])
async def test_batches_of_any_size(remote, count):
    results = await remote.submit([JobSpec(payload=b"%d" % n) for n in range(count)])
    ids = [result.unwrap() for result in results]
    assert len(set(ids)) == count
    if count:
        assert (await remote.get(ids[-1])).payload == b"%d" % (count - 1)


async def test_backpressure_carries_when_to_try_again(engine, remote):
    await remote.create_queue(QueueSpec(name="small", capacity=1))
    await submit_one(remote, queue="small")
    with pytest.raises(QueueFull) as caught:
        await submit_one(remote, queue="small")
    (local,) = await engine.submit([JobSpec(payload=b"x", queue="small")])
    assert vars(caught.value) == vars(local.error)


async def test_wait_returns_at_the_end_or_in_time(engine, remote, worker_info):
    job_id = await submit_one(remote)
    assert (await remote.wait(job_id, 0.05)).state is State.PENDING
    waiting = asyncio.create_task(remote.wait(job_id, None))
    inbox = RecordingInbox()
    link = await engine.connect(worker_info(), inbox)
    link.grant(1)
    await inbox.until(lambda inbox: inbox.jobs)
    (job,) = inbox.jobs
    await link.report([Transition.succeeded(job.seq, job.lease, b"42")])
    ended = await waiting
    assert (ended.state, ended.result) == (State.DONE, b"42")


async def test_wait_goes_on_over_bounded_calls(engine, remote, monkeypatch):
    monkeypatch.setattr("jobqueue.api.grpc.remote.backend.MAX_WAIT", 0.05)
    job_id = await submit_one(remote)
    waiting = asyncio.create_task(remote.wait(job_id, patience.longest(10.0)))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await remote.cancel(job_id)
    assert (await waiting).state is State.DEAD_LETTERED


@pytest.mark.req("jq:FR-031")
async def test_watch_shows_past_and_coming_events(remote):
    job_id = await submit_one(remote)
    seen = []
    async for event in remote.watch(job_id):
        seen.append(event)
        if len(seen) == 1:
            await remote.cancel(job_id)
    assert [event.to_state for event in seen] == [State.PENDING, State.DEAD_LETTERED]
    assert seen == await remote.history(job_id)


async def test_a_watch_left_early_leaves_nothing_behind(engine, remote):
    job_id = await submit_one(remote)
    events = remote.watch(job_id)
    assert (await anext(events)).version == 1
    await events.aclose()
    async with patience.timeout(10):
        while engine._watchers:  # the server's side ends, too
            await asyncio.sleep(0.01)


@pytest.mark.req("jq:FR-032")
async def test_pages_and_filters(remote):
    ids = [await submit_one(remote, type=f"t{n % 2}") for n in range(7)]
    first = await remote.list_jobs(JobQuery(limit=3))
    assert [job.id for job in first.jobs] == ids[:-4:-1]
    rest = await remote.list_jobs(JobQuery(limit=10, page_token=first.next_page_token))
    assert [job.id for job in rest.jobs] == ids[-4::-1]
    assert rest.next_page_token == ""
    await remote.cancel(ids[0])
    dead = await remote.list_jobs(JobQuery(states=(State.DEAD_LETTERED,)))
    assert [job.id for job in dead.jobs] == ids[:1]
    odd = await remote.list_jobs(JobQuery(type="t1", queue="default"))
    assert {job.type for job in odd.jobs} == {"t1"}


async def test_a_standard_client_can_list_large_jobs(remote, port):
    """grpc's own limit for an answer is 4 MiB unless the client says otherwise."""
    ids = [await submit_one(remote, payload=b"x" * 1_000_000) for _ in range(9)]
    found, token = [], ""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = client_pb2_grpc.ClientServiceStub(channel)
        while True:
            page = await stub.ListJobs(client_pb2.ListJobsRequest(page_size=9, page_token=token))
            found += [job.id for job in page.jobs]
            token = page.next_page_token
            if not token:
                break
    assert found == ids[::-1]


async def test_dead_letters_are_retried_over_the_wire(remote):
    failed = await submit_one(remote)
    await remote.cancel(failed)
    assert await remote.retry_dead_letters(RetryQuery()) == Retried(1, 0, 0)
    wanted = RetryQuery(reasons=(Reason.CANCELLED,), queue="default")
    wanted.dry_run = True
    assert await remote.retry_dead_letters(wanted) == Retried(1, 1, 0)
    wanted.dry_run = False
    assert await remote.retry_dead_letters(wanted) == Retried(1, 1, 1)
    assert (await remote.get(failed)).state is State.PENDING
    with pytest.raises(NotFound):
        await remote.retry_dead_letters(RetryQuery(queue="nowhere"))
    with pytest.raises(InvalidArgument):
        await remote.retry_dead_letters(RetryQuery(reasons=()))
    await remote.cancel(failed)
    page = await remote.list_jobs(JobQuery(reasons=(Reason.CANCELLED,), since=1.0))
    assert [job.id for job in page.jobs] == [failed]
    assert (await remote.list_jobs(JobQuery(reasons=(Reason.POISON,)))).jobs == []
    assert (await remote.list_jobs(JobQuery(until=1.0))).jobs == []
    assert (await remote.list_jobs(JobQuery(error="x"))).jobs == []


async def test_a_job_is_explained_over_the_wire(remote, engine):
    job_id = await submit_one(remote, delay=3_600)
    await remote.pause_queue("default")
    found = await remote.explain(job_id)
    assert (found.job_id, found.state) == (job_id, State.PENDING)
    assert [cause.code for cause in found.causes][:2] == [Cause.NOT_DUE, Cause.QUEUE_PAUSED]
    here = await engine.explain(job_id)
    assert [(one.code, one.advice) for one in found.causes] == [
        (one.code, one.advice) for one in here.causes
    ]
    assert [one.facts for one in found.causes] == [one.facts for one in here.causes]
    await remote.resume_queue("default")
    with pytest.raises(NotFound):
        await remote.explain("00000000-0000-4000-8000-000000000000")
    with pytest.raises(InvalidArgument):
        await remote.explain("nonsense")


async def test_dead_letters_are_grouped_and_deleted_over_the_wire(remote):
    first, second = await submit_one(remote), await submit_one(remote, type="b")
    await remote.cancel(first)
    await remote.cancel(second)
    wanted = RetryQuery(reasons=(Reason.CANCELLED,), queue="default")
    found = await remote.group_dead_letters(wanted)
    assert (found.looked_at, found.complete) == (2, True)
    newest = await remote.get(second)
    (group,) = [one for one in found.groups if one.type == "b"]
    assert (group.jobs, group.newest, group.queues) == (1, second, ["default"])
    assert (group.reason, sum(group.by_time)) == (Reason.CANCELLED, 1)
    assert group.last_at == pytest.approx(newest.completed_at)
    assert await remote.group_dead_letters(RetryQuery()) == DeadLetterGroups(looked_at=2)
    wanted.dry_run = True
    assert await remote.delete_dead_letters(wanted) == Deleted(2, 2, 0)
    wanted.dry_run = False
    assert await remote.delete_dead_letters(wanted) == Deleted(2, 2, 2)
    with pytest.raises(NotFound):
        await remote.get(first)
    for call in (remote.delete_dead_letters, remote.group_dead_letters):
        with pytest.raises(NotFound):
            await call(RetryQuery(queue="nowhere"))
        with pytest.raises(InvalidArgument):
            await call(RetryQuery(reasons=()))


async def test_a_page_of_large_jobs_is_shorter_but_none_is_left_out(remote, monkeypatch):
    monkeypatch.setattr(paging, "PAGE_BYTES", 100_000)
    ids = [await submit_one(remote, payload=b"x" * 30_000) for _ in range(7)]
    found, token = [], ""
    while True:
        page = await remote.list_jobs(JobQuery(limit=7, page_token=token))
        assert len(page.jobs) <= 3
        found += [job.id for job in page.jobs]
        token = page.next_page_token
        if not token:
            break
    assert found == ids[::-1]


async def test_a_page_of_letters_that_take_four_bytes_fits_a_standard_client(remote):
    labels = {f"{n:02}" + "🎉" * 250: "🎉" * 255 for n in range(16)}
    for _ in range(200):
        await submit_one(remote, labels=labels)
    page = await remote.list_jobs(JobQuery(limit=200))
    assert sum(job_to_pb(job).ByteSize() for job in page.jobs) < 4 * 1024 * 1024
    assert page.next_page_token


@pytest.mark.req("jq:FR-012", "jq:FR-013")
async def test_cancel_retry_and_delete(remote):
    job_id = await submit_one(remote)
    done = await remote.cancel(job_id)
    assert (done.state, done.requested) == (State.DEAD_LETTERED, False)
    assert (await remote.cancel(job_id)).already_terminal
    assert (await remote.get(job_id)).reason is Reason.CANCELLED
    assert (await remote.retry(job_id)).state is State.PENDING
    with pytest.raises(Conflict):
        await remote.delete_job(job_id)
    await remote.cancel(job_id)
    await remote.delete_job(job_id)
    with pytest.raises(NotFound):
        await remote.get(job_id)


@pytest.mark.req("jq:FR-025", "jq:FR-026")
async def test_queues(remote):
    made = await remote.create_queue(
        QueueSpec(name="mail", max_retries=7, ttl=5.0, priority_weights={9: 5, 0: 1}, capacity=3)
    )
    assert (made.max_retries, made.priority_weights) == (7, {9: 5, 0: 1})
    with pytest.raises(AlreadyExists):
        await remote.create_queue(QueueSpec(name="mail"))
    changed = await remote.update_queue("mail", QueueUpdate(ttl=None, capacity=4, retry_base=1.5))
    assert (changed.ttl, changed.capacity, changed.retry_base) == (None, 4, 1.5)
    assert (changed.max_retries, changed.priority_weights) == (7, {9: 5, 0: 1})
    plain = await remote.update_queue("mail", QueueUpdate(priority_weights={}, retry_base=None))
    assert (plain.priority_weights, plain.retry_base, plain.capacity) == (None, None, 4)
    await remote.pause_queue("mail")
    assert (await remote.queue_stats("mail")).queue.paused
    await remote.resume_queue("mail")
    await submit_one(remote, queue="mail")
    with pytest.raises(Conflict):
        await remote.delete_queue("mail")
    assert await remote.delete_queue("mail", force=True) == 1
    with pytest.raises(NotFound):
        await remote.queue_stats("mail")


@pytest.mark.req("jq:FR-018", "jq:FR-023", "jq:FR-024")
async def test_workers_are_listed_drained_and_shut_down(remote, worker_info):
    inbox = RecordingInbox()
    info = worker_info(version="1.2.3")
    link = await remote.connect(info, inbox)
    (worker,) = await remote.list_workers()
    assert worker.info == replace(info, owner="")  # known to the store, shown to nobody
    await remote.drain_worker("w1")
    await inbox.until(lambda inbox: inbox.statuses == [WorkerStatus.DRAINING])
    assert (await remote.list_workers())[0].status is WorkerStatus.DRAINING
    await remote.shutdown_worker("w1")
    await inbox.until(lambda inbox: inbox.statuses[-1] is WorkerStatus.STOPPING)
    with pytest.raises(NotFound):
        await remote.drain_worker("nobody")
    await link.close()
    assert await remote.list_workers() == []
