"""The deadline of a call, on each kind of event loop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest
import uvloop

from jobqueue.stores.redis.connections import within

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=list(LOOPS.values()), ids=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Callable:
    def run(body: Callable):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(body())

    return run


def test_an_answer_that_came_while_the_loop_was_blocked_counts(run):
    async def body() -> bytes:
        here, there = socket.socketpair()
        with there:
            reader, writer = await asyncio.open_connection(sock=here)
            call = asyncio.create_task(within(0.05, reader.readexactly(4)))
            await asyncio.sleep(0)
            there.sendall(b"here")
            time.sleep(0.1)
            try:
                return await call
            finally:
                writer.close()
                await writer.wait_closed()

    assert run(body) == b"here"


def test_no_answer_ends_in_time_and_cancels(run):
    async def body() -> tuple[float, bool]:
        answer = asyncio.get_running_loop().create_future()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await within(0.05, answer)
        return time.monotonic() - began, answer.cancelled()

    took, cancelled = run(body)
    assert 0.045 <= took < 1
    assert cancelled


def test_a_caller_that_is_cancelled_is_not_timed_out(run):
    async def body() -> bool:
        call = asyncio.create_task(within(60, asyncio.get_running_loop().create_future()))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        return call.cancelled()

    assert run(body)


def test_an_answer_leaves_no_timer_behind(run):
    async def body() -> list[dict]:
        async def quick() -> int:
            return 1

        raised: list[dict] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        assert await within(0.001, quick()) == 1
        await asyncio.sleep(0.02)  # a timer that went off now would raise
        return raised

    assert run(body) == []
