"""Cancel, retry, delete, queues, health: what operators and clients call."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from jobqueue.core.errors import Conflict, InvalidArgument, NotFound, Unavailable
from jobqueue.core.job import (
    Cancellation,
    Deleted,
    JobQuery,
    JobSpec,
    Retried,
    RetryQuery,
    SubmitStatus,
)
from jobqueue.core.lifecycle import DEATHS, Reason, State
from jobqueue.core.queue import SETTINGS, Queue, QueueSpec, QueueUpdate
from jobqueue.engine import operator
from tests import patience
from tests.engine.rig import PATIENCE, Rig, until

P, A, R, D, F, X = State


@pytest.mark.req("jq:FR-027")
async def test_the_default_queue_is_there_and_a_second_start_keeps_it(rig: Rig):
    assert [s.queue.name for s in await rig.engine.list_queues()] == ["default"]
    await rig.submit()
    await rig.engine.start()
    assert (await rig.engine.queue_stats("default")).depth[P] == 1


@pytest.mark.req("jq:FR-027")
async def test_the_default_queue_has_the_configured_defaults(open_rig):
    rig: Rig = await open_rig(queue=Queue(name="default", max_retries=7, capacity=2))
    assert (await rig.engine.get(await rig.submit())).max_retries == 7
    results = await rig.engine.submit([JobSpec(payload=b"x")] * 3)
    assert [r.status for r in results] == [SubmitStatus.ACCEPTED] + [SubmitStatus.REFUSED] * 2


# -- cancel --------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-012")
async def test_a_pending_job_is_cancelled_at_once(rig: Rig):
    job_id = await rig.submit()
    assert await rig.engine.cancel(job_id) == Cancellation(X, requested=False)
    job = await rig.engine.get(job_id)
    assert (job.state, job.reason) == (X, Reason.CANCELLED)


@pytest.mark.req("jq:FR-012")
async def test_cancelling_an_assigned_job_tells_its_worker(rig: Rig):
    worker = await rig.worker(slots=1)
    job_id = await rig.submit()
    assignment = await worker.gets_one()
    assert await rig.engine.cancel(job_id) == Cancellation(X, requested=False)
    await until(lambda: worker.cancelled == [assignment.lease])
    assert await worker.succeed(assignment) is False


async def test_a_running_job_is_asked_to_stop(rig: Rig):
    worker, assignment = await rig.running()
    assert await rig.engine.cancel(assignment.id) == Cancellation(R, requested=True)
    await until(lambda: worker.cancelled == [assignment.lease])
    assert worker.link.pulse([assignment.lease]).cancelled == [assignment.lease]
    assert await rig.state(assignment.id) is R
    assert await worker.succeed(assignment) is True
    job = await rig.engine.get(assignment.id)
    assert (job.state, job.reason, job.result) == (X, Reason.CANCELLED, None)


async def test_a_job_that_waits_for_its_retry_can_be_cancelled(rig: Rig):
    worker, assignment = await rig.running()
    await worker.fail(assignment)
    assert await rig.engine.cancel(assignment.id) == Cancellation(X, requested=False)


async def test_cancelling_what_has_ended_changes_nothing(rig: Rig):
    worker, assignment = await rig.running()
    await worker.succeed(assignment)
    answer = await rig.engine.cancel(assignment.id)
    assert answer == Cancellation(D, requested=False, already_terminal=True)


# -- retry and delete ----------------------------------------------------------------------


@pytest.mark.req("jq:FR-013", "inp:DLQ")
async def test_a_dead_letter_can_be_listed_retried_and_run(rig: Rig):
    worker, assignment = await rig.running(max_retries=0)
    await worker.fail(assignment, "broken")
    (dead,) = (await rig.engine.list_jobs(JobQuery(states=(X,)))).jobs
    assert (dead.id, dead.error, dead.reason) == (
        assignment.id,
        "broken",
        Reason.RETRIES_EXHAUSTED,
    )
    job = await rig.engine.retry(dead.id)
    assert (job.state, job.retry_count) == (P, 0)
    worker.link.grant(1)
    again = await worker.gets_one()
    assert (again.id, again.attempt) == (dead.id, 2)
    await worker.succeed(again)
    assert (await rig.engine.list_jobs(JobQuery(states=(X,)))).jobs == []


@pytest.mark.req("jq:FR-013")
async def test_only_failed_and_dead_lettered_jobs_can_be_retried(rig: Rig):
    worker, assignment = await rig.running()
    for state in (R, D):
        assert await rig.state(assignment.id) is state
        with pytest.raises(Conflict, match=state.name):
            await rig.engine.retry(assignment.id)
        if state is R:
            await worker.succeed(assignment)


@pytest.mark.req("inp:DLQ")
async def test_dead_letters_that_failed_are_retried_and_others_stay(rig: Rig):
    worker, failed = await rig.running(max_retries=0)
    await worker.fail(failed, "no route to host")
    await rig.engine.create_queue(QueueSpec(name="gone"))
    cancelled = await rig.submit()
    await rig.engine.cancel(cancelled)
    await rig.submit(queue="gone")
    await rig.engine.delete_queue("gone", force=True)

    counted = await rig.engine.retry_dead_letters(RetryQuery(dry_run=True))
    assert counted == Retried(3, 1, 0)
    nothing = await rig.engine.retry_dead_letters(RetryQuery(error="No Route"))
    assert nothing == Retried(3, 0, 0)
    done = await rig.engine.retry_dead_letters(RetryQuery(error="no route"))
    assert done == Retried(3, 1, 1)
    assert await rig.state(failed.id) is P
    assert await rig.state(cancelled) is X

    rest = await rig.engine.retry_dead_letters(RetryQuery(reasons=tuple(DEATHS)))
    assert (rest.looked_at, rest.matched, rest.retried) == (2, 2, 1)
    assert [one.message for one in rest.refused] == [
        "its queue 'gone' is deleted; create it again, then retry"
    ]
    assert await rig.state(cancelled) is P


async def test_a_retry_of_many_goes_on_where_it_stopped(rig: Rig, monkeypatch):
    monkeypatch.setattr("jobqueue.engine.operator._RETRY_CHUNK", 4)
    jobs = [await rig.submit() for _ in range(10)]
    for job_id in jobs:
        await rig.engine.cancel(job_id)
    query = RetryQuery(reasons=(Reason.CANCELLED,))
    counts = []
    while True:
        page = await rig.engine.retry_dead_letters(query)
        counts.append(page.retried)
        for job_id in jobs[-2:]:  # given up again behind us: not met twice
            await rig.engine.cancel(job_id)
        query.page_token = page.next_page_token
        if not query.page_token:
            break
    assert sum(counts) == 10
    assert counts[:2] == [4, 4]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("queue", {"queue": "no such name!"}),
        ("reasons", {"reasons": ()}),
        ("reasons", {"reasons": (Reason.SUCCEEDED,)}),
        ("error", {"error": "x" * 1_001}),
        ("since", {"since": float("nan")}),
        ("until", {"until": 1e300}),
        ("until", {"since": 5.0, "until": 5.0}),
        ("page_token", {"page_token": "x"}),
    ],
)
async def test_a_retry_of_many_names_what_is_wrong(rig: Rig, field: str, wrong: dict[str, Any]):
    with pytest.raises(InvalidArgument) as caught:
        await rig.engine.retry_dead_letters(RetryQuery(**wrong))
    assert caught.value.field == field


async def test_a_retry_of_many_names_an_unknown_queue(rig: Rig):
    with pytest.raises(NotFound, match="nowhere"):
        await rig.engine.retry_dead_letters(RetryQuery(queue="nowhere"))


# -- pages ---------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-032")
async def test_a_page_ends_before_it_grows_large(rig: Rig):
    """A standard gRPC client takes 4 MiB in one message."""
    sizes = [100, 900_000, 900_000, 900_000, 100, 100, 1_000_000, 1_000_000, 1_000_000, 100]
    ids = [await rig.submit(payload=b"x" * size) for size in sizes]
    seen: list[str] = []
    pages = 0
    query = JobQuery(limit=1000)
    while True:
        page = await rig.engine.list_jobs(query)
        assert page.jobs
        assert sum(len(job.payload) for job in page.jobs) <= 2 * 1024 * 1024
        seen += [job.id for job in page.jobs]
        pages += 1
        query.page_token = page.next_page_token
        if not query.page_token:
            break
    assert seen == ids[::-1]
    assert pages == 3


async def test_a_job_larger_than_a_page_is_a_page_of_its_own(open_rig):
    rig: Rig = await open_rig(max_payload_bytes=8 * 1024 * 1024)
    ids = [await rig.submit(payload=b"x" * 3_000_000) for _ in range(2)]
    first = await rig.engine.list_jobs(JobQuery())
    assert [job.id for job in first.jobs] == [ids[1]]
    rest = await rig.engine.list_jobs(JobQuery(page_token=first.next_page_token))
    assert [job.id for job in rest.jobs] == [ids[0]]
    assert rest.next_page_token == ""


async def test_pages_of_small_jobs_are_full(rig: Rig):
    await rig.engine.submit([JobSpec(payload=b"x")] * 1_001)
    page = await rig.engine.list_jobs(JobQuery(limit=1_000))
    assert (len(page.jobs), page.next_page_token != "") == (1_000, True)
    rest = await rig.engine.list_jobs(JobQuery(limit=1_000, page_token=page.next_page_token))
    assert (len(rest.jobs), rest.next_page_token) == (1, "")
    exact = await rig.engine.list_jobs(JobQuery(limit=1, page_token=page.next_page_token))
    assert (len(exact.jobs), exact.next_page_token) == (1, "")


# -- retry and queues ----------------------------------------------------------------------


async def test_a_retry_into_a_deleted_queue_is_refused(rig: Rig):
    await rig.engine.create_queue(QueueSpec(name="gone"))
    job_id = await rig.submit(queue="gone")
    await rig.engine.cancel(job_id)
    await rig.engine.delete_queue("gone")
    with pytest.raises(Conflict, match="gone"):
        await rig.engine.retry(job_id)
    assert await rig.state(job_id) is X


async def test_only_finished_jobs_can_be_deleted(rig: Rig):
    job_id = await rig.submit()
    with pytest.raises(Conflict, match="PENDING"):
        await rig.engine.delete_job(job_id)
    await rig.engine.cancel(job_id)
    await rig.engine.delete_job(job_id)
    with pytest.raises(NotFound):
        await rig.engine.get(job_id)


# -- queues --------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-026")
async def test_a_queue_with_unfinished_jobs_is_deleted_only_by_force(rig: Rig):
    await rig.engine.create_queue(QueueSpec(name="work"))
    ids = [await rig.submit(b"%d" % n, queue="work") for n in range(3)]
    worker = await rig.worker(slots=1, queues=("work",))
    assignment = await worker.gets_one()
    await worker.start(assignment)
    with pytest.raises(Conflict, match="3"):
        await rig.engine.delete_queue("work")
    assert await rig.engine.delete_queue("work", force=True) == 3
    for job_id in ids:
        job = await rig.engine.get(job_id)
        assert (job.state, job.reason) == (X, Reason.QUEUE_DELETED)
    await until(lambda: worker.cancelled == [assignment.lease])
    with pytest.raises(NotFound):
        await rig.engine.queue_stats("work")
    with pytest.raises(NotFound):
        await rig.engine.delete_queue("work")


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "$(date)", "x" * 101, ""])
async def test_a_queue_that_cannot_exist_is_not_looked_for(rig: Rig, name: str):
    """Not every store can read such a name; and nobody is told to create it."""
    engine = rig.engine
    rig.store.calls.clear()
    for call in (
        engine.queue_stats, engine.pause_queue, engine.resume_queue, engine.delete_queue,
        lambda name: engine.update_queue(name, QueueUpdate(capacity=1)),
    ):  # fmt: skip
        with pytest.raises(NotFound, match=r"there is no queue .*: a name is 1 to 100 letters"):
            await call(name)
    calls = {"queues.stats", "queues.pause", "queues.delete", "queues.update"}
    assert calls.isdisjoint(rig.store.calls)


# -- list ----------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-032")
async def test_pages_are_linked_by_tokens_and_the_last_has_none(rig: Rig):
    ids = [r.job_id for r in await rig.engine.submit([JobSpec(payload=b"x")] * 25)]
    seen: list[str] = []
    token = ""
    sizes = []
    while True:
        page = await rig.engine.list_jobs(JobQuery(limit=10, page_token=token))
        seen += [job.id for job in page.jobs]
        sizes.append(len(page.jobs))
        token = page.next_page_token
        if not token:
            break
    assert seen == ids[::-1]
    assert sizes == [10, 10, 5]
    exactly = await rig.engine.list_jobs(JobQuery(limit=25))
    assert (len(exactly.jobs), exactly.next_page_token) == (25, "")


# -- health and life -----------------------------------------------------------------------


async def test_health_says_whether_the_store_works(rig: Rig):
    health = await rig.engine.health()
    assert health.ok
    assert [(c.name, c.ok) for c in health.components] == [("database", True), ("leader", True)]
    assert "not durable" in health.components[0].detail
    rig.store.fail["ping"] = [Unavailable("disk is full")]
    health = await rig.engine.health()
    assert not health.ok
    assert "disk is full" in health.components[0].detail


@pytest.mark.req("jq:NFR-009")
async def test_health_does_not_wait_for_a_store_that_hangs(rig: Rig):
    released = asyncio.Event()
    asked = 0

    async def hangs(patience: float | None = None) -> None:
        nonlocal asked
        asked += 1
        await released.wait()

    rig.memory.ping = hangs  # type: ignore[method-assign]
    for _ in range(3):
        health = await rig.engine.health()
        assert not health.ok
        (part,) = health.components
        assert part.name == "database"
        assert part.detail.startswith("memory of this process: no answer for ")
    assert asked == 1  # not once for each probe
    released.set()
    async with patience.timeout(PATIENCE):
        while not (await rig.engine.health()).ok:
            await asyncio.sleep(0.01)


async def test_who_asks_for_health_during_a_stop_is_answered(rig: Rig):
    begun = asyncio.Event()

    async def hangs(patience: float | None = None) -> None:
        begun.set()
        await asyncio.Event().wait()

    rig.memory.ping = hangs  # type: ignore[method-assign]
    asking = asyncio.create_task(rig.engine.health())
    async with patience.timeout(PATIENCE):
        await begun.wait()
        await rig.engine.stop()
        health = await asking
    assert not health.ok


async def test_health_names_who_leads(rig: Rig):
    async with patience.timeout(PATIENCE):
        while True:
            parts = (await rig.engine.health()).components
            (leader,) = [part for part in parts if part.name == "leader"]
            if "epoch" in leader.detail:
                break
            await asyncio.sleep(0.01)
    assert leader.ok
    assert leader.detail.startswith(f"{socket.gethostname()}:{os.getpid()} since ")


async def test_stopping_twice_or_before_the_start_is_fine(rig: Rig):
    other = Rig()
    await other.engine.stop()
    await rig.engine.stop()
    await rig.engine.stop()


async def test_a_stopped_engine_accepts_nothing(rig: Rig):
    await rig.engine.stop()
    with pytest.raises(Unavailable):
        await rig.submit()
    assert await rig.memory.queues.stats("default")
    assert (await rig.memory.queues.stats("default"))[0].depth[P] == 0


async def test_a_new_queue_gets_the_servers_defaults_where_nothing_is_said(open_rig):
    defaults = Queue(name="default", max_retries=7, capacity=5, retry_profile="producer", ttl=60.0)
    rig: Rig = await open_rig(queue=defaults)
    made = await rig.engine.create_queue(QueueSpec(name="mail", max_retries=0, capacity=0))
    assert (made.max_retries, made.capacity) == (0, 0)
    assert (made.retry_profile, made.ttl) == ("producer", 60.0)
    assert (await rig.engine.queue_stats("mail")).queue == made


async def test_an_update_is_checked_as_a_creation_is(rig: Rig):
    before = (await rig.engine.queue_stats("default")).queue
    wrong: dict[str, Any] = {
        "max_retries": -1,
        "ttl": 0.0,
        "timeout": float("nan"),
        "capacity": -1,
        "retry_profile": "never",
        "retry_base": 301.0,  # more than its profile's maximum
        "retry_max": 1.0,
        "retry_jitter": 1.5,
        "retention": -1.0,
        "dead_letter_retention": float("nan"),
        "priority_weights": {10: 1},
        "max_running": -1,
        "rate": 2_000_000_000,
        "rate_period": 60.0,  # without a rate
        "rate_burst": -1,
        "key_max_running": -1,
        "key_rate": 2_000_000_000,
        "key_rate_period": 60.0,  # without a rate
        "key_rate_burst": -1,
        "key_weights": {"a": 0},
    }
    assert set(wrong) == set(SETTINGS)
    for name, value in wrong.items():
        with pytest.raises(InvalidArgument) as refused:
            await rig.engine.update_queue("default", QueueUpdate(**{"capacity": 5, name: value}))
        assert refused.value.field == name
    with pytest.raises(InvalidArgument, match="names no setting; allowed: max_retries, "):
        await rig.engine.update_queue("default", QueueUpdate())
    with pytest.raises(NotFound, match="jq-ctl queue create nowhere"):
        await rig.engine.update_queue("nowhere", QueueUpdate(capacity=5))
    assert (await rig.engine.queue_stats("default")).queue == before


async def test_a_setting_is_put_back_to_what_the_server_is_configured_to(open_rig):
    defaults = Queue(name="default", max_retries=7, retry_base=2.0, retry_max=9.0, ttl=60.0)
    rig: Rig = await open_rig(queue=defaults)
    made = await rig.engine.create_queue(
        QueueSpec(name="mail", max_retries=0, retry_base=1.0, retry_jitter=0.5, ttl=5.0)
    )
    assert (made.retry_base, made.retry_max, made.retry_jitter) == (1.0, 9.0, 0.5)
    update = QueueUpdate(max_retries=None, ttl=None, retry_base=None, retry_jitter=None)
    changed = await rig.engine.update_queue("mail", update)
    assert (changed.max_retries, changed.ttl) == (7, 60.0)
    assert (changed.retry_base, changed.retry_max, changed.retry_jitter) == (2.0, 9.0, None)
    assert (await rig.engine.queue_stats("mail")).queue == changed


async def dead_letter(rig: Rig, error: str) -> str:
    worker, failed = await rig.running(max_retries=0)
    await worker.fail(failed, error)
    return failed.id


async def test_dead_letters_are_deleted_and_grouped_by_a_query(rig: Rig):
    first, second, third = [await dead_letter(rig, error) for error in ("a 1", "a 2", "b")]
    groups = await rig.engine.group_dead_letters(RetryQuery())
    assert (groups.looked_at, groups.complete) == (3, True)
    assert [(one.error, one.jobs) for one in groups.groups] == [("a …", 2), ("b", 1)]
    counted = await rig.engine.delete_dead_letters(RetryQuery(error="a", dry_run=True))
    assert counted == Deleted(3, 2, 0)
    assert await rig.engine.delete_dead_letters(RetryQuery(error="a")) == Deleted(3, 2, 2)
    for gone in (first, second):
        with pytest.raises(NotFound):
            await rig.engine.get(gone)
    assert (await rig.engine.get(third)).state is State.DEAD_LETTERED
    with pytest.raises(NotFound):
        await rig.engine.delete_dead_letters(RetryQuery(queue="nowhere"))


async def test_only_the_newest_dead_letters_are_grouped(rig: Rig, monkeypatch):
    monkeypatch.setattr(operator, "_MOST_GROUPED", 2)
    for error in ("old", "new", "new"):
        await dead_letter(rig, error)
    groups = await rig.engine.group_dead_letters(RetryQuery())
    assert (groups.looked_at, groups.complete) == (2, False)
    assert [(one.error, one.jobs) for one in groups.groups] == [("new", 2)]


async def test_a_dead_letter_that_was_retried_meanwhile_is_not_deleted(rig: Rig, monkeypatch):
    job_id = await dead_letter(rig, "a")
    reads = rig.engine.store.reads
    describe = reads.describe

    async def later(numbers):
        found = await describe(numbers)
        monkeypatch.undo()
        await rig.engine.retry(job_id)
        await rig.engine.cancel(job_id)
        return found

    monkeypatch.setattr(reads, "describe", later)
    assert await rig.engine.delete_dead_letters(RetryQuery()) == Deleted(1, 1, 0)
    assert (await rig.engine.get(job_id)).state is State.DEAD_LETTERED
