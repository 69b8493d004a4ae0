"""A worker cannot fill the store with one job, nor make its history an answer without end."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from jobqueue.core.job import MAX_ERROR_BYTES, MAX_HISTORY, Transition, bounded
from jobqueue.core.lifecycle import Move
from jobqueue.pb.jq.v1 import client_pb2, client_pb2_grpc, types_pb2, worker_pb2, worker_pb2_grpc
from tests import patience
from tests.cli import processes
from tests.hostile.target import KEYS, Target, headers, metadata

pytestmark = pytest.mark.req("inp:PROD")

LONG = 2_000_000  # bytes of an error text
TIMES = 40
MIB = 1024 * 1024
_NAMES = (f"worker-{number}" for number in itertools.count())


@dataclass
class Parties:
    """A client, and a worker that says what it likes."""

    client: Any
    worker: Any
    worker_id: str
    queue: str

    async def submit(self, **fields: Any) -> str:
        spec = types_pb2.JobSpec(payload=b"1", queue=self.queue, **fields)
        request = client_pb2.SubmitRequest(spec=spec)
        return str((await self.client.Submit(request, metadata=metadata("client"))).job_id)

    async def take_and_report(
        self, kind: worker_pb2.ReportKind.ValueType, error: str, **said: Any
    ) -> bool:
        """Whether the server accepted the report."""
        me: dict[str, Any] = {"worker_id": self.worker_id, "incarnation": 7}
        shown: dict[str, Any] = {"metadata": metadata("worker"), "timeout": patience.longest(60)}
        fetch = worker_pb2.FetchRequest(limit=1, wait_seconds=20, **me)
        (given,) = (await self.worker.Fetch(fetch, **shown)).assignments
        report = worker_pb2.Report(kind=kind, seq=given.seq, lease=given.lease, error=error, **said)
        answer = await self.worker.Report(worker_pb2.ReportRequest(reports=[report], **me), **shown)
        return bool(answer.accepted[0])

    async def history(self, job_id: str, **asked: Any) -> client_pb2.GetHistoryResponse:
        request = client_pb2.GetHistoryRequest(job_id=job_id, **asked)
        answer: client_pb2.GetHistoryResponse = await self.client.GetHistory(
            request, metadata=metadata("client"), timeout=patience.longest(60)
        )
        return answer


@pytest_asyncio.fixture
async def parties(target: Target) -> AsyncIterator[Parties]:
    name = next(_NAMES)
    body = json.dumps({"name": name})
    assert target.ask("POST", "/queues", headers("operator"), body)[0] == 201
    async with target.channel() as channel:
        worker = worker_pb2_grpc.WorkerServiceStub(channel)
        info = types_pb2.WorkerInfo(
            id=name, incarnation=7, hostname="h", pid=1, concurrency=4, queues=[name]
        )
        request = worker_pb2.RegisterRequest(worker=info)
        await worker.Register(request, metadata=metadata("worker"))
        yield Parties(client_pb2_grpc.ClientServiceStub(channel), worker, name, name)


async def test_a_job_that_is_handed_back_again_and_again_takes_little(
    target: Target, parties: Parties
):
    job_id = await parties.submit(max_retries=0)
    with target.watched() as seen:
        for _ in range(TIMES):
            kind = worker_pb2.REPORT_KIND_HANDED_BACK
            assert await parties.take_and_report(kind, "e" * LONG)
        answer = await parties.history(job_id)  # with a standard client: it takes 4 MiB
    assert not any(event.detail for event in answer.events)
    assert seen.grown_mib < TIMES * LONG / MIB / 2
    seen.check_healthy()


async def test_a_long_error_text_is_cut_by_the_server(parties: Parties):
    job_id = await parties.submit(max_retries=TIMES)
    for _ in range(3):
        kind = worker_pb2.REPORT_KIND_FAILED
        assert await parties.take_and_report(kind, "é" * LONG, retry_after_seconds=0)
    answer = await parties.history(job_id)
    said = [event.detail for event in answer.events if event.detail]
    assert len(said) == 3
    assert {len(text.encode()) <= MAX_ERROR_BYTES and text[-1] == "…" for text in said} == {True}


@pytest.mark.parametrize(
    "text", ["", "boom", "é" * 10, "x" * MAX_ERROR_BYTES, "\udcff", "a\udcff" * MAX_ERROR_BYTES]
)
def test_what_is_cut_can_be_stored_and_is_no_longer_than_allowed(text: str):
    for limit in (16, MAX_ERROR_BYTES):
        raw = bounded(text, limit).encode()
        assert len(raw) <= limit
        if len(text.encode(errors="replace")) <= limit:
            assert raw == text.encode(errors="replace")


def test_whoever_makes_a_transition_its_text_is_cut():
    made = Transition(1, Move.FAIL, 1, error="\0" * LONG)
    assert len(made.error.encode()) <= MAX_ERROR_BYTES


async def test_a_long_history_comes_in_pieces_on_every_face(
    target: Target, parties: Parties, tmp_path: Path
):
    job_id = await parties.submit()
    for _ in range(MAX_HISTORY // 3 + 1):
        assert await parties.take_and_report(worker_pb2.REPORT_KIND_HANDED_BACK, "")
    newest = await parties.history(job_id)
    assert len(newest.events) == MAX_HISTORY
    first = newest.events[0].version
    assert newest.older == first - 1 > 0
    rest = await parties.history(job_id, before_version=first)
    assert ([event.version for event in rest.events], rest.older) == ([*range(1, first)], 0)

    path = f"/jobs/{job_id}/events"
    status, body = target.ask("GET", path, headers("client"))
    shown = json.loads(body)
    assert (status, len(shown["events"]), shown["older"]) == (200, MAX_HISTORY, first - 1)
    _, body = target.ask("GET", f"{path}?before_version={first}", headers("client"))
    assert [event["version"] for event in json.loads(body)["events"]] == [*range(1, first)]
    status, body = target.ask("GET", f"{path}?before_version=0", headers("client"))
    assert (status, b"before_version" in body) == (400, True)

    command = ("--server", target.grpc_target, "job", "logs", job_id)
    key = KEYS["client"]
    told = processes.run("ctl", *command, cwd=tmp_path, JQ_API_KEY=key)
    assert told.returncode == 0, told.stderr
    assert f"--before-version {first}" in told.stderr
    told = processes.run(
        "ctl", *command, "--before-version", str(first), cwd=tmp_path, JQ_API_KEY=key
    )
    assert (told.returncode, told.stderr) == (0, "")

    watched = parties.client.WatchJob(
        client_pb2.WatchJobRequest(job_id=job_id), metadata=metadata("client")
    )
    seen = [(await watched.read()).event.version for _ in range(newest.events[-1].version)]
    assert seen == [*range(1, len(seen) + 1)]
    watched.cancel()
