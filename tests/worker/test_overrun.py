"""Slots of attempts that are over, and whose function does not end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from jobqueue.core.job import Pulse
from jobqueue.core.lifecycle import Move
from tests import patience
from tests.worker.fakes import FakeServer, Worker

pytestmark = pytest.mark.req("jq:FR-021")


class Hanging:
    """A task that returns when the test lets it."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def hang(self) -> None:
        self.release.wait(patience.longest(30))


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.release.set()


async def until(condition: Callable[[], object]) -> None:
    async with patience.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


def said(caplog: pytest.LogCaptureFixture, part: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if part in one.getMessage()]


async def test_a_slot_that_does_not_come_free_is_counted_and_said(
    server: FakeServer, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(
        server, hanging.hang, concurrency=2, cancel_grace=0.01, heartbeat_interval=0.01
    ) as worker:
        assert worker.overrun == 0
        await server.end(server.deliver("hang", timeout=0.01))
        await until(lambda: said(caplog, "still runs"))
        (line,) = said(caplog, "still runs")
        assert "job job-1 (hang) still runs 0.01 s after" in line.getMessage()
        assert "(timed out)" in line.getMessage()
        assert "1 of 2 slots are blocked like this" in line.getMessage()
        assert (line.levelno, worker.overrun) == (logging.WARNING, 1)
        await until(lambda: server.overrun == 1)  # the heartbeat tells
        assert not said(caplog, "all 2 slots")
        hanging.release.set()
        await server.until(lambda: server.free == 2)
        assert worker.overrun == 0
        await until(lambda: server.overrun == 0)


async def test_a_function_that_ends_soon_after_its_time_is_not_mentioned(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def slow() -> None:
        await asyncio.sleep(60)

    async with Worker(server, slow, concurrency=1, cancel_grace=0.01) as worker:
        for _ in range(2):
            await server.end(server.deliver("slow", timeout=0.01))
            await server.until(lambda: server.free == 1)
            await until(lambda: not worker.running)
    assert not said(caplog, "still runs")


async def test_a_worker_in_a_program_of_the_users_stays_when_no_slot_is_left(
    server: FakeServer, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(server, hanging.hang, concurrency=2, cancel_grace=0.01) as worker:
        for _ in range(2):
            await server.end(server.deliver("hang", timeout=0.01))
        await until(lambda: said(caplog, "all 2 slots"))
        (line,) = said(caplog, "all 2 slots")
        assert line.levelno == logging.ERROR
        assert "this worker runs no jobs until one of them returns" in line.getMessage()
        hanging.release.set()
        await server.until(lambda: server.free == 2)
        assert not worker.exhausted
        assert (await server.end(server.deliver("hang"))).move is Move.SUCCEED


async def test_a_worker_of_its_own_ends_when_no_slot_is_left(
    server: FakeServer, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(
        server, hanging.hang, concurrency=2, cancel_grace=0.01, recycle=True
    ) as worker:
        for _ in range(2):
            await server.end(server.deliver("hang", timeout=0.01))
        await patience.wait_for(worker.finished, 20)
        assert (worker.exhausted, server.closed, server.drained) == (True, 1, True)
        assert len(server.ends()) == 2  # the timeouts, once
    assert said(caplog, "the worker stops now, so that its supervisor starts it again")
    assert not said(caplog, "are left behind")


async def test_a_slot_whose_lease_was_lost_counts_too(
    server: FakeServer, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(
        server, hanging.hang, concurrency=1, cancel_grace=0.01, heartbeat_interval=0.01
    ) as worker:
        job = server.deliver("hang")
        await server.start_of(job)
        server.answer = lambda leases: Pulse(True, lost=list(leases))
        await until(lambda: said(caplog, "(lease lost)"))
        assert worker.overrun == 1
