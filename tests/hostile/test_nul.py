"""A NUL in a text is refused, or kept, by every store alike. PostgreSQL's texts cannot have one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.api.http.face import HttpFace
from jobqueue.core.api import Backend
from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import InvalidArgument, JobQueueError, NotFound
from jobqueue.core.job import JobQuery, JobSpec, RetryQuery, TimeQuery, Transition, WorkerInfo
from jobqueue.core.progress import Progress
from jobqueue.core.queue import QueueSpec, QueueUpdate
from jobqueue.core.schedule import ScheduleSpec
from jobqueue.core.store import Rules
from jobqueue.core.unique import UniqueKey
from jobqueue.engine.engine import Engine
from jobqueue.stores.memory import MemoryStore
from tests import patience
from tests.api.grpc.inbox import RecordingInbox
from tests.stores.every import NAMES, STORES, Places

pytestmark = pytest.mark.req("inp:PROD")

NUL = "a\0b"
WORKER = WorkerInfo(id="w", incarnation=7, hostname="h", pid=1, concurrency=2, queues=("default",))


@pytest_asyncio.fixture(params=NAMES)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    places = Places(request, request.param, tmp_path)
    engine = Engine(STORES[request.param](places.new, Rules(), ManualClock()))
    await engine.start()
    yield engine
    await engine.stop()
    places.close()


def spec(**said: Any) -> JobSpec:
    return JobSpec(payload=b"1", **said)


Call = Callable[[Backend], Awaitable[object]]


async def submitted(backend: Backend, asked: JobSpec) -> str:
    return (await backend.submit([asked]))[0].unwrap()


async def connected(backend: Backend, **said: Any) -> None:
    link = await backend.connect(replace(WORKER, **said), RecordingInbox())
    await link.close()


REFUSED: dict[str, tuple[type[JobQueueError], str, Call]] = {
    "submit type": (InvalidArgument, "type", lambda b: submitted(b, spec(type=NUL))),
    "submit unique key": (
        InvalidArgument,
        "unique.key",
        lambda b: submitted(b, spec(unique=UniqueKey(key=NUL))),
    ),
    "submit key": (InvalidArgument, "idempotency_key", lambda b: submitted(b, spec(key=NUL))),
    "submit label": (InvalidArgument, "labels", lambda b: submitted(b, spec(labels={NUL: "x"}))),
    "submit label's value": (
        InvalidArgument,
        "labels",
        lambda b: submitted(b, spec(labels={"x": NUL})),
    ),
    "submit queue": (InvalidArgument, "queue", lambda b: submitted(b, spec(queue=NUL))),
    "worker id": (InvalidArgument, "worker_id", lambda b: connected(b, id=NUL)),
    "worker hostname": (InvalidArgument, "hostname", lambda b: connected(b, hostname=NUL)),
    "worker version": (InvalidArgument, "version", lambda b: connected(b, version=NUL)),
    "worker queue": (InvalidArgument, "queues", lambda b: connected(b, queues=(NUL,))),
    "worker type": (InvalidArgument, "types", lambda b: connected(b, types=frozenset({NUL}))),
    "leave": (InvalidArgument, "worker_id", lambda b: b.leave(NUL, 7)),
    "missing queues": (InvalidArgument, "queues", lambda b: b.missing_queues([NUL])),
    "list queue": (InvalidArgument, "queue", lambda b: b.list_jobs(JobQuery(queue=NUL))),
    "list type": (InvalidArgument, "type", lambda b: b.list_jobs(JobQuery(type=NUL))),
    "list error": (InvalidArgument, "error", lambda b: b.list_jobs(JobQuery(error=NUL))),
    "list page": (InvalidArgument, "page_token", lambda b: b.list_jobs(JobQuery(page_token=NUL))),
    "retry queue": (
        InvalidArgument,
        "queue",
        lambda b: b.retry_dead_letters(RetryQuery(queue=NUL)),
    ),
    "retry type": (InvalidArgument, "type", lambda b: b.retry_dead_letters(RetryQuery(type=NUL))),
    "retry error": (
        InvalidArgument,
        "error",
        lambda b: b.retry_dead_letters(RetryQuery(error=NUL)),
    ),
    "create queue": (InvalidArgument, "name", lambda b: b.create_queue(QueueSpec(name=NUL))),
    "create queue's profile": (
        InvalidArgument,
        "retry_profile",
        lambda b: b.create_queue(QueueSpec(name="x", retry_profile=NUL)),
    ),
    "update queue": (NotFound, "queue", lambda b: b.update_queue(NUL, QueueUpdate(capacity=1))),
    "delete queue": (NotFound, "queue", lambda b: b.delete_queue(NUL)),
    "pause queue": (NotFound, "queue", lambda b: b.pause_queue(NUL)),
    "resume queue": (NotFound, "queue", lambda b: b.resume_queue(NUL)),
    "stats": (NotFound, "queue", lambda b: b.queue_stats(NUL)),
    "create schedule": (
        InvalidArgument,
        "name",
        lambda b: b.create_schedule(ScheduleSpec(name=NUL, job=spec(), every=5)),
    ),
    "create schedule's type": (
        InvalidArgument,
        "type",
        lambda b: b.create_schedule(ScheduleSpec(name="x", job=spec(type=NUL), every=5)),
    ),
    "create schedule's zone": (
        InvalidArgument,
        "timezone",
        lambda b: b.create_schedule(
            ScheduleSpec(name="x", job=spec(), cron="@daily", timezone=NUL)
        ),
    ),
    "get schedule": (InvalidArgument, "name", lambda b: b.get_schedule(NUL)),
    "list schedules": (InvalidArgument, "name", lambda b: b.list_schedules(1, NUL)),
    "pause schedule": (InvalidArgument, "name", lambda b: b.pause_schedule(NUL)),
    "resume schedule": (InvalidArgument, "name", lambda b: b.resume_schedule(NUL)),
    "run schedule": (InvalidArgument, "name", lambda b: b.run_schedule(NUL)),
    "remove schedule": (InvalidArgument, "name", lambda b: b.remove_schedule(NUL)),
    "drain worker": (NotFound, "worker_id", lambda b: b.drain_worker(NUL)),
    "undrain worker": (NotFound, "worker_id", lambda b: b.undrain_worker(NUL)),
    "shut worker down": (NotFound, "worker_id", lambda b: b.shutdown_worker(NUL)),
    "get": (InvalidArgument, "job_id", lambda b: b.get(NUL)),
    "cancel": (InvalidArgument, "job_id", lambda b: b.cancel(NUL)),
    "retry": (InvalidArgument, "job_id", lambda b: b.retry(NUL)),
    "delete": (InvalidArgument, "job_id", lambda b: b.delete_job(NUL)),
}


async def wrongly_answered(backend: Backend) -> list[str]:
    """Calls that were not refused as they should be, with what became of them."""
    wrong = []
    for name, (kind, field, call) in REFUSED.items():
        try:
            await call(backend)
        except JobQueueError as error:
            if type(error) is not kind or not error.message.startswith(f"{field}: "):
                wrong.append(f"{name}: {error!r}")
        except Exception as error:
            wrong.append(f"{name}: {error!r}")
        else:
            wrong.append(f"{name}: was taken")
    return wrong


async def test_a_nul_in_what_a_caller_names_is_refused_by_every_store(engine: Engine):
    assert await wrongly_answered(engine) == []
    with pytest.raises(InvalidArgument, match=r"^worker_id: "):
        engine.pulse(NUL, 7, [])
    with pytest.raises(InvalidArgument, match=r"^type: "):
        await engine.list_by_time(TimeQuery(queue="default", type=NUL))
    assert (await engine.list_jobs(JobQuery())).jobs == []
    assert [one.queue.name for one in await engine.list_queues()] == ["default"]
    assert await engine.list_workers() == []


async def test_what_a_handler_says_is_kept_by_every_store_with_the_nul_replaced(engine: Engine):
    """A report never fails for its text, and every face shows the same."""
    inbox = RecordingInbox()
    link = await engine.connect(WORKER, inbox)
    for _ in range(2):
        await submitted(engine, spec(max_retries=0))
    link.grant(2)
    await inbox.until(lambda inbox: len(inbox.jobs) == 2)
    failing, running = inbox.jobs
    reports = [
        Transition.failed(failing.seq, failing.lease, f"said {NUL}"),
        Transition.started(running.seq, running.lease),
    ]
    assert await link.report(reports) == [True, True]
    link.pulse([running.lease], progress={running.lease: Progress.of(0.5, NUL)})
    assert (await engine.get(failing.id)).error == "said a\ufffdb"
    assert (await engine.history(failing.id))[-2].detail == "said a\ufffdb"
    told = (await engine.get(running.id)).progress
    assert told is not None
    assert told.text == "a b"
    done = Transition.succeeded(running.seq, running.lease, NUL.encode())
    assert await link.report([done]) == [True]
    assert (await engine.get(running.id)).result == NUL.encode()


async def test_payloads_and_results_are_bytes_and_keep_a_nul(engine: Engine):
    payload = b'"\0 \\u0000"'
    job_id = (await engine.submit([JobSpec(payload=payload)]))[0].unwrap()
    assert (await engine.get(job_id)).payload == payload


# -- over the faces, which pass the engine's refusals on -----------------------------------------


async def test_a_nul_is_refused_over_grpc():
    engine = Engine(MemoryStore())
    await engine.start()
    face = GrpcFace(engine)
    port = await face.start("127.0.0.1", 0)
    remote = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(20))
    await remote.start()
    try:
        assert await wrongly_answered(remote) == []
    finally:
        await remote.stop()
        await face.stop(0.5)
        await engine.stop()


@pytest.mark.parametrize(
    ("verb", "path", "body", "status"),
    [
        ("POST", "/jobs", {"payload": 1, "type": NUL}, 400),
        ("POST", "/jobs", {"payload": 1, "queue": NUL}, 400),
        ("POST", "/jobs", {"payload": 1, "idempotency_key": NUL}, 400),
        ("POST", "/jobs", {"payload": 1, "labels": {NUL: "x"}}, 400),
        ("POST", "/jobs", {"payload": 1, "labels": {"x": NUL}}, 400),
        ("GET", "/jobs?type=a%00b", None, 400),
        ("GET", "/jobs?queue=a%00b", None, 400),
        ("GET", "/jobs?error=a%00b", None, 400),
        ("GET", "/jobs/a%00b", None, 400),
        ("GET", "/queues/a%00b", None, 404),
        ("POST", "/queues", {"name": NUL}, 400),
        ("POST", "/workers/a%00b/drain", None, 404),
    ],
)
async def test_a_nul_is_refused_over_http(verb: str, path: str, body: Any, status: int):
    engine = Engine(MemoryStore())
    await engine.start()
    face = HttpFace(engine)
    port = await face.start("127.0.0.1", 0)
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=patience.longest(20)
        ) as client:
            answer = await client.request(verb, path, json=body)
            assert answer.status_code == status, answer.text
            assert "message" in answer.json()["error"]
    finally:
        await face.stop(0.5)
        await engine.stop()
