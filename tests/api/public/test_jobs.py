"""The life of a job, as any client sees it."""

from __future__ import annotations

import asyncio
import time

import pytest

from jobqueue.core.ids import parse_job_id
from jobqueue.core.progress import Progress
from jobqueue.tasks.task import define
from jobqueue.worker.registry import Registry
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings
from tests import patience
from tests.api.public.conftest import ConnectHand, Deployment
from tests.api.public.face import PublicFace, Refused, Spec, Submitted
from tests.api.public.hand import Hand


def states(events: object) -> list[str]:
    assert isinstance(events, list)
    return [event.to_state for event in events]


async def test_progress_is_shown_while_the_attempt_runs(face: PublicFace, hand: Hand) -> None:
    job_id = (await face.submit(Spec(type="copy"))).job_id
    job = await hand.begin()
    assert (await face.get(job_id)).progress is None
    for value, text in ((0.25, "1 of 4 files"), (None, "the last one is long: grüße")):
        told = {job.lease: Progress.of(value, text)}
        await asyncio.to_thread(hand.link.pulse, [job.lease], [job.lease], progress=told)
        running = await face.get(job_id)
        assert running.progress == (value, text)
        [listed] = (await face.list(type="copy")).jobs
        assert listed.progress == (value, text)
    before = await face.history(job_id)
    assert len(before) == 3
    await hand.fail(job, retry_after=0.0)
    assert (await face.get(job_id)).progress is None
    again = await hand.begin()
    stale = {job.lease: Progress.of(0.9, "late")}
    await asyncio.to_thread(hand.link.pulse, [again.lease], [again.lease], progress=stale)
    assert (await face.get(job_id)).progress is None
    await hand.succeed(again)
    assert (await face.wait(job_id, 10)).progress is None


@pytest.mark.req("jq:FR-001", "jq:FR-005", "jq:FR-029", "jq:FR-030")
async def test_submit_to_done(face: PublicFace, hand: Hand) -> None:
    before = time.time()
    payload = b'{"b" : 1,  "a": [2.50]}'
    labels = {"team": "a"}
    spec = Spec(payload=payload, type="work", priority=4, timeout=30, ttl=60, key="k")
    spec.labels = labels
    submitted = await face.submit(spec)
    assert submitted == Submitted(parse_job_id(submitted.job_id), duplicate=False)
    assert submitted.job_id[14] == "4"

    pending = await face.get(submitted.job_id)
    assert (pending.state, pending.version, pending.reason) == ("PENDING", 1, "SUBMITTED")
    assert (pending.payload, pending.type, pending.priority) == (payload, "work", 4)
    assert (pending.key, pending.labels, pending.timeout, pending.ttl) == ("k", labels, 30, 60)
    assert pending.started_at is None
    assert pending.completed_at is None
    assert pending.result is None

    hand.link.grant(1)
    job = await hand.take()
    assert (job.id, job.payload, job.type) == (submitted.job_id, payload, "work")
    assert (await face.get(job.id)).state == "ASSIGNED"
    await hand.start(job)
    running = await face.get(job.id)
    assert (running.state, running.worker_id, running.attempt) == ("RUNNING", "hand", 1)
    await hand.succeed(job, b'{"ok": true}')

    done = await face.get(job.id)
    assert (done.state, done.reason, done.version) == ("DONE", "SUCCEEDED", 4)
    assert done.result == b'{"ok": true}'
    assert done.started_at is not None
    assert done.completed_at is not None
    assert before - 1 < done.created_at <= done.started_at <= done.completed_at < time.time() + 1


@pytest.mark.req("jq:FR-029", "inp:POOL")
async def test_a_real_worker_runs_it(face: PublicFace, deployment: Deployment) -> None:
    async def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    async def broken() -> None:
        raise ValueError("no use")

    registry = Registry()
    registry.add(define(add))
    registry.add(define(broken))
    settings = WorkerSettings(id="w", shutdown_timeout=5)
    worker = WorkerRuntime(deployment.dispatch, registry, settings)
    await worker.start()
    try:
        good = await face.submit(Spec(type="add", payload=b'{"a": 1, "b": 2}'))
        bad = await face.submit(Spec(type="broken", payload=b"{}", max_retries=0))
        plain = await face.submit(Spec(payload=b'{"x":1}'))
        done = await face.wait(good.job_id, patience.longest(10))
        assert (done.state, done.result, done.worker_id) == ("DONE", b'{"sum":3}', "w")
        dead = await face.wait(bad.job_id, patience.longest(10))
        assert (dead.state, dead.reason) == ("DEAD_LETTERED", "RETRIES_EXHAUSTED")
        assert "no use" in dead.error
        echoed = await face.wait(plain.job_id, patience.longest(10))
        assert (echoed.state, echoed.result) == ("DONE", b'{"x":1}')
    finally:
        await worker.stop()


@pytest.mark.req("jq:FR-002", "jq:FR-014", "inp:QUEUE")
async def test_priority_then_first_in_first_out(face: PublicFace, hand: Hand) -> None:
    order = {}
    for n, priority in enumerate([0, 5, 9, 5, 0, 9]):
        submitted = await face.submit(Spec(priority=priority, payload=str(n).encode()))
        order[submitted.job_id] = n
    taken = [order[(await hand.run()).id] for _ in order]
    assert taken == [2, 5, 1, 3, 0, 4]


@pytest.mark.req("jq:FR-002", "jq:FR-003")
async def test_defaults(face: PublicFace) -> None:
    await face.create_queue("patient", max_retries=7, ttl=60, timeout=5)
    job = await face.get((await face.submit(Spec(queue="patient"))).job_id)
    assert (job.priority, job.max_retries, job.ttl, job.timeout) == (0, 7, 60, 5)
    own = Spec(queue="patient", max_retries=0, ttl=1000, timeout=9)
    job = await face.get((await face.submit(own)).job_id)
    assert (job.max_retries, job.ttl, job.timeout) == (0, 1000, 9)


@pytest.mark.req("inp:IDEMP")
async def test_an_equal_job_under_one_key_is_accepted_once(face: PublicFace, hand: Hand) -> None:
    spec = Spec(key="order-42", payload=b'"process-order-42"')
    first = await face.submit(spec)
    assert await face.submit(spec) == Submitted(first.job_id, duplicate=True)
    await hand.run(b"42")
    again = await face.submit(spec)
    assert again == Submitted(first.job_id, duplicate=True)
    assert (await face.get(again.job_id)).result == b"42"
    assert len((await face.list()).jobs) == 1


@pytest.mark.req("inp:IDEMP")
async def test_another_job_under_a_used_key_is_refused(face: PublicFace) -> None:
    first = await face.submit(Spec(key="k", payload=b"1"))
    for other in (Spec(key="k", payload=b"2"), Spec(key="k", payload=b"1", type="t")):
        with pytest.raises(Refused, match="'k'") as refused:
            await face.submit(other)
        assert (refused.value.code, refused.value.job_id) == ("KEY_CONFLICT", first.job_id)
    assert len((await face.list()).jobs) == 1


async def test_many_submits_of_one_key_at_once(face: PublicFace) -> None:
    submitted = await asyncio.gather(*(face.submit(Spec(key="k")) for _ in range(20)))
    assert len({one.job_id for one in submitted}) == 1
    assert sum(not one.duplicate for one in submitted) == 1
    assert len((await face.list()).jobs) == 1


async def test_a_batch_is_answered_item_by_item(face: PublicFace) -> None:
    first = await face.submit(Spec(key="k", payload=b"1"))
    answers = await face.submit_batch(
        [
            Spec(payload=b"10"),
            Spec(priority=10),
            Spec(queue="nowhere"),
            Spec(key="k", payload=b"1"),
            Spec(key="k", payload=b"2"),
            Spec(key="new", payload=b"3"),
            Spec(key="new", payload=b"3"),
            Spec(payload=b"20"),
        ]
    )
    told = [
        one.code if isinstance(one, Refused) else "duplicate" if one.duplicate else "accepted"
        for one in answers
    ]
    assert told == [
        "accepted",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "duplicate",
        "KEY_CONFLICT",
        "accepted",
        "duplicate",
        "accepted",
    ]
    assert isinstance(answers[3], Submitted)
    assert answers[3].job_id == first.job_id
    payloads = sorted(job.payload for job in (await face.list()).jobs)
    assert payloads == [b"1", b"10", b"20", b"3"]


@pytest.mark.req("inp:BACKPRESSURE")
async def test_a_full_queue_pushes_back(face: PublicFace, connect_hand: ConnectHand) -> None:
    await face.create_queue("small", capacity=2)
    spec = Spec(queue="small")
    accepted = [await face.submit(spec), await face.submit(spec)]
    with pytest.raises(Refused) as refused:
        await face.submit(Spec(queue="small", key="later"))
    assert refused.value.code == "QUEUE_FULL"
    assert refused.value.retry_after is not None
    assert refused.value.retry_after > 0
    assert len((await face.list(queue="small")).jobs) == 2

    hand = await connect_hand(worker_id="small", queues=("small",))
    assert (await hand.run()).id == accepted[0].job_id
    room = await face.submit(Spec(queue="small", key="later"))  # the refusal left no key
    assert not room.duplicate
    assert [(await hand.run()).id for _ in range(2)] == [accepted[1].job_id, room.job_id]


@pytest.mark.req("jq:FR-009", "jq:FR-010", "jq:FR-011", "jq:FR-031")
async def test_history_has_every_transition_once(face: PublicFace, hand: Hand) -> None:
    submitted = await face.submit(Spec(max_retries=1))
    job = await hand.begin()
    await hand.fail(job, "first", retry_after=0.0)
    job = await hand.begin()
    await hand.fail(job, "second")
    events = list(await face.history(submitted.job_id))
    assert [event.version for event in events] == list(range(1, len(events) + 1))
    assert [(event.from_state, event.to_state, event.reason) for event in events] == [
        (None, "PENDING", "SUBMITTED"),
        ("PENDING", "ASSIGNED", "ASSIGNED"),
        ("ASSIGNED", "RUNNING", "STARTED"),
        ("RUNNING", "FAILED", "HANDLER_FAILED"),
        ("FAILED", "PENDING", "RETRY_DUE"),
        ("PENDING", "ASSIGNED", "ASSIGNED"),
        ("ASSIGNED", "RUNNING", "STARTED"),
        ("RUNNING", "FAILED", "HANDLER_FAILED"),
        ("FAILED", "DEAD_LETTERED", "RETRIES_EXHAUSTED"),
    ]
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert [event.detail for event in events if event.reason == "HANDLER_FAILED"] == [
        "first",
        "second",
    ]


async def test_watch_until_terminal(face: PublicFace, hand: Hand) -> None:
    submitted = await face.submit(Spec())
    watching = face.watch(submitted.job_id)
    seen = [await anext(watching)]
    job = await hand.begin()
    seen += [await anext(watching), await anext(watching)]
    await hand.succeed(job)
    seen += [event async for event in watching]
    assert states(seen) == ["PENDING", "ASSIGNED", "RUNNING", "DONE"]
    assert seen == list(await face.history(submitted.job_id))


async def test_watch_passes_over_an_earlier_end(face: PublicFace, hand: Hand) -> None:
    submitted = await face.submit(Spec())
    await face.cancel(submitted.job_id)
    await face.retry(submitted.job_id)
    watching = face.watch(submitted.job_id)
    past = [await anext(watching) for _ in range(3)]
    assert states(past) == ["PENDING", "DEAD_LETTERED", "PENDING"]
    await hand.run()
    assert states([event async for event in watching]) == ["ASSIGNED", "RUNNING", "DONE"]


async def test_wait(face: PublicFace, hand: Hand) -> None:
    submitted = await face.submit(Spec())
    assert (await face.wait(submitted.job_id, 0.05)).state == "PENDING"
    waiting = asyncio.create_task(face.wait(submitted.job_id, patience.longest(10)))
    job = await hand.begin()
    assert not waiting.done()
    await hand.succeed(job, b'"here"')
    ended = await waiting
    assert (ended.state, ended.result) == ("DONE", b'"here"')


@pytest.mark.req("jq:FR-004")
async def test_a_job_not_started_within_its_ttl_is_given_up(face: PublicFace, hand: Hand) -> None:
    submitted = await face.submit(Spec(ttl=0.05))
    dead = await face.wait(submitted.job_id, patience.longest(10))
    assert (dead.state, dead.reason) == ("DEAD_LETTERED", "TTL_EXPIRED")
    hand.link.grant(1)
    later = await face.submit(Spec())
    assert (await hand.take()).id == later.job_id


async def test_a_delayed_job_waits(face: PublicFace, hand: Hand) -> None:
    hand.link.grant(2)
    delay = 60.0  # longer than it takes to look
    delayed = await face.submit(Spec(delay=delay))
    moment = time.time() + delay
    at = await face.submit(Spec(run_at=moment))
    now = await face.submit(Spec())
    assert (await hand.take()).id == now.job_id
    waiting = [await face.get(submitted.job_id) for submitted in (delayed, at)]
    assert {one.state for one in waiting} == {"PENDING"}
    assert waiting[0].run_at == pytest.approx(waiting[0].created_at + delay, abs=delay / 2)
    assert waiting[1].run_at == pytest.approx(moment, abs=0.01)


async def test_a_delayed_job_runs_when_it_is_due(face: PublicFace, hand: Hand) -> None:
    hand.link.grant(2)
    delayed = await face.submit(Spec(delay=0.1))
    moment = time.time() + 0.1
    at = await face.submit(Spec(run_at=moment))
    assert {(await hand.take()).id for _ in range(2)} == {delayed.job_id, at.job_id}
    assert time.time() >= moment - 0.01
