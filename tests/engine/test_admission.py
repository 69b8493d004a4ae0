"""Bad input: each field is named, what is allowed is said, nothing happens."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jobqueue.core.errors import AlreadyExists, InvalidArgument, JobQueueError, NotFound
from jobqueue.core.job import JobQuery, JobSpec, SubmitStatus, WorkerInfo
from jobqueue.core.queue import QueueSpec, QueueStats
from tests.engine.rig import Rig, Worker

UNKNOWN = "00000000-0000-4000-8000-000000000000"
GOOD: dict[str, Any] = {"payload": b"x"}
BAD_SPECS: list[tuple[str, dict[str, Any]]] = [
    ("queue", {"queue": ""}),
    ("queue", {"queue": "no spaces"}),
    ("queue", {"queue": "-leading"}),
    ("queue", {"queue": "x" * 101}),
    ("queue", {"queue": "a\nb"}),
    ("queue", {"queue": "default\n"}),
    ("payload", {"payload": b""}),
    ("payload", {"payload": b"x" * 1025}),
    ("priority", {"priority": -1}),
    ("priority", {"priority": 10}),
    ("max_retries", {"max_retries": -1}),
    ("max_retries", {"max_retries": 1_000_000}),
    ("ttl", {"ttl": 0.0}),
    ("ttl", {"ttl": -1.0}),
    ("ttl", {"ttl": math.nan}),
    ("ttl", {"ttl": math.inf}),
    ("timeout", {"timeout": 0.0}),
    ("timeout", {"timeout": -5.0}),
    ("timeout", {"timeout": math.nan}),
    ("delay", {"delay": -1.0}),
    ("delay", {"delay": math.inf}),
    ("delay", {"delay": 1.0, "run_at": 2_000_000_000.0}),
    ("delay", {"delay": 10.0, "ttl": 5.0}),
    ("delay", {"delay": 5.0, "ttl": 5.0}),
    ("run_at", {"run_at": 4_000_000_000.0, "ttl": 5.0}),
    ("run_at", {"run_at": math.nan}),
    ("run_at", {"run_at": -1.0}),
    ("run_at", {"run_at": 1e15}),
    ("type", {"type": "x" * 201}),
    ("type", {"type": "lone \ud800 surrogate"}),
    ("idempotency_key", {"key": ""}),
    ("idempotency_key", {"key": "x" * 256}),
    ("idempotency_key", {"key": "lone \udfff surrogate"}),
    ("labels", {"labels": {"": "v"}}),
    ("labels", {"labels": {"k": "v" * 256}}),
    ("labels", {"labels": {f"k{n}": "v" for n in range(33)}}),
    ("labels", {"labels": {f"k{n}".ljust(255, "k"): "\N{WATER WAVE}" * 255 for n in range(32)}}),
    ("labels", {"labels": {"k": "\ud800"}}),
]


@pytest.mark.req("jq:FR-002", "jq:FR-003")
@pytest.mark.parametrize(("field", "wrong"), BAD_SPECS, ids=lambda value: repr(value)[:40])
async def test_a_bad_field_is_named_and_harms_nobody_else(open_rig, field: str, wrong: dict):
    """The bad job shares its call with two good ones."""
    rig: Rig = await open_rig(max_payload_bytes=1024)
    first, bad, last = await rig.engine.submit(
        [JobSpec(**GOOD), JobSpec(**(GOOD | wrong)), JobSpec(**GOOD)]
    )
    assert (first.status, last.status) == (SubmitStatus.ACCEPTED, SubmitStatus.ACCEPTED)
    assert bad.status is SubmitStatus.REFUSED
    assert isinstance(bad.error, InvalidArgument)
    assert bad.error.field == field
    assert bad.error.message.startswith(f"{field}: ")
    assert len((await rig.engine.list_jobs(JobQuery())).jobs) == 2


async def test_a_job_that_would_expire_before_its_start_names_both_times(rig: Rig):
    (result,) = await rig.engine.submit([JobSpec(payload=b"x", delay=10.0, ttl=5.0)])
    assert result.error is not None
    assert result.error.message == (
        "delay: the job would expire before it may start: it waits 10 s, and its ttl ends 5 s"
        " after the submit; make ttl longer than delay"
    )


async def test_a_delay_beyond_the_queues_own_ttl_is_refused(rig: Rig):
    await rig.engine.create_queue(QueueSpec(name="brief", ttl=60.0))
    wrong = JobSpec(payload=b"x", queue="brief", delay=61.0)
    good = JobSpec(payload=b"x", queue="brief", delay=59.0)
    own = JobSpec(payload=b"x", queue="brief", delay=61.0, ttl=120.0)
    other = JobSpec(payload=b"x", delay=61.0)
    unknown = JobSpec(payload=b"x", queue="nowhere", delay=61.0)
    results = await rig.engine.submit([wrong, good, own, other, unknown])
    assert [type(result.error) for result in results] == [
        InvalidArgument, type(None), type(None), type(None), NotFound
    ]  # fmt: skip
    assert results[0].error is not None
    assert "its queue's ttl ends 60 s after the submit" in results[0].error.message


async def test_the_store_is_asked_only_for_ttls_of_queues_that_can_exist(rig: Rig):
    """A name that it cannot even read would be an error of the whole call."""
    asked: list[str | None] = []
    stats = rig.memory.queues.stats

    async def noted(queue: str | None = None) -> list[QueueStats]:
        asked.append(queue)
        return await stats(queue)

    rig.memory.queues.stats = noted  # type: ignore[method-assign]
    names = ["a\0b", "\ud800", "x" * 101, "", "default"]
    results = await rig.engine.submit(
        [JobSpec(payload=b"x", queue=name, delay=1.0) for name in names]
    )
    assert [result.status for result in results] == [SubmitStatus.REFUSED] * 4 + [
        SubmitStatus.ACCEPTED
    ]
    assert asked == ["default"]


@pytest.mark.parametrize(
    "good",
    [
        {"delay": 5.0, "ttl": 5.1},
        {"delay": 0.0, "ttl": 0.5},
        {"run_at": 1.0, "ttl": 0.5},
        {"priority": 0},
        {"priority": 9},
        {"max_retries": 0},
        {"delay": 0.0},
        {"type": ""},
        {"key": "x" * 255},
        {"payload": b"x" * 1024},
        {"labels": {"k": ""}},
        {"labels": {f"{n:03}".ljust(255, "k"): "v" * 255 for n in range(32)}},
        {"key": "emoji 🎉 and ümläuts"},
    ],
    ids=repr,
)
async def test_the_edges_of_what_is_allowed_are_allowed(open_rig, good: dict):
    rig: Rig = await open_rig(max_payload_bytes=1024)
    (result,) = await rig.engine.submit([JobSpec(**(GOOD | good))])
    assert result.status is SubmitStatus.ACCEPTED


@pytest.mark.req("jq:FR-006")
async def test_an_unknown_queue_is_not_found(rig: Rig):
    (result,) = await rig.engine.submit([JobSpec(payload=b"x", queue="nowhere")])
    assert isinstance(result.error, NotFound)
    assert "nowhere" in result.error.message


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("name", {"name": ""}),
        ("name", {"name": "a/b"}),
        ("max_retries", {"max_retries": -1}),
        ("ttl", {"ttl": 0.0}),
        ("timeout", {"timeout": math.nan}),
        ("capacity", {"capacity": -1}),
        ("capacity", {"capacity": 10**24}),
        ("retry_profile", {"retry_profile": "never"}),
        ("priority_weights", {"priority_weights": {10: 1}}),
        ("priority_weights", {"priority_weights": {5: 0}}),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_queue_that_makes_no_sense_is_refused(rig: Rig, field: str, wrong: dict):
    with pytest.raises(InvalidArgument) as refused:
        await rig.engine.create_queue(QueueSpec(**({"name": "new"} | wrong)))
    assert refused.value.field == field
    assert [s.queue.name for s in await rig.engine.list_queues()] == ["default"]


@pytest.mark.req("jq:FR-025")
async def test_a_queue_is_created_once(rig: Rig):
    await rig.engine.create_queue(QueueSpec(name="mail", priority_weights={9: 5, 5: 3, 0: 1}))
    with pytest.raises(AlreadyExists):
        await rig.engine.create_queue(QueueSpec(name="mail"))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("worker_id", {"id": ""}),
        ("worker_id", {"id": "x" * 256}),
        ("worker_id", {"id": "line\nbreak"}),
        ("concurrency", {"concurrency": 0}),
        ("concurrency", {"concurrency": 1_000_000}),
        ("queues", {"queues": ()}),
        ("queues", {"queues": ("bad name",)}),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_worker_that_could_not_be_fed_is_refused(rig: Rig, field: str, wrong: dict):
    standard = {
        "id": "w",
        "incarnation": 1,
        "hostname": "h",
        "pid": 1,
        "concurrency": 1,
        "queues": ("default",),
    }
    info = WorkerInfo(**(standard | wrong))
    with pytest.raises(InvalidArgument) as refused:
        await rig.engine.connect(info, Worker(info))
    assert refused.value.field == field
    assert await rig.engine.list_workers() == []


@pytest.mark.parametrize(
    ("field", "query"),
    [
        ("limit", JobQuery(limit=0)),
        ("limit", JobQuery(limit=100_000)),
        ("queue", JobQuery(queue="a b")),
        ("page_token", JobQuery(page_token="nonsense")),
        ("page_token", JobQuery(page_token="s" + "f" * 17)),
        ("page_token", JobQuery(page_token="sffffffffffffffff")),
    ],
    ids=repr,
)
async def test_a_bad_query_is_refused(rig: Rig, field: str, query: JobQuery):
    with pytest.raises(InvalidArgument) as refused:
        await rig.engine.list_jobs(query)
    assert refused.value.field == field


@pytest.mark.parametrize("call", ["get", "history", "cancel", "retry", "delete_job"])
async def test_a_bad_or_unknown_job_id_has_the_same_answer_everywhere(rig: Rig, call: str):
    with pytest.raises(InvalidArgument) as refused:
        await getattr(rig.engine, call)("42")
    assert refused.value.field == "job_id"
    with pytest.raises(NotFound):
        await getattr(rig.engine, call)(UNKNOWN)


async def test_waiting_and_watching_check_the_id_too(rig: Rig):
    for job_id, error in (
        ("42", InvalidArgument),
        ("0" * 8 + "-0000-4000-8000-" + "0" * 12, NotFound),
    ):
        kind: type[JobQueueError] = error
        with pytest.raises(kind):
            await rig.engine.wait(job_id, 0)
        with pytest.raises(kind):
            async for _ in rig.engine.watch(job_id):
                pass
