"""POST /jobs: bodies, status codes, and the bytes that are stored."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.core.errors import OutcomeUnknown, QueueFull, Unavailable
from jobqueue.core.ids import parse_job_id
from jobqueue.core.lifecycle import Reason, State
from tests.api.http.conftest import Serve
from tests.api.http.fake import CREATED, FakeBackend

ORDER = {
    "payload": "process-order-42",
    "idempotency_key": "order-42",
    "priority": 5,
    "max_retries": 3,
}


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body["error"]) <= {"code", "message", "field"}
    return body["error"]


@pytest.mark.req("inp:HTTP")
async def test_the_producer_documents_body_is_accepted(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    response = await http.post("/jobs", json=ORDER)
    assert response.status_code == 202
    body = response.json()
    assert body["status"] == "PENDING"
    assert parse_job_id(body["job_id"]) == body["job_id"]
    assert response.headers["location"] == f"/jobs/{body['job_id']}"
    [spec] = backend.specs
    assert (spec.payload, spec.key, spec.priority, spec.max_retries, spec.type) == (
        b'"process-order-42"',
        "order-42",
        5,
        3,
        "",
    )


async def test_the_scheduler_documents_body_names_its_task(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    body = {"payload": {"task": "image_resize", "image_url": "s3://bucket/image.png"}}
    response = await http.post("/jobs", json=body)
    assert response.status_code == 202
    assert backend.specs[0].type == "image_resize"


@pytest.mark.parametrize(
    ("body", "task"),
    [
        ('{"payload": {"task": "inner"}, "type": "outer"}', "outer"),
        ('{"payload": {"task": "inner"}, "type": ""}', ""),
        ('{"payload": {"task": 7}}', ""),
        ('{"payload": {"other": "x"}}', ""),
        ('{"payload": ["task"]}', ""),
        ('{"payload": "task"}', ""),
        ('{"payload": {"task": "caf\\u00e9"}}', "café"),
    ],
)
async def test_where_the_task_name_comes_from(
    http: httpx.AsyncClient, backend: FakeBackend, body: str, task: str
) -> None:
    assert (await http.post("/jobs", content=body)).status_code == 202
    assert backend.specs[0].type == task


@pytest.mark.req("sch:API")
@pytest.mark.parametrize("task", ["5", "null", "[]", "{}", "true"])
async def test_in_the_scheduler_view_a_task_must_be_a_name(
    http: httpx.AsyncClient, backend: FakeBackend, task: str
) -> None:
    body = f'{{"payload": {{"task": {task}}}}}'
    refused = await http.post("/jobs?view=scheduler", content=body)
    assert refused.status_code == 400
    assert "payload.task: must be the name of a task" in refused.text
    assert not backend.specs
    assert (await http.post("/jobs", content=body)).status_code == 202  # elsewhere it is opaque


@pytest.mark.req("jq:FR-007")
@pytest.mark.parametrize(
    "payload",
    [
        b'{"b" :  1,\n  "a": 2.50, "b": 3}',
        b"null",
        b"0",
        b"false",
        b"[]",
        b"{}",
        b'" "',
        b"1.0e5",
        b"123456789012345678901234567890",
        b'"\\u00e9 \xc3\xa9"',
    ],
)
async def test_payload_bytes_are_kept_as_sent(
    http: httpx.AsyncClient, backend: FakeBackend, payload: bytes
) -> None:
    response = await http.post("/jobs", content=b'{ "payload" : ' + payload + b" }")
    assert response.status_code == 202
    assert backend.specs[0].payload == payload
    job_id = response.json()["job_id"]
    shown = await http.get(f"/jobs/{job_id}")
    assert b'"payload":' + payload + b"," in shown.content


async def test_every_field_arrives(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    body = {
        "payload": 1,
        "queue": "default",
        "type": "t",
        "priority": 9,
        "max_retries": 0,
        "ttl": 1.5,
        "run_at": "2030-01-31T12:00:00+02:00",
        "timeout": 7,
        "idempotency_key": "k",
        "labels": {"team": "a"},
    }
    assert (await http.post("/jobs", json=body)).status_code == 202
    [spec] = backend.specs
    assert spec.run_at == 1_896_084_000.0
    assert (spec.ttl, spec.timeout, spec.delay, spec.max_retries) == (1.5, 7.0, None, 0)
    assert (spec.labels, spec.key, spec.queue, spec.priority) == ({"team": "a"}, "k", "default", 9)
    assert (await http.post("/jobs", json={"payload": 1, "run_at": 12.5})).status_code == 202
    assert backend.specs[1].run_at == 12.5


@pytest.mark.req("inp:HTTP")
@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        (b"{}", "payload", "is missing"),
        (b'{"payload": ""}', "payload", "must not be empty"),
        (b'{"payload": 1, "prioriti": 2}', "prioriti", "allowed: payload, queue, type, priority"),
        (b'{"payload": 1, "priority": "5"}', "priority", "expected `int`, got `str`"),
        (b'{"payload": 1, "priority": 5.5}', "priority", "expected `int`, got `float`"),
        (b'{"payload": 1, "priority": true}', "priority", "expected `int`, got `bool`"),
        (b'{"payload": 1, "max_retries": "x"}', "max_retries", "expected `int | null`"),
        (b'{"payload": 1, "labels": {"a": 1}}', "labels[...]", "expected `str`"),
        (b'{"payload": 1, "labels": []}', "labels", "expected `object`"),
        (b'{"payload": 1, "run_at": "tomorrow"}', "run_at", "RFC 3339"),
        (b'{"payload": 1, "run_at": "2030-01-01T00:00:00"}', "run_at", "with an offset"),
        (b'{"payload": 1, "run_at": true}', "run_at", "expected"),
        (b'{"payload": 1, "ttl": 1e999}', "ttl", "out of range"),
        (b"[1]", "body", "expected `object`, got `array`"),
        (b"", "body", "ends early, at byte 0"),
        (b'{"payload": 1', "body", "ends early, at byte 13"),
        (b'{"payload": 1,\n "priority" 5}', "body", "line 2, column 13"),
        (b'{"payload": {"a": 01}}', "body", "invalid number at byte 19"),
        (b'{"payload": "\xff"}', "body", "not UTF-8: invalid byte at byte 13"),
        (b'{"payload": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "body", "nested too deeply"),
        (b"payload=1", "body", "is not JSON"),
    ],
)
async def test_bad_bodies_are_refused_by_name_and_without_effect(
    http: httpx.AsyncClient, backend: FakeBackend, body: bytes, field: str, says: str
) -> None:
    response = await http.post("/jobs", content=body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "INVALID_ARGUMENT"
    assert error["field"] == field
    assert error["message"].startswith(f"{field}: ")
    assert says in error["message"]
    assert backend.specs == []


@pytest.mark.req("inp:IDEMP")
async def test_a_duplicate_key_answers_with_the_original_and_its_result(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    job_id = (await http.post("/jobs", json=ORDER)).json()["job_id"]
    job = backend.jobs[job_id]
    job.state, job.reason, job.result = State.DONE, Reason.SUCCEEDED, b'{"total": 42}'
    job.completed_at = CREATED + 1

    same = await http.post("/jobs", json=ORDER)
    assert same.status_code == 409
    assert same.json()["reason"] == "duplicate"
    assert error_of(same)["code"] == "ALREADY_EXISTS"
    assert same.json()["job"]["job_id"] == same.json()["job_id"] == job_id
    assert same.json()["job"]["result"] == {"total": 42}

    other = await http.post("/jobs", json={**ORDER, "payload": "another"})
    assert other.status_code == 409
    assert other.json()["reason"] == "conflict"
    assert error_of(other)["code"] == "KEY_CONFLICT"
    assert other.json()["job"]["payload"] == "process-order-42"
    assert len(backend.specs) == 1


async def test_a_duplicate_of_a_job_that_is_gone(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.keys["order-42"] = "00000000-0000-4000-8000-000000000000"
    response = await http.post("/jobs", json=ORDER)
    assert response.status_code == 409
    assert response.json()["job_id"] == "00000000-0000-4000-8000-000000000000"
    assert response.json()["job"] is None


async def test_an_unknown_queue_is_404(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    response = await http.post("/jobs", json={"payload": 1, "queue": "nowhere"})
    assert response.status_code == 404
    assert error_of(response)["code"] == "NOT_FOUND"
    assert "nowhere" in error_of(response)["message"]
    assert backend.specs == []


@pytest.mark.req("inp:BACKPRESSURE", "inp:HTTP")
async def test_a_full_queue_is_503_and_says_when_to_come_back(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.failure = QueueFull("queue 'default' is full", retry_after=2.2)
    response = await http.post("/jobs", json=ORDER)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "3"
    assert error_of(response)["code"] == "QUEUE_FULL"


async def test_did_not_happen_and_may_have_happened_differ(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.failure = Unavailable("the disk is full")
    response = await http.post("/jobs", json=ORDER)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    backend.failure = OutcomeUnknown("the answer was lost")
    response = await http.post("/jobs", json=ORDER)
    assert response.status_code == 502
    assert "retry-after" not in response.headers
    assert error_of(response)["code"] == "OUTCOME_UNKNOWN"


async def test_the_payload_limit_is_exact(serve: Serve, backend: FakeBackend) -> None:
    http = await serve(HttpFaceSettings(max_payload_bytes=100))
    fits = b'{"payload": "' + b"x" * 98 + b'"}'
    assert (await http.post("/jobs", content=fits)).status_code == 202
    response = await http.post("/jobs", content=fits.replace(b"xx", b"xxx", 1))
    assert response.status_code == 413
    assert error_of(response)["code"] == "INVALID_ARGUMENT"
    assert error_of(response)["field"] == "payload"
    assert "has 101 bytes; at most 100 are allowed" in error_of(response)["message"]
    assert len(backend.specs) == 1


async def test_views_name_the_status(http: httpx.AsyncClient) -> None:
    response = await http.post("/jobs?view=producer", json={"payload": 1})
    assert response.json()["status"] == "PENDING"
    response = await http.post("/jobs?view=poet", json={"payload": 1})
    assert response.status_code == 400
    assert error_of(response)["field"] == "view"
    assert "'canonical', 'scheduler' or 'producer'" in error_of(response)["message"]


@pytest.mark.parametrize(("number", "status"), [("2.0", 202), ("2e0", 202), ("2.5", 400)])
async def test_a_whole_number_may_be_written_as_a_fraction(
    http: httpx.AsyncClient, backend: FakeBackend, number: str, status: int
) -> None:
    """JSON Schema, and so the API's description, takes 2.0 for an integer."""
    body = f'{{"payload": 2.0, "priority": {number}}}'
    assert (await http.post("/jobs", content=body)).status_code == status
    assert [(spec.priority, spec.payload) for spec in backend.specs] == [(2, b"2.0")] * (
        status == 202
    )
