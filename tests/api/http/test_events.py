"""History, server-sent events and long polls."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from jobqueue.api.http.face import HttpFace
from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.core.errors import Unavailable
from jobqueue.core.job import Event
from jobqueue.core.lifecycle import Reason, State
from tests import patience
from tests.api.http.conftest import Serve
from tests.api.http.fake import CREATED, FakeBackend
from tests.plain_http import plain_http

SUBMITTED = (1, None, State.PENDING, Reason.SUBMITTED)
ASSIGNED = (2, State.PENDING, State.ASSIGNED, Reason.ASSIGNED)
CANCELLED = (3, State.ASSIGNED, State.DEAD_LETTERED, Reason.CANCELLED)


def feed(backend: FakeBackend, *rows: tuple[int, State | None, State, Reason]) -> str:
    job = backend.add()
    backend.feeds[job.id] = asyncio.Queue()
    tell(backend, job.id, *rows)
    return job.id


def tell(backend: FakeBackend, job_id: str, *rows: tuple[int, State | None, State, Reason]) -> None:
    for version, origin, target, reason in rows:
        event = Event(job_id, version, origin, target, reason, CREATED, 0)
        backend.feeds[job_id].put_nowait(event)


def parse(block: str) -> tuple[str, Any]:
    fields = dict(line.split(": ", 1) for line in block.splitlines())
    return fields["event"], msgspec.json.decode(fields["data"])


async def blocks(response: httpx.Response) -> Any:
    rest = ""
    async for text in response.aiter_text():
        rest += text
        while "\n\n" in rest:
            block, rest = rest.split("\n\n", 1)
            yield block


async def test_history(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    job = backend.add()
    body = (await http.get(f"/jobs/{job.id}/events")).json()
    assert body["job_id"] == job.id
    assert body["events"] == [
        {
            "version": 1,
            "from_status": None,
            "to_status": "PENDING",
            "reason": "SUBMITTED",
            "at": "2027-01-15T08:00:00.000Z",
            "attempt": 0,
            "worker_id": None,
            "detail": "",
        }
    ]


@pytest.mark.parametrize(
    ("query", "headers"),
    [("?watch=1", {}), ("?watch=true", {}), ("", {"Accept": "text/event-stream"})],
)
async def test_a_stream_follows_the_job_to_its_end(
    http: httpx.AsyncClient, backend: FakeBackend, query: str, headers: dict[str, str]
) -> None:
    job_id = feed(backend, SUBMITTED)
    async with http.stream("GET", f"/jobs/{job_id}/events{query}", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = blocks(response)
        first = await anext(stream)
        assert first.startswith("id: 1\n")
        assert parse(first)[1]["to_status"] == "PENDING"
        tell(backend, job_id, ASSIGNED, CANCELLED)  # only now: the first came before
        rest = [parse(block) async for block in stream]
    assert [(name, data.get("to_status")) for name, data in rest] == [
        ("transition", "ASSIGNED"),
        ("transition", "DEAD_LETTERED"),
        ("end", None),
    ]
    assert backend.watchers == 0


async def test_a_stream_speaks_the_views_words_and_resumes(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    job_id = feed(backend, SUBMITTED, ASSIGNED, CANCELLED)
    response = await http.get(
        f"/jobs/{job_id}/events?watch=1&view=scheduler", headers={"Last-Event-ID": "1"}
    )
    told = [parse(block) for block in response.text.strip().split("\n\n")]
    assert [data.get("to_status") for _, data in told] == ["SCHEDULED", "FAILED", None]


async def test_a_dead_letter_in_the_past_is_not_the_end(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    job = backend.add()
    past = [SUBMITTED, (2, State.PENDING, State.DEAD_LETTERED, Reason.CANCELLED)]
    past.append((3, State.DEAD_LETTERED, State.PENDING, Reason.MANUAL_RETRY))

    async def watch(job_id: str) -> Any:
        for version, origin, target, reason in past:
            yield Event(job_id, version, origin, target, reason, CREATED, 0)

    backend.watch = watch  # type: ignore[method-assign]
    response = await http.get(f"/jobs/{job.id}/events?watch=1")
    told = [parse(block) for block in response.text.strip().split("\n\n")]
    assert [data.get("version") for _, data in told] == [1, 2, 3, None]


async def test_no_stream_of_an_unknown_job(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    job = backend.add()
    response = await http.get(f"/jobs/{job.id}/events?watch=1")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "NOT_FOUND")


async def test_an_idle_stream_is_kept_open_and_ends_in_time(
    serve: Serve, backend: FakeBackend
) -> None:
    http = await serve(HttpFaceSettings(stream_heartbeat=0.02, stream_timeout=0.2))
    job_id = feed(backend, SUBMITTED)
    response = await http.get(f"/jobs/{job_id}/events?watch=1")
    [first, *idle, last] = response.text.strip().split("\n\n")
    assert parse(first)[0] == "transition"
    assert len(idle) >= 2
    assert set(idle) == {": still here"}
    assert parse(last)[0] == "timeout"
    assert backend.watchers == 0


async def test_a_client_that_leaves_ends_its_stream(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    job_id = feed(backend, SUBMITTED)
    async with http.stream("GET", f"/jobs/{job_id}/events?watch=1") as response:
        await anext(blocks(response))
        assert backend.watchers == 1
    while backend.watchers:
        await asyncio.sleep(0)


async def test_a_long_poll_answers_when_the_job_ends(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    job = backend.add(state=State.RUNNING)
    backend.gate = asyncio.Event()
    poll = asyncio.create_task(http.get(f"/jobs/{job.id}/wait?timeout=20"))
    await backend.entered.wait()
    assert not poll.done()
    job.state = State.DONE
    backend.gate.set()
    assert (await poll).json()["finished"] is True


async def test_a_client_that_leaves_ends_its_long_poll(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    job = backend.add(state=State.RUNNING)
    hold = backend.gate = asyncio.Event()
    poll = asyncio.create_task(http.get(f"/jobs/{job.id}/wait"))
    await backend.entered.wait()
    backend.gate = None
    poll.cancel()
    await patience.wait_for(backend.left.wait(), 5)
    assert not hold.is_set()


async def test_the_longest_wait_is_capped(serve: Serve, backend: FakeBackend) -> None:
    waits: list[float | None] = []

    async def wait(job_id: str, timeout: float | None) -> Any:
        waits.append(timeout)
        return backend.jobs[job_id]

    backend.wait = wait  # type: ignore[method-assign]
    job = backend.add()
    http = await serve(HttpFaceSettings(max_wait=7))
    await http.get(f"/jobs/{job.id}/wait?timeout=1000000")
    await http.get(f"/jobs/{job.id}/wait?timeout=0")
    await http.get(f"/jobs/{job.id}/wait")
    assert waits == [7, 0, 7]
    for bad in ("-1", "nan", "inf", "soon"):
        response = await http.get(f"/jobs/{job.id}/wait?timeout={bad}")
        assert (response.status_code, response.json()["error"]["field"]) == (400, "timeout")


async def test_a_stopping_server_ends_polls_and_streams_at_once(backend: FakeBackend) -> None:
    face = HttpFace(backend)
    port = await face.start("127.0.0.1", 0)
    job_id = feed(backend, SUBMITTED)
    async with plain_http(f"http://127.0.0.1:{port}", timeout=patience.longest(20)) as http:
        stream = asyncio.create_task(http.get(f"/jobs/{job_id}/events?watch=1"))
        while not backend.watchers:
            await asyncio.sleep(0)
        backend.entered.clear()
        backend.gate = asyncio.Event()
        poll = asyncio.create_task(http.get(f"/jobs/{job_id}/wait?timeout=20"))
        await backend.entered.wait()
        backend.gate = None
        async with patience.timeout(3):
            await face.stop(grace=20)
        assert (await poll).json()["finished"] is False
        assert "event: timeout" in (await stream).text


async def test_a_stream_tells_when_the_store_fails(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    job = backend.add()

    async def watch(job_id: str) -> Any:
        yield Event(job_id, 1, None, State.PENDING, Reason.SUBMITTED, CREATED, 0)
        raise Unavailable("the store is away")

    backend.watch = watch  # type: ignore[method-assign]
    response = await http.get(f"/jobs/{job.id}/events?watch=1")
    name, data = parse(response.text.strip().split("\n\n")[-1])
    assert (name, data["code"]) == ("error", "UNAVAILABLE")
