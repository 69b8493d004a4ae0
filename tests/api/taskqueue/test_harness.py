"""The suite itself: what it says of its deployments is so."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jobqueue.api.grpc.taskqueue import answering
from jobqueue.api.grpc.taskqueue.callers import Call
from jobqueue.taskqueue import JobStatus
from tests.api.taskqueue.conftest import Deploy
from tests.api.taskqueue.deployments import DEPLOYMENTS, NEED_SERVERS
from tests.api.taskqueue.exceptions import EXCEPTIONS

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
READS = {"GetJobRecord", "ListJobRecords", "GetResult", "WorkerHeartbeat"}


@pytest.mark.parametrize("deployment", ["microservices", TWICE])
async def test_calls_arrive_once_or_twice_as_the_deployment_says(
    deploy: Deploy, deployment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: Counter[tuple[str, str]] = Counter()
    admit = answering.admit

    def count(method: str, request: Any, call: Call) -> None:
        arrived[method, call.request_id] += 1
        admit(method, request, call)

    monkeypatch.setattr(answering, "admit", count)
    tq = await deploy()
    job_id = (await tq.client.submit_job(job_type="any")).job_id
    await tq.end(job_id)
    (running, *_) = await tq.hold()
    await tq.client.cancel_job(running)
    queued = (await tq.client.submit_job(job_type="any")).job_id
    assert (await tq.client.cancel_job(queued)).current is JobStatus.CANCELED
    assert len(await tq.jobs()) == 8

    times = 2 if deployment == TWICE else 1
    by_method: dict[str, set[int]] = {}
    for (method, request_id), count_of_one in arrived.items():
        if request_id:
            by_method.setdefault(method, set()).add(count_of_one)
    # The latest fetch may be under way, and its second copy still to come.
    fetched = by_method.pop("FetchWork")
    assert max(fetched) == times
    dequeued = by_method.pop("DequeueJob")
    assert max(dequeued) == times
    assert by_method == dict.fromkeys(CHANGES - {"FetchWork", "DequeueJob"}, {times})
    for method in READS - {"WorkerHeartbeat"}:
        assert arrived[method, ""] % times == 0
        assert arrived[method, ""] > 0
    assert arrived["WorkerHeartbeat", ""] > 0
    # What clients call is called once in both.
    assert arrived["SubmitJob", ""] == 8


def test_every_exception_is_of_deployments_that_there_are_and_is_shown_by_a_test() -> None:
    named = "".join(path.read_text() for path in Path(__file__).parent.glob("test_excepted.py"))
    constants = {
        value: name
        for name, value in vars(
            __import__("tests.api.taskqueue.exceptions", fromlist=["*"])
        ).items()
        if isinstance(value, str) and value in EXCEPTIONS
    }
    for exception, about in EXCEPTIONS.items():
        assert set(about.deployments) < set(DEPLOYMENTS)
        assert about.why
        assert f"excepted({constants[exception]}" in named


def test_deployments_that_need_servers_are_deployments() -> None:
    assert set(DEPLOYMENTS) > NEED_SERVERS
