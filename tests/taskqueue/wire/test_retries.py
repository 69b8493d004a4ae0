"""The retry profile: four attempts, three codes, one request id."""

from __future__ import annotations

import asyncio
import socket
from collections import deque

import grpc
import pytest

from jobqueue.core.errors import (
    Code,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    JobQueueError,
    KeyConflict,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
    QueueFull,
    Unavailable,
    Unreachable,
)
from jobqueue.taskqueue.components.gateway import Gateway
from jobqueue.taskqueue.components.model import (
    Actor,
    Applied,
    CreatedJob,
    JobRecord,
    Listing,
    Status,
    Summary,
)
from jobqueue.taskqueue.components.protocols import is_uncertain
from jobqueue.taskqueue.grpc import errors
from jobqueue.taskqueue.grpc.remote import (
    RemoteCoordination,
    RemoteJobs,
    RemoteQueue,
    RemoteResults,
)
from tests import patience, ports
from tests.taskqueue.wire import parts
from tests.taskqueue.wire.drawing import Rng
from tests.taskqueue.wire.parts import ENVELOPE, FOREVER, JOB, RECORD, SPEC

pytestmark = pytest.mark.usefixtures("patient")

CREATED = CreatedJob(JOB, Status.QUEUED, created=True)
QUEUED = JobRecord(Summary(JOB, Status.QUEUED, "t", 1), SPEC)
TRANSIENT = [Unavailable("down"), DeadlineExceeded("slow"), QueueFull("full")]
REFUSED, LOST = Unreachable("refused"), OutcomeUnknown("the connection broke")
FINAL = [
    InvalidArgument("spec", "wrong"),
    NotFound("no"),
    KeyConflict("other", JOB),
    PermissionDenied("no"),
    Internal("a defect"),
]


@pytest.mark.req("tq:RETRY", "tq:LOCK-33")
def test_four_attempts_with_full_jitter():
    rng = Rng(0.5)
    assert list(errors.delays(rng)) == pytest.approx([0.05, 0.1, 0.2])
    assert [least for least, _ in rng.ranges] == [0.0] * 3
    assert [most for _, most in rng.ranges] == pytest.approx([0.1, 0.2, 0.4])
    assert [errors.longest_delay(retry) for retry in range(6)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    )


@pytest.mark.req("tq:RETRY", "tq:LOCK-33")
def test_three_codes_are_retried():
    assert {status.name for status in grpc.StatusCode if errors.is_retryable(status)} == {
        "UNAVAILABLE",
        "DEADLINE_EXCEEDED",
        "RESOURCE_EXHAUSTED",
    }
    assert {code for code in Code if errors.is_retryable(code)} == {
        Code.UNAVAILABLE,
        Code.OUTCOME_UNKNOWN,
        Code.DEADLINE_EXCEEDED,
        Code.QUEUE_FULL,
        Code.RATE_LIMITED,
    }


@pytest.mark.req("tq:RETRY")
@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: error.code)
async def test_the_fourth_attempt_may_succeed(serve, peer, error):
    services = await serve(jobs=parts.jobs(create=deque([error] * 3 + [CREATED])))
    rng = Rng(0.0)
    jobs = RemoteJobs(peer(services.target, rng=rng))
    assert await jobs.create(SPEC, "", request_id="the-one") == CREATED
    assert services.tap.request_ids() == ["the-one"] * 4
    assert len(rng.ranges) == 3


@pytest.mark.req("tq:RETRY")
@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: error.code)
async def test_there_is_no_fifth(serve, peer, error):
    services = await serve(jobs=parts.jobs(create=deque([error] * 4 + [CREATED])))
    jobs = RemoteJobs(peer(services.target, rng=Rng(0.0)))
    with pytest.raises(OutcomeUnknown if isinstance(error, DeadlineExceeded) else type(error)):
        await jobs.create(SPEC, "", request_id="r")
    assert len(services.calls()) == 4


@pytest.mark.req("tq:RETRY", "tq:SUBMIT", "tq:CANCEL")
async def test_a_gateway_adds_no_attempts_of_its_own(serve, peer):
    down = Unavailable("down")
    services = await serve(
        jobs=parts.jobs(create=down, get=QUEUED),
        queue=parts.queue(remove=down, enqueue=True),
    )
    owners = peer(services.target, rng=Rng(0.0))
    gateway = Gateway(RemoteJobs(owners), RemoteQueue(owners), RemoteResults(owners))
    with pytest.raises(Unavailable):
        await gateway.submit(SPEC, "key")
    with pytest.raises(Unavailable):
        await gateway.cancel(JOB, "")
    await gateway.stop()
    assert services.calls() == ["create"] * 4 + ["get"] + ["remove"] * 4 + ["enqueue"]


@pytest.mark.req("tq:RETRY", "tq:DISPATCH")
async def test_a_transition_that_ends_with_internal_is_one_of_the_four_attempts(serve, peer):
    """It may have been applied: the same id is told what became of it."""
    defect, applied = Internal("a defect"), Applied(True, Status.RUNNING)
    services = await serve(
        jobs=parts.jobs(transition=deque([defect] * 3 + [applied] + [defect] * 4 + [applied]))
    )
    jobs = RemoteJobs(peer(services.target, Actor.COORDINATOR, rng=Rng(0.0)))

    async def start(request_id: str) -> Applied:
        return await jobs.transition(
            JOB, Status.QUEUED, Status.RUNNING, actor=Actor.COORDINATOR, request_id=request_id
        )

    assert await start("one") == applied
    with pytest.raises(Internal):
        await start("two")
    assert services.tap.request_ids() == ["one"] * 4 + ["two"] * 4


@pytest.mark.req("tq:RETRY", "tq:CODES")
@pytest.mark.parametrize(
    ("failures", "certain"),
    [
        ([REFUSED] * 4, True),
        ([REFUSED, LOST, REFUSED, REFUSED], False),
        ([LOST, REFUSED, REFUSED, REFUSED], False),
    ],
    ids=["refused", "lost between", "lost first"],
)
async def test_only_a_call_that_never_reached_anybody_is_certain_not_to_have_happened(
    peer, monkeypatch, failures, certain
):
    one = peer("127.0.0.1:1", rng=Rng(0.0))
    left = deque(failures)

    async def fail(*_: object, **__: object) -> None:
        raise left.popleft()

    monkeypatch.setattr(one._server, "call", fail)
    with pytest.raises(JobQueueError) as caught:
        await RemoteJobs(one).create(SPEC, "", request_id="r")
    assert not left
    assert is_uncertain(caught.value) is not certain


@pytest.mark.req("tq:RETRY")
@pytest.mark.parametrize("error", FINAL, ids=lambda error: error.code)
async def test_what_is_final_is_not_retried(serve, peer, error):
    services = await serve(jobs=parts.jobs(create=error))
    with pytest.raises(type(error)):
        await RemoteJobs(peer(services.target)).create(SPEC, "", request_id="r")
    assert len(services.calls()) == 1


@pytest.mark.req("tq:RETRY")
async def test_a_change_without_an_id_is_not_retried(serve, peer):
    services = await serve(jobs=parts.jobs(create=deque([Unavailable("down"), CREATED])))
    with pytest.raises(Unavailable):
        await RemoteJobs(peer(services.target)).create(SPEC, "", request_id="")
    assert len(services.calls()) == 1


@pytest.mark.req("tq:RETRY")
async def test_reads_and_heartbeats_are_retried_without_one(serve, peer):
    down = Unavailable("down")
    services = await serve(
        jobs=parts.jobs(get=deque([down, RECORD]), list=deque([down, parts.PAGE])),
        results=parts.results(get=deque([down, ENVELOPE])),
        coordination=parts.coordination(heartbeat=deque([down, 1_000])),
    )
    gateway = peer(services.target, rng=Rng(0.0))
    assert await RemoteJobs(gateway).get(JOB) == RECORD
    assert await RemoteJobs(gateway).list(Listing()) == parts.PAGE
    assert await RemoteResults(gateway).get(JOB) == ENVELOPE
    worker = RemoteCoordination(peer(services.target, Actor.WORKER, rng=Rng(0.0)))
    assert await worker.heartbeat("w", 1, 1) == 1_000
    assert len(services.calls()) == 8


@pytest.mark.req("tq:RETRY")
async def test_the_public_client_makes_one_attempt(serve, client):
    services = await serve(public=parts.task_queue(submit=Unavailable("down")))
    with pytest.raises(Unavailable):
        await client(services.target).submit(SPEC, "key")
    assert services.calls() == ["submit"]


@pytest.mark.req("tq:RETRY", "tq:CODES")
async def test_nobody_listens(peer, client):
    with socket.socket() as held:  # bound, not listening: a connection is refused
        held.bind(("127.0.0.1", port := ports.take()))
        target = f"127.0.0.1:{port}"
        rng = Rng(0.0)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await RemoteJobs(peer(target, rng=rng)).get(JOB)
        assert len(rng.ranges) == 3
        with pytest.raises(Unavailable, match="cannot be reached"):
            await client(target).status(JOB)


async def test_a_peer_that_is_closed(serve, peer):
    services = await serve(jobs=parts.jobs(get=FOREVER))
    one = peer(services.target)
    jobs = RemoteJobs(one)
    waiting = asyncio.create_task(jobs.get(JOB))
    async with patience.timeout(20):
        while not services.calls():
            await asyncio.sleep(0.01)
    await one.close()
    with pytest.raises(Unavailable, match="closed"):
        await waiting
    with pytest.raises(Unavailable, match="closed"):
        await jobs.get(JOB)


async def test_who_is_cancelled_stays_cancelled(serve, peer):
    services = await serve(jobs=parts.jobs(get=FOREVER))
    waiting = asyncio.create_task(RemoteJobs(peer(services.target)).get(JOB))
    async with patience.timeout(20):
        while not services.calls():
            await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
