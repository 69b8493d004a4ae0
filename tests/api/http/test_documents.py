"""The walk of the producer document, with curl's eyes: a real engine, a real worker, real bytes."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from jobqueue.api.http.face import HttpFace
from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.core.queue import Queue
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.stores.sqlite.store import SqliteStore
from jobqueue.tasks.task import define
from jobqueue.worker.registry import Registry
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings
from tests import patience
from tests.plain_http import plain_http


class System:
    """An embedded server, as the document draws it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"
        queue = Queue(name="default", capacity=3, retry_profile="producer")
        self.engine = Engine(SqliteStore(self.path), EngineSettings(queue=queue))
        self.face = HttpFace(self.engine, HttpFaceSettings(view="producer"))
        self.broken = True
        self.http: httpx.AsyncClient
        self.worker: WorkerRuntime | None = None

    async def start(self) -> None:
        await self.engine.start()
        port = await self.face.start("127.0.0.1", 0)
        self.http = plain_http(f"http://127.0.0.1:{port}", timeout=patience.longest(20))

    async def start_worker(self) -> None:
        async def flaky() -> str:
            if self.broken:
                raise RuntimeError("the printer is on fire")
            return "printed"

        registry = Registry()
        registry.add(define(flaky))
        self.worker = WorkerRuntime(self.engine, registry, WorkerSettings(id="w"))
        await self.worker.start()

    async def stop(self) -> None:
        if self.worker is not None:
            await self.worker.stop(5)
        await self.http.aclose()
        await self.face.stop()
        await self.engine.stop()


@pytest_asyncio.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    running = System(tmp_path)
    await running.start()
    yield running
    await running.stop()


@pytest.mark.req("inp:HTTP", "inp:IDEMP")
async def test_submit_poll_and_submit_again(system: System) -> None:
    http = system.http
    order = {
        "payload": "process-order-42",
        "idempotency_key": "order-42",
        "priority": 5,
        "max_retries": 3,
    }
    accepted = await http.post("/jobs", json=order)
    assert (accepted.status_code, accepted.json()["status"]) == (202, "PENDING")
    again = await http.post("/jobs", json=order)
    assert (again.status_code, again.json()["reason"]) == (409, "duplicate")
    assert again.json()["job"]["status"] == "PENDING"

    await system.start_worker()
    done = await http.get(f"{accepted.headers['location']}/wait")
    assert (done.json()["status"], done.json()["result"]) == ("COMPLETED", "process-order-42")
    again = await http.post("/jobs", json=order)
    assert again.status_code == 409
    assert again.json()["job"]["job_id"] == accepted.json()["job_id"]
    assert again.json()["job"]["result"] == "process-order-42"


@pytest.mark.req("inp:DLQ", "inp:HTTP")
async def test_dead_letters_are_shelved_and_replayed(system: System) -> None:
    http = system.http
    await system.start_worker()
    body = {"payload": {"task": "flaky"}, "max_retries": 0}
    job_id = (await http.post("/jobs", json=body)).json()["job_id"]
    assert (await http.get(f"/jobs/{job_id}/wait")).json()["status"] == "DEAD_LETTERED"
    [dead] = (await http.get("/dlq")).json()["jobs"]
    assert dead["job_id"] == job_id
    assert "the printer is on fire" in dead["error"]

    system.broken = False
    replayed = await http.post(f"/dlq/{job_id}/retry")
    assert (replayed.status_code, replayed.json()["retry_count"]) == (200, 0)
    done = (await http.get(f"/jobs/{job_id}/wait")).json()
    assert (done["status"], done["result"]) == ("COMPLETED", "printed")
    assert (await http.get("/dlq")).json()["jobs"] == []
    assert (await http.post(f"/dlq/{job_id}/retry")).status_code == 409


@pytest.mark.req("inp:BACKPRESSURE", "inp:HTTP")
async def test_a_flood_is_pushed_back_and_nothing_accepted_is_dropped(system: System) -> None:
    http = system.http
    flood = [http.post("/jobs", json={"payload": n}) for n in range(20)]
    answers = await asyncio.gather(*flood)
    accepted = [answer.json()["job_id"] for answer in answers if answer.status_code == 202]
    refused = [answer for answer in answers if answer.status_code == 503]
    assert (len(accepted), len(refused)) == (3, 17)
    for answer in refused:
        assert answer.json()["error"]["code"] == "QUEUE_FULL"
        assert int(answer.headers["retry-after"]) >= 1
    batch = await http.post("/jobs/batch", json={"jobs": [{"payload": 1}, {"payload": 2}]})
    assert (batch.status_code, batch.json()["refused"]) == (503, 2)
    assert int(batch.headers["retry-after"]) >= 1
    await system.start_worker()
    for job_id in accepted:
        assert (await http.get(f"/jobs/{job_id}/wait")).json()["status"] == "COMPLETED"


async def test_a_batch_that_fits_in_part_says_when_to_send_the_rest(system: System) -> None:
    jobs = [{"payload": n} for n in range(5)]
    answer = await system.http.post("/jobs/batch", json={"jobs": jobs})
    assert answer.status_code == 207
    assert (answer.json()["accepted"], answer.json()["refused"]) == (3, 2)
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.req("jq:FR-007")
async def test_the_file_holds_the_bytes_that_were_sent(system: System) -> None:
    payload = b'{"b" :  1,\t"a": 2.50, "u": "\\u00e9"}'
    answer = await system.http.post("/jobs", content=b'{"payload":' + payload + b"}")
    assert answer.status_code == 202
    await system.stop()
    stored: set[bytes] = set()
    file = sqlite3.connect(system.path)
    for (table,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for row in file.execute(f'SELECT * FROM "{table}"').fetchall():
            stored.update(bytes(value) for value in row if isinstance(value, bytes))
    file.close()
    assert any(payload in value for value in stored)
    await system.start()


async def test_a_server_without_its_store_is_not_ready(system: System) -> None:
    assert (await system.http.get("/readyz")).status_code == 200
    await system.engine.store.close()
    assert (await system.http.get("/healthz")).status_code == 200
    ready = await system.http.get("/readyz")
    assert (ready.status_code, ready.json()["error"]["code"]) == (503, "UNAVAILABLE")
    submit = await system.http.post("/jobs", json={"payload": 1})
    assert submit.status_code == 503
    await system.engine.store.open()
