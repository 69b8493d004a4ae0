"""Bad input: the same code on every face, a message that names the field, and no effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.api.public.conftest import MAX_PAYLOAD
from tests.api.public.face import PublicFace, Refused, Spec

NOBODY = "00000000-0000-4000-8000-000000000000"
LOWER = "abcdefab-0000-4000-8000-000000000000"

# All cases of a kind in one test: none has an effect, and a deployment takes longer than all calls.
BAD_JOBS = [
    (Spec(payload=b""), "payload"),
    (Spec(payload=b'"' + b"x" * (MAX_PAYLOAD - 1) + b'"'), "payload"),
    (Spec(priority=-1), "priority"),
    (Spec(priority=10), "priority"),
    (Spec(max_retries=-1), "max_retries"),
    (Spec(ttl=0), "ttl"),
    (Spec(ttl=-5), "ttl"),
    (Spec(timeout=0), "timeout"),
    (Spec(delay=-1), "delay"),
    (Spec(delay=1, run_at=2_000_000_000), "delay"),
    (Spec(delay=10, ttl=5), "delay"),
    (Spec(run_at=4_000_000_000, ttl=5), "run_at"),
    (Spec(key=""), "idempotency_key"),
    (Spec(key="k" * 256), "idempotency_key"),
    (Spec(unique={"key": ""}), "unique.key"),
    (Spec(unique={"key": "k" * 256}), "unique.key"),
    (Spec(unique={"key": "k", "scope": "forever"}), "unique.scope"),
    (Spec(unique={"key": "k", "period": 0}), "unique.period"),
    (Spec(unique={"key": "k", "period": 1e12}), "unique.period"),
    (Spec(unique={"key": "k", "on_conflict": "merge"}), "unique.on_conflict"),
    (Spec(unique={"key": "k", "on_conflict": "replace"}), "unique.on_conflict"),
    (Spec(concurrency_key=""), "concurrency_key"),
    (Spec(concurrency_key="k" * 201), "concurrency_key"),
    (Spec(queue="no spaces"), "queue"),
    (Spec(queue=""), "queue"),
    (Spec(type="t" * 201), "type"),
    (Spec(labels={"": "x"}), "labels"),
    (Spec(labels={str(n): "x" for n in range(33)}), "labels"),
]
BAD_QUEUES: list[tuple[str, dict[str, object], str]] = [
    ("a b", {}, "name"),
    ("x" * 101, {}, "name"),
    ("q", {"max_retries": -1}, "max_retries"),
    ("q", {"ttl": -1.0}, "ttl"),
    ("q", {"timeout": 0.0}, "timeout"),
    ("q", {"capacity": -1}, "capacity"),
    ("q", {"retry_profile": "eager"}, "retry_profile"),
    ("q", {"retry_base": 0.0}, "retry_base"),
    ("q", {"retry_base": 9.0, "retry_max": 8.0}, "retry_base"),
    ("q", {"retry_max": -1.0}, "retry_max"),
    ("q", {"retry_jitter": 1.5}, "retry_jitter"),
    ("q", {"retention": -1.0}, "retention"),
    ("q", {"dead_letter_retention": -1.0}, "dead_letter_retention"),
    ("q", {"priority_weights": {10: 1}}, "priority_weights"),
    ("q", {"priority_weights": {1: 0}}, "priority_weights"),
    ("q", {"max_running": -1}, "max_running"),
    ("q", {"rate": 1_000_000_001}, "rate"),
    ("q", {"rate": 1, "rate_period": 0.0}, "rate_period"),
    ("q", {"rate_period": 60.0}, "rate_period"),
    ("q", {"rate_burst": 5}, "rate_burst"),
    ("q", {"key_max_running": -1}, "key_max_running"),
    ("q", {"key_rate": 1_000_000_001}, "key_rate"),
    ("q", {"key_rate_period": 60.0}, "key_rate_period"),
    ("q", {"key_rate_burst": 5}, "key_rate_burst"),
    ("q", {"key_weights": {"a": 0}}, "key_weights"),
    ("q", {"key_weights": {"": 1}}, "key_weights"),
    ("q", {"key_weights": {f"k{n}": 1 for n in range(1_001)}}, "key_weights"),
]


async def refusal(call: Awaitable[object], case: object = "it") -> Refused:
    try:
        answer = await call
    except Refused as refused:
        return refused
    pytest.fail(f"{case} was accepted: {answer}")


@pytest.mark.req("jq:FR-002", "jq:FR-003")
async def test_bad_jobs(face: PublicFace) -> None:
    for spec, field in BAD_JOBS:
        refused = await refusal(face.submit(spec), spec)
        assert (refused.code, refused.field) == ("INVALID_ARGUMENT", field), spec
        assert refused.message.startswith(f"{field}: "), spec
        assert (await face.list()).jobs == [], spec


async def test_the_largest_payload_is_accepted(face: PublicFace) -> None:
    payload = b'"' + b"x" * (MAX_PAYLOAD - 2) + b'"'
    submitted = await face.submit(Spec(payload=payload))
    assert (await face.get(submitted.job_id)).payload == payload


@pytest.mark.req("jq:FR-006")
async def test_an_unknown_queue(face: PublicFace) -> None:
    refused = await refusal(face.submit(Spec(queue="nowhere", key="k")))
    assert refused.code == "NOT_FOUND"
    assert "nowhere" in refused.message
    assert (await face.list()).jobs == []
    assert [queue.name for queue in await face.queues()] == ["default"]
    assert not (await face.submit(Spec(key="k"))).duplicate  # the refusal left no key


async def test_bad_and_unknown_ids(face: PublicFace) -> None:
    async def ask(call: str, job_id: str) -> object:
        if call == "wait":
            return await face.wait(job_id, 1)
        if call == "watch":
            return [event async for event in face.watch(job_id)]
        method: Callable[[str], Awaitable[object]] = getattr(face, call)
        return await method(job_id)

    for call in ("get", "history", "cancel", "retry", "delete", "wait", "watch"):
        for bad in ("42", "not-a-uuid", NOBODY[:-1], LOWER.upper(), f" {LOWER}"):
            refused = await refusal(ask(call, bad), call)
            assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "job_id"), call
            assert bad in refused.message, call
        refused = await refusal(ask(call, NOBODY), call)
        assert refused.code == "NOT_FOUND", call
        assert NOBODY in refused.message, call


async def test_bad_lists(face: PublicFace) -> None:
    await face.submit(Spec())
    refused = await refusal(face.list(page_token="nonsense"))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "page_token")
    refused = await refusal(face.list(states=["LOST"]))
    assert refused.code == "INVALID_ARGUMENT"
    assert refused.field in ("status", "states")
    assert "DEAD_LETTERED" in refused.message
    for limit in (0, -1, 1_001):
        refused = await refusal(face.list(limit=limit))
        assert refused.code == "INVALID_ARGUMENT"
        assert refused.field in ("limit", "page_size")


async def test_bad_queues(face: PublicFace) -> None:
    for name, settings, field in BAD_QUEUES:
        refused = await refusal(face.create_queue(name, **settings), settings)
        assert (refused.code, refused.field) == ("INVALID_ARGUMENT", field), (name, settings)
        assert [queue.name for queue in await face.queues()] == ["default"], (name, settings)
