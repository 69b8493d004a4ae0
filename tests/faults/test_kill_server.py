"""kill -9 of jq-server under load, many times over: nothing accepted is lost, nothing runs out."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal

import httpx
import pytest

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import JobSpec, SubmitStatus
from jobqueue.core.lifecycle import State
from tests import patience
from tests.faults.conftest import evidence_of
from tests.faults.load import settled
from tests.faults.processes import Site
from tests.history.checker import assert_kept
from tests.plain_http import plain_http

ROUNDS = int(os.environ.get("JQ_TEST_KILL_ROUNDS", "8"))
SEED = int(os.environ.get("JQ_TEST_KILL_SEED", "0")) or random.randrange(1, 2**32)
PAUSE = 0.03  # seconds of each producer between its calls

SETTINGS = {
    "JQ_QUEUE_MAX_RETRIES": "1000",
    "JQ_QUEUE_POISON_AFTER": "0",
    "JQ_QUEUE_RETRY_PROFILE": "scheduler",
    "JQ_WORKER_CONCURRENCY": "8",
    "JQ_SCHEDULER_ASSIGNMENT_TIMEOUT": "5",
    "JQ_LOG_LEVEL": "warning",
}


class Load:
    """Producers over both faces; remembers what they were told."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.accepted: set[str] = set()
        self.told_done: set[str] = set()
        self.over_http = 0
        self.over_grpc = 0
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._http(batch=False)),
            asyncio.create_task(self._http(batch=True)),
            asyncio.create_task(self._grpc()),
            asyncio.create_task(self._look()),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in self._tasks:
            if not task.cancelled() and (error := task.exception()):
                raise error

    def _body(self) -> dict[str, object]:
        number = next(self._numbers)
        return {"type": "short", "payload": {"number": number}, "priority": number % 10}

    async def one_runs(self) -> None:
        """Wait until the server shows a job as RUNNING that goes on for seconds."""
        async with plain_http(self.site.url, timeout=5) as client:
            status = ""
            while status != State.RUNNING.name:
                body = {"type": "first-attempt-hangs", "payload": {"number": 0}}
                job_id = (await client.post("/jobs", json=body)).json()["job_id"]
                self.accepted.add(job_id)
                status = State.PENDING.name
                while status in (State.PENDING.name, State.ASSIGNED.name):
                    status = (await client.get(f"/jobs/{job_id}")).json()["status"]

    async def _http(self, *, batch: bool) -> None:
        async with plain_http(self.site.url, timeout=5) as client:
            while True:
                try:
                    if batch:
                        answer = await client.post(
                            "/jobs/batch", json={"jobs": [self._body() for _ in range(5)]}
                        )
                        told = answer.json()["results"] if answer.is_success else []
                    else:
                        answer = await client.post("/jobs", json=self._body())
                        told = [answer.json()] if answer.status_code == 202 else []
                except (httpx.HTTPError, ValueError):
                    await asyncio.sleep(0.05)  # the server is gone: the answer will never come
                    continue
                ids = [one["job_id"] for one in told if one.get("job_id")]
                self.over_http += len(ids)
                self.accepted.update(ids)
                await asyncio.sleep(PAUSE)

    async def _look(self) -> None:
        """Ask for jobs; what was said to be DONE must stay so."""
        async with plain_http(self.site.url, timeout=5) as client:
            while True:
                asked = self.accepted - self.told_done
                for job_id in itertools.islice(asked, 20):
                    with contextlib.suppress(httpx.HTTPError, ValueError):
                        answer = await client.get(f"/jobs/{job_id}")
                        if answer.is_success and answer.json()["status"] == "DONE":
                            self.told_done.add(job_id)
                await asyncio.sleep(0.05)

    async def _grpc(self) -> None:
        backend = GrpcBackend(self.site.target, timeout=5)
        await backend.start()
        try:
            while True:
                number = next(self._numbers)
                one = JobSpec(
                    payload=b'{"number": %d}' % number, type="short", priority=number % 10
                )
                try:
                    results = await backend.submit([one, one, one])
                except JobQueueError:
                    await asyncio.sleep(0.05)
                    continue
                ids = [r.job_id for r in results if r.status is SubmitStatus.ACCEPTED]
                self.over_grpc += len(ids)
                self.accepted.update(ids)
                await asyncio.sleep(PAUSE)
        finally:
            await backend.stop()


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.req("jq:NFR-005", "jq:NFR-006", "inp:PROD")
async def test_nothing_accepted_is_lost_however_often_the_server_is_killed(site_of):
    site: Site = site_of(**SETTINGS)
    moments = random.Random(SEED)
    load = Load(site)
    load.start()
    print(f"JQ_TEST_KILL_SEED={SEED}")
    try:
        for number in range(ROUNDS):
            server = await site.server()
            if number == 0:
                await load.one_runs()
            await asyncio.sleep(moments.uniform(0.05, 1.0))
            await site.kill(server)
    finally:
        await load.stop()
    server = await site.server()
    await settled(site, 40)
    server.send_signal(signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await patience.wait_for(server.wait(), 20)
    assert server.returncode == 0, site.log_tail()

    assert load.over_http > 20
    assert load.over_grpc > 20
    assert load.told_done
    evidence = await evidence_of(
        site,
        accepted=load.accepted,
        told_done=load.told_done,
        settled=True,
        dead_letters_allowed=False,
    )
    assert_kept(evidence)
    assert {evidence.jobs[job_id].state for job_id in load.accepted} == {State.DONE}
    ran = {run.job_id for run in site.runs()}
    assert load.accepted <= ran, "the outside ledger shows that each ran"
    assert any(
        e.from_state is State.RUNNING and e.to_state is State.FAILED for e in evidence.events
    ), "no kill hit a running job: the test showed nothing"
