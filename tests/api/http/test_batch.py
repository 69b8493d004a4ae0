"""POST /jobs/batch: what became of each item is clear."""

from __future__ import annotations

import httpx
import pytest

from jobqueue.api.http.settings import HttpFaceSettings
from tests.api.http.conftest import Serve
from tests.api.http.fake import FakeBackend


async def test_a_whole_batch(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    jobs = [{"payload": n, "priority": n % 10} for n in range(50)]
    response = await http.post("/jobs/batch", json={"jobs": jobs})
    assert response.status_code == 202
    body = response.json()
    assert (body["accepted"], body["duplicate"], body["refused"]) == (50, 0, 0)
    assert [item["index"] for item in body["results"]] == list(range(50))
    assert {item["job_id"] for item in body["results"]} == set(backend.jobs)
    assert [spec.payload for spec in backend.specs] == [str(n).encode() for n in range(50)]


async def test_a_bad_item_harms_no_other(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.keys["taken"] = backend.add(payload=b"1").id
    jobs = [
        {"payload": {"n": 1}},
        {"payload": 2, "priority": "high"},
        {"payload": ""},
        {"payload": 3, "queue": "nowhere"},
        {"payload": 1, "idempotency_key": "taken"},
        {"payload": 2, "idempotency_key": "taken"},
        "not a job",
        {"payload": 4, "colour": "red"},
        {"payload": {"n": 5}},
    ]
    response = await http.post("/jobs/batch", json={"jobs": jobs})
    assert response.status_code == 207
    body = response.json()
    assert (body["accepted"], body["duplicate"], body["refused"]) == (2, 1, 6)
    told = [(item["status"], item.get("error", {}).get("code")) for item in body["results"]]
    assert told == [
        ("accepted", None),
        ("refused", "INVALID_ARGUMENT"),
        ("refused", "INVALID_ARGUMENT"),
        ("refused", "NOT_FOUND"),
        ("duplicate", None),
        ("refused", "KEY_CONFLICT"),
        ("refused", "INVALID_ARGUMENT"),
        ("refused", "INVALID_ARGUMENT"),
        ("accepted", None),
    ]
    fields = [item.get("error", {}).get("field") for item in body["results"]]
    assert fields[1:3] == ["priority", "payload"]
    assert fields[7] == "colour"
    assert body["results"][5]["job_id"] == backend.keys["taken"]
    assert [spec.payload for spec in backend.specs] == [b'{"n":1}', b'{"n":5}']


async def test_nothing_accepted_is_an_error(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    jobs = [{"payload": 1, "queue": "nowhere"}, {"payload": ""}]
    response = await http.post("/jobs/batch", json={"jobs": jobs})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "NOT_FOUND"
    assert response.json()["refused"] == 2
    assert backend.specs == []


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        (b"{}", "jobs", "is missing"),
        (b'{"jobs": []}', "jobs", "has 0 items; allowed: 1 to 3"),
        (b'{"jobs": [{}, {}, {}, {}]}', "jobs", "has more than 3 items; allowed: 1 to 3"),
        (b'{"jobs": [1, 2, 3, 4]}', "jobs[0]", "expected `object`, got `int`"),
        (b'{"jobs": {}}', "jobs", "expected `array"),
        (b'{"job": []}', "job", "unknown field; allowed: jobs"),
        (b"[]", "body", "expected `object`"),
        (b'{"jobs": [{"payload": 1}', "body", "ends early"),
    ],
)
async def test_a_bad_batch_has_no_effect(
    serve: Serve, backend: FakeBackend, body: bytes, field: str, says: str
) -> None:
    http = await serve(HttpFaceSettings(max_batch_jobs=3))
    response = await http.post("/jobs/batch", content=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["field"] == field
    assert says in error["message"]
    assert backend.specs == []


async def test_a_batch_is_bounded_in_bytes(serve: Serve, backend: FakeBackend) -> None:
    http = await serve(HttpFaceSettings(max_batch_bytes=1000))
    response = await http.post("/jobs/batch", json={"jobs": [{"payload": "x" * 1000}]})
    assert response.status_code == 413
    assert backend.specs == []


async def test_a_deeply_nested_payload_is_taken_or_refused_never_a_defect(
    http: httpx.AsyncClient,
) -> None:
    """Around the depth where decoding gives up; which it is depends on the stack beneath."""
    seen = set()
    for depth in range(880, 1_010):
        payload = '{"a":' * depth + "1" + "}" * depth
        response = await http.post("/jobs/batch", content=f'{{"jobs": [{{"payload": {payload}}}]}}')
        assert response.status_code in (202, 400), (depth, response.text[:200])
        seen.add(response.status_code)
    assert seen == {202, 400}
