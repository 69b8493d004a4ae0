"""What people read with ``redis-cli``, and what they must be able to rely on."""

from __future__ import annotations

import re

import pytest

from jobqueue.core.job import Transition
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim
from tests.stores.driver import new, spec, worker

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@pytest.mark.req("sch:SCHEMA")
async def test_a_job_has_the_fields_of_the_document(open_store, client):
    store = await open_store()
    (result,) = (
        await store.jobs.submit(new(spec(b'{"task": "image_resize"}', max_retries=3)))
    ).results
    (got,) = await store.jobs.claim([Claim(("q",), ["worker-node-01"])])
    document = await client.hgetall(f"{{jq}}:job:{result.job_id}")
    assert {
        name: document[name]
        for name in (
            "job_id", "payload", "status", "assigned_worker", "retry_count", "max_retries",
        )
    } == {
        "job_id": result.job_id,
        "payload": '{"task": "image_resize"}',
        "status": "ASSIGNED",
        "assigned_worker": "worker-node-01",
        "retry_count": "0",
        "max_retries": "3",
    }  # fmt: skip
    assert MOMENT.fullmatch(document["created_at"])
    assert MOMENT.fullmatch(document["updated_at"])
    assert document["created_at"] < document["updated_at"]
    assert document["lease"] == str(got.lease)


@pytest.mark.req("sch:SCHEMA")
async def test_a_worker_has_the_fields_of_the_document(open_store, client):
    store = await open_store()
    await store.workers.register(worker("worker-node-01", 2**62 + 1))
    document = await client.hgetall("{jq}:worker:worker-node-01")
    assert (document["worker_id"], document["status"]) == ("worker-node-01", "ONLINE")
    assert document["incarnation"] == str(2**62 + 1)
    first = document["last_heartbeat"]
    assert MOMENT.fullmatch(first)
    store.workers.pulse("worker-node-01", 2**62 + 1, [])
    assert await client.hget("{jq}:worker:worker-node-01", "last_heartbeat") > first
    await store.jobs.submit(new(spec(), spec()))
    got = await store.jobs.claim([Claim(("q",), ["worker-node-01"] * 2)])
    current = "{jq}:current_jobs:worker-node-01"
    assert set(await client.hkeys(current)) == {one.id for one in got}
    await store.jobs.apply([Transition.succeeded(got[0].seq, got[0].lease, None)])
    assert await client.hkeys(current) == [got[1].id]


async def test_queues_are_sorted_sets_of_job_ids(open_store, client):
    store = await open_store()
    jobs = new(spec(), spec(priority=9), spec(delay=60.0), spec(type="send"))
    low, high, late, sent = (one.job_id for one in (await store.jobs.submit(jobs)).results)
    assert await client.smembers("{jq}:queues") == {"q"}
    assert await client.zrange("{jq}:ready:q:", 0, -1) == [high, low]
    assert await client.zrange("{jq}:ready:q:send", 0, -1) == [sent]
    assert await client.zrange("{jq}:ready_types:q", 0, -1) == ["", "send"]
    assert await client.zrange("{jq}:pending:q", 0, -1) == [low, high, late, sent]
    assert await client.zrange("{jq}:due", 0, -1) == [late]
    assert (await client.hgetall("{jq}:queue:q"))["max_retries"] == "3"


async def test_the_outbox_is_a_stream_in_the_order_of_commit(open_store, client):
    store = await open_store()
    (result,) = (await store.jobs.submit(new(spec()))).results
    (got,) = await store.jobs.claim([Claim(("q",), ["w"])])
    await store.jobs.apply([Transition.failed(got.seq, got.lease, "boom", retryable=False)])
    entries = [fields for _, fields in await client.xrange("{jq}:events")]
    assert {one["job_id"] for one in entries} == {result.job_id}
    assert [(one["from"], one["to"], one["reason"]) for one in entries] == [
        ("", "PENDING", "SUBMITTED"),
        ("PENDING", "ASSIGNED", "ASSIGNED"),
        ("ASSIGNED", "RUNNING", "STARTED"),
        ("RUNNING", "FAILED", "HANDLER_FAILED"),
        ("FAILED", "DEAD_LETTERED", "NOT_RETRYABLE"),
    ]


async def test_times_are_shown_as_the_calendar_has_them(open_store, client):
    """The scripts know the calendar by themselves: leap days, ends of years and centuries."""
    from datetime import UTC, datetime

    from jobqueue.core.clock import ManualClock

    moments = [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2000, 2, 29, 12, tzinfo=UTC),
        datetime(2023, 3, 1, tzinfo=UTC),
        datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC),
        datetime(2026, 11, 15, 1, 2, 3, 456_789, tzinfo=UTC),
        datetime(2100, 2, 28, 23, 0, 0, 1, tzinfo=UTC),
        datetime(2100, 3, 1, tzinfo=UTC),
    ]
    for n, moment in enumerate(moments):
        store = await open_store(clock=ManualClock(moment.timestamp()), prefix=f"{{{n}}}:")
        await store.workers.register(worker())
        shown = await client.hget(f"{{{n}}}:worker:w", "last_heartbeat")
        assert shown == moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        (known,) = await store.workers.all()
        assert known.registered_at == pytest.approx(moment.timestamp(), abs=1e-6)


async def test_two_prefixes_in_one_database_know_nothing_of_each_other(open_store):
    one, two = await open_store(prefix="{a}:"), await open_store(prefix="{b}:")
    await one.jobs.submit(new(spec()))
    assert await two.jobs.claim([Claim(("*",), ["w"])]) == []
    assert len(await one.jobs.claim([Claim(("*",), ["w"])])) == 1
    assert await two.queues.create(Queue(name="only here"))
    assert [stats.queue.name for stats in await one.queues.stats()] == ["q"]


async def test_nothing_is_left_of_a_job_that_was_removed(open_store, client):
    store = await open_store()
    before = set(await client.keys())
    (result,) = (await store.jobs.submit(new(spec(key="k", ttl=60.0)))).results
    (got,) = await store.jobs.claim([Claim(("q",), ["w"])])
    await store.jobs.apply([Transition.succeeded(got.seq, got.lease, b"r")])
    await store.upkeep.delete_job(result.job_id)
    left = {key for key in await client.keys() if not key.startswith("{jq}:lane:")}
    # Numbers go on where they were, and an emptied stream keeps its place.
    before |= {"{jq}:counters", "{jq}:events"}
    assert left <= before
    assert await client.xlen("{jq}:events") == 0
