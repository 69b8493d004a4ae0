"""The suite itself: what it says of its deployments is so."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jobqueue.taskqueue import JobStatus
from jobqueue.taskqueue.grpc import answering
from jobqueue.taskqueue.grpc.callers import LOOK, REQUEST_ID, Call, admit
from jobqueue.taskqueue.grpc.peer import ServerChannel
from tests import patience
from tests.taskqueue.public import exceptions
from tests.taskqueue.public.conftest import Deploy
from tests.taskqueue.public.deployments import DEPLOYMENTS, NEED_SERVERS
from tests.taskqueue.public.public import PATIENCE

TWICE = "microservices, delivered twice"
CHANGES = {
    "CreateJob",
    "EnqueueJob",
    "RemoveJobIfPresent",
    "DequeueJob",
    "TransitionJobStatus",
    "SetCancelRequested",
    "StoreResult",
    "FetchWork",
    "ReportWorkOutcome",
}
READS = {"ListJobRecords", "GetResult"}


@pytest.mark.parametrize("deployment", ["microservices", TWICE])
async def test_calls_arrive_once_or_twice_as_the_deployment_says(
    deploy: Deploy, deployment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: Counter[tuple[str, str]] = Counter()

    def count(method: str, request: Any, call: Call) -> None:
        if call.purpose != LOOK:  # which comes when it comes, and changes nothing
            arrived[method, call.request_id] += 1
        admit(method, request, call)

    sent: Counter[tuple[str, str]] = Counter()
    send = ServerChannel.call

    async def count_sent(line: ServerChannel, method: Any, request: Any, **how: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        sent[name, dict(how["metadata"]).get(REQUEST_ID, "")] += 1
        return await send(line, method, request, **how)

    monkeypatch.setattr(answering, "admit", count)
    monkeypatch.setattr(ServerChannel, "call", count_sent)
    tq = await deploy()
    job_id = (await tq.client.submit_job(job_type="any")).job_id
    await tq.end(job_id)
    (running, *_) = await tq.hold()
    await tq.client.cancel_job(running)
    queued = (await tq.client.submit_job(job_type="any")).job_id
    assert (await tq.client.cancel_job(queued)).current is JobStatus.CANCELED
    assert len(await tq.jobs()) == 8

    times = 2 if deployment == TWICE else 1

    def with_id(counts: Counter[tuple[str, str]], method: str) -> dict[str, int]:
        return {given: n for (name, given), n in counts.items() if name == method and given}

    async with patience.timeout(PATIENCE):  # a second copy may still be on its way
        while any(min(with_id(arrived, method).values()) < times for method in CHANGES):
            await asyncio.sleep(0.01)
    for method in CHANGES:
        attempts = with_id(sent, method)  # more than one where a service was slow
        for given, times_there in with_id(arrived, method).items():
            assert times <= times_there <= times * attempts[given]
        assert arrived[method, ""] == 0
    for method in READS:
        assert arrived[method, ""] >= times
        assert arrived[method, ""] % times == 0
    # What clients call is called once in both.
    assert arrived["SubmitJob", ""] == 8


def test_every_exception_is_of_deployments_that_there_are_and_is_shown_by_a_test() -> None:
    names = {value: name for name, value in vars(exceptions).items() if isinstance(value, str)}
    shown = (Path(__file__).parent / "test_excepted.py").read_text()
    for exception, about in exceptions.EXCEPTIONS.items():
        assert set(about.deployments) < set(DEPLOYMENTS)
        assert about.why
        assert f"excepted({names[exception]}, deployment)" in shown


def test_deployments_that_need_servers_are_deployments() -> None:
    assert set(DEPLOYMENTS) > NEED_SERVERS
