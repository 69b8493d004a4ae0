"""Bodies that are held in memory: a part for each caller, and a least rate."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from starlette.requests import Request
from starlette.types import Message

from jobqueue.access.callers import EVERY_ROLE, Caller, enter_call
from jobqueue.api.http.context import BodyBuffers
from jobqueue.api.http.errors import TooSlow
from jobqueue.api.http.settings import KIB, MIB, HttpFaceSettings
from jobqueue.core.errors import Unavailable

LIMIT = 16 * MIB


class _Loop(asyncio.SelectorEventLoop):
    """Its time passes when a test says so."""

    passed = 0.0

    def time(self) -> float:
        return super().time() + self.passed


@pytest.fixture
def loop() -> Iterator[_Loop]:
    loop = _Loop()
    yield loop
    loop.close()


def sending(*chunks: tuple[float, int]) -> Request:
    """A request whose body comes in chunks: seconds to wait for it, and its size."""
    left = list(chunks)

    async def receive() -> Message:
        seconds, size = left.pop(0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _Loop)
        loop.passed += seconds
        for _ in range(3):  # timers that are due now run, and cancel
            await asyncio.sleep(0)
        return {"type": "http.request", "body": b"x" * size, "more_body": bool(left)}

    return Request({"type": "http", "headers": []}, receive)


def read(loop: _Loop, *chunks: tuple[float, int]) -> int:
    async def whole() -> int:
        async with BodyBuffers(HttpFaceSettings()).body(sending(*chunks), LIMIT) as body:
            return len(body)

    return loop.run_until_complete(whole())


@pytest.mark.parametrize(
    "chunks",
    [
        [(29.0, 100)],
        [(4.0, 64 * KIB)] * 8,
        [(9.0, 1024 * KIB)] * 3,
        [(0.0, 4 * MIB), (9.0, 1)],
    ],
    ids=["late", "slow link", "stalls", "last byte late"],
)
def test_a_slow_link_is_waited_for(loop: _Loop, chunks: list[tuple[float, int]]) -> None:
    assert read(loop, *chunks) == sum(size for _, size in chunks)


@pytest.mark.parametrize(
    "chunks",
    [
        [(0.0, 1), (11.0, 100)],
        [(2.0, 8 * KIB)] * 20,
        [(9.0, 1)] * 4,
        [(0.0, 15 * MIB), (11.0, 1)],
    ],
    ids=["stops", "half the rate", "drops", "kept back"],
)
def test_a_body_that_does_not_come_is_given_up(
    loop: _Loop, chunks: list[tuple[float, int]]
) -> None:
    with pytest.raises(TooSlow, match="body: arrives too slowly"):
        read(loop, *chunks)


def test_callers_leave_as_much_as_they_have_for_the_next_one(loop: _Loop) -> None:
    buffers = BodyBuffers(HttpFaceSettings(max_buffered_bytes=120))

    async def hold(held: AsyncExitStack, name: str, size: int) -> None:
        enter_call(Caller(name, EVERY_ROLE, "2001:db8::1"))
        await held.enter_async_context(buffers.body(sending((0.0, size)), LIMIT))

    async def scenario() -> None:
        for _ in range(2):  # all is given back
            async with AsyncExitStack() as held:
                await hold(held, "web", 60)
                with pytest.raises(Unavailable, match="61 bytes of requests of name web"):
                    await hold(held, "web", 1)
                await hold(held, "shop", 30)
                with pytest.raises(Unavailable, match="name web"):
                    await hold(held, "web", 1)
                await hold(held, "", 15)
                with pytest.raises(Unavailable, match="address 2001:db8::/64"):
                    await hold(held, "", 1)

    loop.run_until_complete(scenario())
