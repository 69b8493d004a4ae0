"""Calls, waits and streams under way have an end, for each caller and in all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from tests import patience
from tests.cli import processes
from tests.hostile.target import API_KEYS, Target, metadata

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SUBMIT_STREAM = "/jq.v1.ClientService/SubmitStream"
LIST_JOBS = "/jq.v1.ClientService/ListJobs"
WAIT_JOB = "/jq.v1.ClientService/WaitJob"
WATCH_JOB = "/jq.v1.ClientService/WatchJob"
WATCH_HEALTH = "/grpc.health.v1.Health/Watch"
SMALL = {
    f"JQ_LIMITS_{kind}{whose}": number
    for kind in ("CALLS", "WAITS", "STREAMS", "SUBMIT_STREAMS")
    for whose, number in (("", "6"), ("_PER_CALLER", "4"))
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server with small budgets."""
    with processes.server(
        tmp_path_factory.mktemp("small"),
        *("--db-url", "memory://", "--worker-concurrency", "0"),
        JQ_AUTH_API_KEYS=API_KEYS,
        **SMALL,
    ) as service:
        yield Target(service)


def begin(channel: grpc.aio.Channel, method: str, name: str) -> Any:
    """A call whose client sends nothing."""
    call: Any = channel.stream_stream(method)
    return call(metadata=metadata(name))


async def fill(
    channel: grpc.aio.Channel, method: str, name: str, places: int
) -> tuple[list[Any], str]:
    """Begin two calls too many; returns those that were let in, and what the others were told."""
    calls = [begin(channel, method, name) for _ in range(places + 2)]
    codes = {asyncio.ensure_future(call.code()): call for call in calls}
    refused: set[asyncio.Future[grpc.StatusCode]] = set()
    async with patience.timeout(60):
        while len(refused) < 2:
            refused, _ = await asyncio.wait(codes, return_when=asyncio.FIRST_COMPLETED)
            if len(refused) == 1:
                await asyncio.wait(set(codes) - refused, return_when=asyncio.FIRST_COMPLETED)
    assert {code.result() for code in refused} == {grpc.StatusCode.UNAVAILABLE}
    (told,) = {await codes[code].details() for code in refused}
    held = [call for code, call in codes.items() if code not in refused]
    for code in set(codes) - refused:
        code.cancel()
    return held, told


async def allowed(channel: grpc.aio.Channel, name: str) -> bool:
    """Whether a plain call is let in."""
    call: Any = channel.unary_unary(LIST_JOBS)
    made = call(b"", metadata=metadata(name), timeout=patience.longest(10))
    return (await made.code()) is grpc.StatusCode.OK


async def when_allowed(channel: grpc.aio.Channel, name: str) -> None:
    """Wait for it."""
    async with patience.timeout(30):
        while not await allowed(channel, name):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("method", "what"),
    [
        (LIST_JOBS, "calls"),
        (WAIT_JOB, "waits"),
        (WATCH_JOB, "streams"),
        (SUBMIT_STREAM, "submit streams"),
    ],
)
async def test_a_caller_has_only_so_much_under_way(small: Target, method: str, what: str):
    """A call whose message does not come is under way, too."""
    async with small.channel() as channel:
        held, told = await fill(channel, method, "client", 4)
        assert f"name client has 4 {what} under way already" in told
        assert len(held) == 4
        with small.watched() as seen:
            assert await allowed(channel, "other")
        seen.check_healthy()
        more, told = await fill(channel, method, "other", 1)
        assert f"the server has 5 {what} under way already, and the rest is for" in told
        assert len(more) == 1
        # Two callers with all that they get leave room for those who have nothing under way.
        assert await allowed(channel, "operator")
        for call in (*held, *more):
            call.cancel()
        await when_allowed(channel, "client")
        again, told = await fill(channel, method, "client", 4)
        assert f"name client has 4 {what} under way already" in told  # all places were given back
        for call in again:
            call.cancel()


async def test_unknown_callers_watch_health_within_their_own_budget(small: Target):
    """It is open to everybody, and counted by address."""
    async with small.channel() as channel:
        watch: Any = channel.unary_stream(WATCH_HEALTH)
        held = [watch(b"") for _ in range(100)]
        for call in held:
            await call.read()
        late = watch(b"")
        assert await late.code() is grpc.StatusCode.UNAVAILABLE
        assert "address 127.0.0.1 has 100 watches under way already" in await late.details()
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        await check(b"", timeout=patience.longest(10))
        await when_allowed(channel, "client")  # streams of callers have room of their own
        for call in held:
            call.cancel()


async def test_what_everybody_may_send_is_short(small: Target):
    """A name that is kept while its stream lasts would be memory for nothing."""
    async with small.channel() as channel:
        name = bytes([0x0A, 0x80, 0x10]) + b"x" * 2048
        watch: Any = channel.unary_stream(WATCH_HEALTH)
        call = watch(name)
        with pytest.raises(grpc.aio.AioRpcError, match="at most 1024 bytes") as refused:
            await call.read()  # who is let in hears of its service
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
