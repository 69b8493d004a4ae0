"""Queues, workers, probes and metrics over HTTP."""

from __future__ import annotations

import httpx
import pytest

from jobqueue.access.keyring import Keyring, parse_keys
from jobqueue.access.policy import Access
from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.core.errors import Unavailable
from jobqueue.core.job import ComponentHealth
from jobqueue.core.lifecycle import State
from tests.api.http.conftest import Serve
from tests.api.http.fake import FakeBackend


async def test_create_a_queue(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    body = {
        "name": "mail",
        "max_retries": 5,
        "ttl": 60,
        "timeout": 2.5,
        "capacity": 100,
        "retry_profile": "producer",
        "priority_weights": {"9": 5, "0": 1},
    }
    response = await http.post("/queues", json=body)
    assert response.status_code == 201
    assert response.headers["location"] == "/queues/mail"
    assert body.items() <= response.json().items()
    assert backend.queues["mail"].priority_weights == {9: 5, 0: 1}
    again = await http.post("/queues", json=body)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "ALREADY_EXISTS")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{}", "name"),
        (b'{"name": 7}', "name"),
        (b'{"name": "a", "size": 7}', "size"),
        (b'{"name": "a", "capacity": "x"}', "capacity"),
        (b'{"name": "a", "priority_weights": {"high": 1}}', "priority_weights"),
        (b"nope", "body"),
    ],
)
async def test_bad_queues(
    http: httpx.AsyncClient, backend: FakeBackend, body: bytes, field: str
) -> None:
    response = await http.post("/queues", content=body)
    assert (response.status_code, response.json()["error"]["field"]) == (400, field)
    assert list(backend.queues) == ["default"]


async def test_change_a_queue(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.queues["default"].ttl = 9.0
    backend.queues["default"].capacity = 9
    body = {"retry_base": 2, "retry_max": 60, "retry_jitter": 0.5, "ttl": None}
    response = await http.patch("/queues/default", json=body)
    assert response.status_code == 200
    assert body.items() <= response.json().items()
    changed = backend.queues["default"]
    assert (changed.retry_base, changed.ttl, changed.capacity) == (2, None, 9)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"name": "other"}', "name"),
        (b'{"paused": true}', "paused"),
        (b'{"retry_base": "soon"}', "retry_base"),
        (b'{"priority_weights": {"high": 1}}', "priority_weights"),
        (b"[]", "body"),
    ],
)
async def test_bad_changes_of_a_queue(
    http: httpx.AsyncClient, backend: FakeBackend, body: bytes, field: str
) -> None:
    before = dict(backend.queues)
    response = await http.patch("/queues/default", content=body)
    assert (response.status_code, response.json()["error"]["field"]) == (400, field)
    assert backend.queues == before
    assert (await http.patch("/queues/nowhere", json={"ttl": 1})).status_code == 404


async def test_a_whole_number_may_have_a_point_beside_a_setting_that_is_reset(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    body = b'{"max_retries": 7.0, "priority_weights": null}'
    assert (await http.patch("/queues/default", content=body)).status_code == 200
    assert backend.queues["default"].max_retries == 7


@pytest.mark.req("sch:LIFE", "jq:FR-028")
async def test_jobs_and_workers_are_counted_in_the_words_of_the_view(
    serve: Serve, backend: FakeBackend
) -> None:
    backend.depth = {state: 10 ** (state - 1) for state in State}
    http = await serve(HttpFaceSettings(view="scheduler"))
    words = {"PENDING": 10_001, "SCHEDULED": 10, "RUNNING": 100, "SUCCESS": 1_000, "FAILED": 10**5}
    assert (await http.get("/queues/default")).json()["depth"] == words
    assert (await http.get("/queues")).json()["queues"][0]["depth"] == words
    status = (await http.get("/status")).json()
    assert status["queues"][0]["depth"] == words
    assert set(status["workers"]) <= {"ALIVE", "DEAD"}
    asked = (await http.get("/queues/default?view=canonical")).json()["depth"]
    assert asked == {state.name: count for state, count in backend.depth.items()}


@pytest.mark.req("jq:FR-028")
async def test_queue_figures(http: httpx.AsyncClient) -> None:
    one = await http.get("/queues/default")
    assert one.status_code == 200
    assert one.json()["depth"]["PENDING"] == 2
    figures = {"processed", "average_seconds", "error_rate", "unfinished", "succeeded", "failed"}
    assert figures <= set(one.json())
    assert (await http.get("/queues")).json() == {"queues": [one.json()]}
    assert (await http.get("/queues/nowhere")).status_code == 404


async def test_pause_resume_delete(http: httpx.AsyncClient) -> None:
    assert (await http.post("/queues/default/pause")).json() == {"name": "default", "paused": True}
    assert (await http.post("/queues/default/resume")).json()["paused"] is False
    assert (await http.post("/queues/nowhere/pause")).status_code == 404
    forced = await http.delete("/queues/default?force=true")
    assert forced.json() == {"name": "default", "deleted": True, "dead_lettered": 2}
    bad = await http.delete("/queues/default?force=perhaps")
    assert (bad.status_code, bad.json()["error"]["field"]) == (400, "force")


async def test_workers(http: httpx.AsyncClient) -> None:
    [worker] = (await http.get("/workers")).json()["workers"]
    assert (worker["worker_id"], worker["status"], worker["concurrency"]) == ("w1", "ONLINE", 4)
    drained = await http.post("/workers/w1/drain")
    assert (drained.status_code, drained.json()["status"]) == (202, "DRAINING")
    back = await http.post("/workers/w1/undrain")
    assert (back.status_code, back.json()["status"]) == (202, "ONLINE")
    stopped = await http.post("/workers/w1/shutdown")
    assert (stopped.status_code, stopped.json()["status"]) == (202, "STOPPING")


@pytest.mark.req("jq:NFR-013")
async def test_probes(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    assert (await http.get("/readyz")).status_code == 200
    backend.components.append(ComponentHealth("redis", False, "connection refused"))
    response = await http.get("/readyz")
    assert response.status_code == 503
    assert "redis: connection refused" in response.json()["error"]["message"]
    assert response.json()["components"][0] == {"name": "store", "ok": True, "detail": ""}
    backend.failure = Unavailable("the store is away")
    response = await http.get("/readyz")
    assert response.status_code == 503
    assert "the store is away" in response.json()["error"]["message"]
    alive = await http.get("/healthz")
    assert (alive.status_code, alive.text) == (200, "ok\n")


@pytest.mark.req("jq:NFR-013", "inp:PROD")
async def test_strangers_learn_which_part_fails_and_operators_why(
    serve: Serve, backend: FakeBackend
) -> None:
    key = "0123456789abcdef"
    access = Access(keys=Keyring(parse_keys([f"ops:operator:{key}"], "auth.api_keys")))
    http = await serve(HttpFaceSettings(access=access))
    for failure in (None, Unavailable("the store at db.example:5432 is away")):
        backend.components.append(ComponentHealth("redis", False, "redis.example:6379 is away"))
        backend.failure = failure
        stranger = await http.get("/readyz")
        operator = await http.get("/readyz", headers={"X-API-Key": key})
        assert (stranger.status_code, operator.status_code) == (503, 503)
        assert "example" in operator.json()["error"]["message"]
        assert "example" not in stranger.text
        failing = "redis" if failure is None else "backend"
        assert f"{failing}: not ok" in stranger.json()["error"]["message"]


@pytest.mark.req("inp:PROD")
async def test_a_wrong_credential_at_a_probe_counts_as_one(serve: Serve) -> None:
    """Or keys could be guessed there."""
    access = Access(keys=Keyring(parse_keys(["ops:operator:0123456789abcdef"], "auth.api_keys")))
    failures: list[str] = []
    access.refusals.on_failure = failures.append
    http = await serve(HttpFaceSettings(access=access))
    assert (await http.get("/readyz")).status_code == 200
    assert failures == []
    wrong = {"X-API-Key": "fedcba9876543210"}
    assert (await http.get("/readyz", headers=wrong)).status_code == 200
    assert failures == ["http"]


@pytest.mark.req("jq:NFR-013", "jq:NFR-009")
async def test_a_part_that_only_slows_the_server_leaves_it_ready(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    assert (await http.get("/readyz")).json()["status"] == "ok"
    backend.components.append(ComponentHealth("redis", False, "connection refused"))
    backend.healthy = True
    response = await http.get("/readyz")
    body = response.json()
    assert (response.status_code, body["ok"], body["status"]) == (200, True, "degraded")
    assert body["components"][-1] == {"name": "redis", "ok": False, "detail": "connection refused"}
    assert (await http.get("/status")).json()["status"] == "degraded"
    backend.healthy = False
    assert (await http.get("/readyz")).json()["status"] == "failing"


async def test_readiness_counts_failed_parts_of_the_process(serve: Serve) -> None:
    ended = ComponentHealth("grpc", False, "the gRPC server has ended")
    http = await serve(HttpFaceSettings(failed_parts=lambda: [ended]))
    response = await http.get("/readyz")
    assert response.status_code == 503
    assert "grpc: the gRPC server has ended" in response.json()["error"]["message"]
    assert response.json()["components"][-1]["name"] == "grpc"


@pytest.mark.req("jq:FR-039", "inp:HTTP")
async def test_metrics(serve: Serve) -> None:
    async def render() -> tuple[bytes, str]:
        return b"jobs_submitted_total 1.0\n", "text/plain; version=0.0.4; charset=utf-8"

    http = await serve(HttpFaceSettings(metrics=render))
    response = await http.get("/metrics")
    assert (response.status_code, response.text) == (200, "jobs_submitted_total 1.0\n")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_no_metrics(http: httpx.AsyncClient) -> None:
    response = await http.get("/metrics")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "NOT_FOUND")


async def test_status(http: httpx.AsyncClient) -> None:
    body = (await http.get("/status")).json()
    assert (body["ok"], body["version"], body["workers"]) == (True, "1.2.3", {"ONLINE": 1})
    assert [queue["name"] for queue in body["queues"]] == ["default"]
