"""GET /jobs, /jobs/{id}, /dlq and what can be done to one job."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.explain import Cause, Explained
from jobqueue.core.job import Cancellation, NotRetried, Page, Retried, RetryQuery
from jobqueue.core.lifecycle import FAILURES, Reason, State
from jobqueue.core.progress import Progress
from jobqueue.core.unique import UniqueKey
from tests.api.http.conftest import Serve
from tests.api.http.fake import CREATED, FakeBackend, make_job

NOBODY = "00000000-0000-4000-8000-000000000000"


@pytest.mark.req("inp:HTTP", "jq:FR-030")
async def test_a_job_shows_everything(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    job = backend.add(
        queue="mail",
        type="send",
        payload=b'{"to": "a"}',
        result=b"[1, 2]",
        priority=7,
        state=State.DONE,
        reason=Reason.SUCCEEDED,
        version=4,
        attempt=2,
        retry_count=1,
        started_at=CREATED + 1.5,
        completed_at=CREATED + 2.25,
        updated_at=CREATED + 2.25,
        run_at=CREATED + 1,
        worker_id="w1",
        key="k",
        unique=UniqueKey(key="u", period=60.0, owner="somebody"),
        concurrency_key="c",
        labels={"a": "b"},
        ttl=60.0,
        timeout=30.0,
    )
    response = await http.get(f"/jobs/{job.id}")
    assert response.status_code == 200
    assert response.json() == {
        "job_id": job.id,
        "queue": "mail",
        "type": "send",
        "status": "DONE",
        "finished": True,
        "priority": 7,
        "payload": {"to": "a"},
        "payload_bytes": 11,
        "result": [1, 2],
        "result_bytes": 6,
        "error": "",
        "reason": "SUCCEEDED",
        "retry_count": 1,
        "max_retries": 3,
        "attempt": 2,
        "version": 4,
        "created_at": "2027-01-15T08:00:00.000Z",
        "run_at": "2027-01-15T08:00:01.000Z",
        "started_at": "2027-01-15T08:00:01.500Z",
        "completed_at": "2027-01-15T08:00:02.250Z",
        "next_retry_at": None,
        "expires_at": None,
        "updated_at": "2027-01-15T08:00:02.250Z",
        "assigned_worker": "w1",
        "worker_id": "w1",
        "idempotency_key": "k",
        "unique": {
            "key": "u",
            "scope": "unfinished",
            "period": 60.0,
            "on_conflict": "existing",
        },
        "concurrency_key": "c",
        "labels": {"a": "b"},
        "ttl": 60.0,
        "timeout": 30.0,
        "cancel_requested": False,
        "hint": "",
        "progress": None,
    }


async def test_a_running_job_shows_its_progress(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    told = Progress(0.25, "1 of 4 files", CREATED + 3)
    job = backend.add(state=State.RUNNING, progress=told)
    expected = {"value": 0.25, "text": "1 of 4 files", "at": "2027-01-15T08:00:03.000Z"}
    assert (await http.get(f"/jobs/{job.id}")).json()["progress"] == expected
    job.progress = Progress(None, "no number", CREATED)
    assert (await http.get(f"/jobs/{job.id}")).json()["progress"]["value"] is None


@pytest.mark.parametrize("content", [b"\xff\x00", b'"\xff"', b"{", b"01", b"NaN", b"{} x"])
async def test_bytes_that_are_not_json_come_as_base64(
    http: httpx.AsyncClient, backend: FakeBackend, content: bytes
) -> None:
    job = backend.add(payload=content, result=content, state=State.DONE)
    shown = (await http.get(f"/jobs/{job.id}")).json()
    assert base64.b64decode(shown["payload_base64"]) == content
    assert base64.b64decode(shown["result_base64"]) == content
    assert "payload" not in shown
    assert "result" not in shown


@pytest.mark.req("sch:LIFE")
@pytest.mark.parametrize(
    ("state", "canonical", "scheduler", "producer"),
    [
        (State.PENDING, "PENDING", "PENDING", "PENDING"),
        (State.ASSIGNED, "ASSIGNED", "SCHEDULED", "PENDING"),
        (State.RUNNING, "RUNNING", "RUNNING", "PROCESSING"),
        (State.DONE, "DONE", "SUCCESS", "COMPLETED"),
        (State.FAILED, "FAILED", "PENDING", "FAILED"),
        (State.DEAD_LETTERED, "DEAD_LETTERED", "FAILED", "DEAD_LETTERED"),
    ],
)
async def test_views(
    serve: Serve,
    backend: FakeBackend,
    state: State,
    canonical: str,
    scheduler: str,
    producer: str,
) -> None:
    job = backend.add(state=state)
    http = await serve(HttpFaceSettings(view="scheduler"))
    path = f"/jobs/{job.id}"
    assert (await http.get(path)).json()["status"] == scheduler
    assert (await http.get(f"{path}?view=canonical")).json()["status"] == canonical
    assert (await http.get(f"{path}?view=producer")).json()["status"] == producer


def test_an_unknown_view_is_refused_in_the_settings() -> None:
    with pytest.raises(InvalidArgument, match="canonical, scheduler, producer"):
        HttpFaceSettings(view="poet")


@pytest.mark.parametrize("path", ["/jobs/{}", "/jobs/{}/wait", "/jobs/{}/events"])
@pytest.mark.parametrize(
    ("job_id", "status", "code"),
    [("42", 400, "INVALID_ARGUMENT"), (NOBODY, 404, "NOT_FOUND")],
)
async def test_a_bad_and_an_unknown_id(
    http: httpx.AsyncClient, path: str, job_id: str, status: int, code: str
) -> None:
    response = await http.get(path.format(job_id))
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert job_id in response.json()["error"]["message"]


@pytest.mark.parametrize("verb", ["cancel", "retry"])
async def test_changes_of_unknown_jobs(http: httpx.AsyncClient, verb: str) -> None:
    assert (await http.post(f"/jobs/nope/{verb}")).status_code == 400
    assert (await http.post(f"/jobs/{NOBODY}/{verb}")).status_code == 404


async def test_cancel_says_what_it_did(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    job = backend.add()
    path = f"/jobs/{job.id}/cancel"
    done = await http.post(path)
    assert (done.status_code, done.json()["status"]) == (200, "DEAD_LETTERED")
    backend.cancellation = Cancellation(State.RUNNING, requested=True)
    asked = await http.post(path)
    assert (asked.status_code, asked.json()["cancel_requested"]) == (202, True)
    backend.cancellation = Cancellation(State.DONE, requested=False, already_terminal=True)
    late = await http.post(path)
    assert (late.status_code, late.json()["already_terminal"]) == (200, True)
    assert late.json()["status"] == "DONE"


async def test_delete(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    job = backend.add(state=State.DONE)
    response = await http.delete(f"/jobs/{job.id}")
    assert (response.status_code, response.content) == (204, b"")
    assert backend.jobs == {}
    assert (await http.delete(f"/jobs/{job.id}")).status_code == 404


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"states": (), "limit": 20, "page_token": "", "queue": None, "type": None}),
        ("?status=DONE&status=FAILED", {"states": (State.DONE, State.FAILED)}),
        ("?status=done,failed", {"states": (State.DONE, State.FAILED)}),
        ("?status=PROCESSING&view=producer", {"states": (State.RUNNING,)}),
        ("?status=PENDING&view=producer", {"states": (State.PENDING, State.ASSIGNED)}),
        ("?status=FAILED&view=scheduler", {"states": (State.DEAD_LETTERED,)}),
        ("?queue=mail&type=send&limit=200", {"queue": "mail", "type": "send", "limit": 200}),
        ("?page_token=s1f", {"page_token": "s1f"}),
    ],
)
async def test_list_filters(
    http: httpx.AsyncClient, backend: FakeBackend, query: str, expected: dict[str, Any]
) -> None:
    assert (await http.get(f"/jobs{query}")).status_code == 200
    [asked] = backend.queries
    assert {name: getattr(asked, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("query", "field", "says"),
    [
        ("status=LOST", "status", "allowed: PENDING, ASSIGNED, RUNNING, DONE, FAILED, DEAD"),
        ("status=DONE,", "status", "unknown state ''"),
        ("status=DONE&view=producer", "status", "allowed: PENDING, PROCESSING, COMPLETED"),
        ("limit=0", "limit", "allowed: 1 to 1000"),
        ("limit=1001", "limit", "allowed: 1 to 1000"),
        ("limit=many", "limit", "allowed: 1 to 1000"),
        ("state=DONE", "state", "allowed: view, queue, type, limit, page_token, status"),
        ("view=x", "view", "'canonical'"),
    ],
)
async def test_bad_list_parameters(
    http: httpx.AsyncClient, backend: FakeBackend, query: str, field: str, says: str
) -> None:
    response = await http.get(f"/jobs?{query}")
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["field"]) == ("INVALID_ARGUMENT", field)
    assert says in error["message"]
    assert backend.queries == []


async def test_lists_leave_out_what_is_long(serve: Serve, backend: FakeBackend) -> None:
    http = await serve(HttpFaceSettings(max_listed_payload_bytes=10))
    long, short = make_job(payload=b"[1, 2, 3, 4]", result=b'"0123456789"'), make_job()
    backend.page = Page([long, short], "s5")
    body = (await http.get("/jobs")).json()
    assert body["next_page_token"] == "s5"
    [first, second] = body["jobs"]
    assert (first["payload_bytes"], first["result_bytes"]) == (12, 12)
    assert not {"payload", "result", "payload_base64"} & set(first)
    assert second["payload"] == {"n": 1}


@pytest.mark.req("inp:DLQ", "inp:HTTP")
async def test_dead_letters(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    dead = backend.add(state=State.DEAD_LETTERED, error="boom", reason=Reason.RETRIES_EXHAUSTED)
    backend.page = Page([dead])
    body = (await http.get("/dlq?limit=5")).json()
    assert [job["error"] for job in body["jobs"]] == ["boom"]
    assert (backend.queries[0].states, backend.queries[0].limit) == ((State.DEAD_LETTERED,), 5)

    replayed = await http.post(f"/dlq/{dead.id}/retry")
    assert (replayed.status_code, replayed.json()["status"]) == (200, "PENDING")
    again = await http.post(f"/dlq/{dead.id}/retry")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "CONFLICT")
    assert "PENDING, not DEAD_LETTERED" in again.json()["error"]["message"]
    assert (await http.post(f"/dlq/{NOBODY}/retry")).status_code == 404
    assert (await http.post("/dlq/x/retry")).status_code == 400


@pytest.mark.req("inp:DLQ")
async def test_many_dead_letters_are_chosen_and_retried(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.retried = Retried(10, 3, 2, [NotRetried("some-id", "its queue 'q' is deleted")], "s1f")
    answer = await http.post("/dlq/retry")
    assert answer.status_code == 200
    assert answer.json() == {
        "looked_at": 10,
        "matched": 3,
        "retried": 2,
        "refused": [{"job_id": "some-id", "message": "its queue 'q' is deleted"}],
        "next_page_token": "s1f",
    }
    assert backend.retry_queries == [RetryQuery()]
    assert set(backend.retry_queries[0].reasons) == FAILURES
    await http.post(
        "/dlq/retry?queue=mail&type=send&reason=cancelled,POISON&reason=ttl_expired&error=no+route"
        "&since=2030-01-31T12:00:00%2B02:00&until=1900000000&page_token=s1f&dry_run=true"
    )
    assert backend.retry_queries[1] == RetryQuery(
        queue="mail",
        type="send",
        reasons=(Reason.CANCELLED, Reason.POISON, Reason.TTL_EXPIRED),
        error="no route",
        since=1896084000.0,
        until=1900000000.0,
        page_token="s1f",
        dry_run=True,
    )
    for wrong in ("reason=boredom", "since=yesterday", "nonsense=1", "dry_run=perhaps"):
        refused = await http.post(f"/dlq/retry?{wrong}")
        assert (refused.status_code, refused.json()["error"]["field"]) == (
            400,
            wrong.split("=")[0],
        )


async def test_dead_letters_are_listed_by_the_same_choice(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    await http.get("/dlq?reason=failures&error=boom&since=1.5&until=2.5")
    (query,) = backend.queries
    assert set(query.reasons) == FAILURES
    assert (query.error, query.since, query.until) == ("boom", 1.5, 2.5)


async def test_a_job_is_explained(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    job = backend.add(queue="mail")
    facts = {"queue": "mail", "since_at": CREATED, "held_by": [{"type": "<b>", "since_at": None}]}
    backend.causes = [Explained(Cause.QUEUE_PAUSED, "it is paused", "resume it", facts)]
    answer = (await http.get(f"/jobs/{job.id}/explain")).json()
    assert answer == {
        "job_id": job.id,
        "status": "PENDING",
        "at": "2027-01-15T08:00:00.000Z",
        "causes": [
            {
                "code": "QUEUE_PAUSED",
                "text": "it is paused",
                "advice": "resume it",
                "facts": {
                    "queue": "mail",
                    "since_at": "2027-01-15T08:00:00.000Z",
                    "held_by": [{"type": "<b>", "since_at": None}],
                },
            }
        ],
    }
    assert (await http.get(f"/jobs/{NOBODY}/explain")).status_code == 404
    assert (await http.get("/jobs/nonsense/explain")).status_code == 400


@pytest.mark.parametrize(
    ("reason", "status"), [(Reason.CANCELLED, "FAILED"), (Reason.POISON, "FAILED")]
)
async def test_an_explanation_names_the_state_as_the_view_does(
    http: httpx.AsyncClient, backend: FakeBackend, reason: Reason, status: str
) -> None:
    job = backend.add(state=State.DEAD_LETTERED, reason=reason)
    backend.causes = [Explained(Cause.DEAD_LETTERED, "given up", "", {"reason": reason.value})]
    answer = (await http.get(f"/jobs/{job.id}/explain?view=scheduler")).json()
    assert answer["status"] == status
