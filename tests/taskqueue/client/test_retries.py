"""Calls are retried as the profile says, with its pauses and deadlines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

import pytest

from jobqueue import DeadlineExceeded, InvalidArgument, QueueFull, RateLimited, TaskQueueClient
from jobqueue.core.errors import (
    Internal,
    JobQueueError,
    KeyConflict,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from jobqueue.taskqueue import Deadlines
from jobqueue.taskqueue.components.model import Envelope, Status
from tests.taskqueue.client.fakes import JOB_ID, Servers, call_each

RETRIED = [
    Unavailable("away"),
    DeadlineExceeded("slow"),
    QueueFull("full"),
    RateLimited("fast"),
    OutcomeUnknown("perhaps"),  # UNAVAILABLE on this face: safe, since a submit has its key
]
FINAL = [
    InvalidArgument("spec", "wrong"),
    NotFound("none"),
    KeyConflict("other", JOB_ID),
    PermissionDenied("no"),
    Unauthenticated("who"),
    Internal("defect"),
]
CALLS: dict[str, Callable[[TaskQueueClient], Awaitable[Any]]] = {
    "submit": lambda client: client.submit_job(job_type="noop", client_request_id="key"),
    "status": lambda client: client.get_job_status(JOB_ID),
    "result": lambda client: client.get_job_result(JOB_ID),
    "cancel": lambda client: client.cancel_job(JOB_ID),
    "list": lambda client: client.list_jobs(),
}
GATEWAY = "127.0.0.1:6000"


def by_code(error: JobQueueError) -> str:
    return error.code


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Callable[[TaskQueueClient], Awaitable[Any]]:
    return CALLS[request.param]


@pytest.mark.parametrize("error", RETRIED, ids=by_code)
@pytest.mark.req("tq:RETRY", "tq:LOCK-33")
async def test_four_attempts_and_no_more(servers: Servers, call: Any, error: Any) -> None:
    servers.dead[GATEWAY] = error
    async with servers.client(gateway=GATEWAY) as client:
        with pytest.raises(type(error)):
            await call(client)
    assert len(servers.calls) == 4
    assert all(one == servers.calls[0] for one in servers.calls)
    assert len(servers.pauses) == 3


@pytest.mark.parametrize("error", RETRIED, ids=by_code)
@pytest.mark.req("tq:RETRY")
async def test_the_answer_of_a_later_attempt_counts(
    servers: Servers, call: Any, error: Any
) -> None:
    servers.errors[GATEWAY] = [error, error, error]
    async with servers.client(gateway=GATEWAY) as client:
        await call(client)
    assert len(servers.calls) == 4


@pytest.mark.parametrize("error", FINAL, ids=by_code)
@pytest.mark.req("tq:RETRY", "tq:CODES")
async def test_what_another_attempt_cannot_mend_is_not_tried_again(
    servers: Servers, call: Any, error: Any
) -> None:
    servers.dead[GATEWAY] = error
    async with servers.client(gateway=GATEWAY) as client:
        with pytest.raises(type(error)):
            await call(client)
    assert len(servers.calls) == 1
    assert servers.pauses == []


@pytest.mark.req("tq:RETRY")
async def test_a_final_error_ends_the_attempts(servers: Servers) -> None:
    servers.errors[GATEWAY] = [Unavailable("away"), NotFound("none")]
    async with servers.client(gateway=GATEWAY) as client:
        with pytest.raises(NotFound):
            await client.get_job_status(JOB_ID)
    assert len(servers.calls) == 2


@pytest.mark.parametrize("error", RETRIED, ids=by_code)
@pytest.mark.parametrize("place", ["gateway", "nodes"])
@pytest.mark.req("tq:RETRY", "tq:LOCK-33")
async def test_a_submit_without_a_key_is_never_repeated(
    servers: Servers, place: str, error: Any
) -> None:
    targets = [GATEWAY, "127.0.0.1:6001"]
    servers.dead = dict.fromkeys(targets, error)
    given = {"gateway": GATEWAY} if place == "gateway" else {"nodes": targets}
    async with servers.client(**given) as client:
        with pytest.raises(type(error)):
            await client.submit_job(job_type="noop")
    assert len(servers.calls) == 1


@pytest.mark.req("tq:RETRY", "tq:LOCK-33")
async def test_the_pauses_are_drawn_from_the_whole_of_100_200_and_400_ms(servers: Servers) -> None:
    servers.dead[GATEWAY] = Unavailable("away")
    async with servers.client(gateway=GATEWAY, rng=random.Random(7)) as client:
        for _ in range(400):
            with pytest.raises(Unavailable):
                await client.get_job_status(JOB_ID)
    for attempt, most in enumerate((0.1, 0.2, 0.4)):
        drawn = servers.pauses[attempt::3]
        assert len(drawn) == 400
        assert 0 <= min(drawn) < 0.05 * most
        assert 0.95 * most < max(drawn) <= most
        assert 0.4 * most < sum(drawn) / len(drawn) < 0.6 * most


@pytest.mark.req("tq:DEADLINE")
async def test_the_deadlines_of_the_document(servers: Servers) -> None:
    async with servers.client() as client:
        await call_each(client)
    assert {call.method: call.timeout for call in servers.calls} == {
        "submit": 3.0,
        "cancel": 3.0,
        "status": 1.0,
        "result": 1.0,
        "list": 1.0,
    }


@pytest.mark.req("tq:DEADLINE")
async def test_deadlines_can_be_set_for_each_method(servers: Servers) -> None:
    own = Deadlines(
        submit_job=1.5, cancel_job=2.5, get_job_status=3.5, get_job_result=4.5, list_jobs=5.5
    )
    async with servers.client(deadlines=own) as client:
        await call_each(client)
    assert {call.method: call.timeout for call in servers.calls} == {
        "submit": 1.5,
        "cancel": 2.5,
        "status": 3.5,
        "result": 4.5,
        "list": 5.5,
    }


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 3_601, "1", None, True])
@pytest.mark.parametrize("name", [one.name for one in fields(Deadlines)])
def test_a_deadline_that_is_none_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Deadlines(**{name: value})
    assert caught.value.field == f"deadlines.{name}"


@pytest.mark.req("tq:DEADLINE", "tq:RETRY")
async def test_every_attempt_has_the_whole_deadline(servers: Servers) -> None:
    servers.dead[GATEWAY] = DeadlineExceeded("slow")
    async with servers.client(gateway=GATEWAY) as client:
        with pytest.raises(DeadlineExceeded):
            await client.cancel_job(JOB_ID)
    assert [call.timeout for call in servers.calls] == [3.0] * 4
    assert sum(servers.pauses) <= 0.7  # what the documented bound of 12.7 s rests on


async def test_waiting_asks_less_and_less_often(servers: Servers) -> None:
    done = Envelope(JOB_ID, Status.FAILED)
    servers.results = [*[None] * 20, done]
    async with servers.client() as client:
        assert await client.wait_result(JOB_ID) is done
    assert servers.pauses == sorted(servers.pauses)
    assert servers.pauses[0] < 0.1
    assert servers.pauses[-1] == 1.0


async def test_waiting_ends_with_its_timeout(servers: Servers) -> None:
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    servers.sleep = sleep  # type: ignore[method-assign]
    async with servers.client() as client:
        with pytest.raises(DeadlineExceeded, match="the job goes on"):
            await client.wait_result(JOB_ID, timeout=0.05)


async def test_waiting_passes_errors_on(servers: Servers) -> None:
    servers.dead[GATEWAY] = NotFound("none")
    async with servers.client(gateway=GATEWAY) as client:
        with pytest.raises(NotFound):
            await client.wait_result(JOB_ID, timeout=30)
