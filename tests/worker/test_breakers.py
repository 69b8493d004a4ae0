"""A worker pauses a task that keeps failing, tells its server, and tries one job later."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from jobqueue.core.breaker import Breaker
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.lifecycle import Move
from jobqueue.tasks.context import Abort, RetryLater
from jobqueue.tasks.task import TaskOptions, define
from jobqueue.worker import breakers
from jobqueue.worker.registry import Registry
from tests.worker import handlers
from tests.worker.fakes import FakeServer, Worker

LONG = 600.0  # a pause that no test waits for


class Service:
    """The service that the tasks call; it may be down."""

    def __init__(self) -> None:
        self.away: Exception | None = OSError("away")
        self.calls = 0

    async def pay(self) -> str:
        self.calls += 1
        if self.away is not None:
            raise self.away
        return "paid"

    async def other(self) -> str:
        return "fine"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setattr(breakers, "_SETTLE", 0.01)
    return Service()


def tasks(service: Service, failures: int = 3, pause: float = LONG, **options: Any) -> Registry:
    made = Registry()
    breaker = Breaker(failures=failures, pause=pause)
    made.add(define(service.pay, name="pay", options=TaskOptions(breaker=breaker, **options)))
    made.add(define(service.other, name="other"))
    return made


async def fail(server: FakeServer, times: int) -> None:
    for _ in range(times):
        assert (await server.end(server.deliver("pay"))).move is Move.FAIL


def open_ones(server: FakeServer) -> list[tuple[str, int, bool]]:
    return [(one.type, one.failures, bool(one.trial)) for one in server.breakers]


async def test_failures_in_a_row_pause_the_task_and_no_other(
    server: FakeServer, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(server, tasks=tasks(service)) as worker:
        before = time.time()
        await fail(server, 2)
        assert (server.told_breakers, worker.breakers()) == (0, {"pay": 0})
        await fail(server, 1)
        assert open_ones(server) == [("pay", 3, False)]
        assert before + LONG <= server.breakers[0].until <= time.time() + LONG
        assert worker.breakers() == {"pay": 1}
        late = server.deliver("pay")  # the job was sent before the pause
        assert (await server.end(late)).move is Move.HAND_BACK
        assert (await server.end(server.deliver("other"))).result == b'"fine"'
    assert service.calls == 3
    (line,) = [one for one in caplog.records if "in a row" in one.getMessage()]
    assert line.levelno == logging.WARNING
    assert line.getMessage() == (
        "3 attempts of task pay failed in a row: worker w1 takes no jobs of it for 600 s, then it"
        " tries one"
    )


async def test_a_success_and_failures_that_say_nothing_of_the_service(
    server: FakeServer, service: Service
) -> None:
    async with Worker(server, tasks=tasks(service, failures=2)):
        for error in (OSError(), None, OSError(), Abort("no"), RetryLater(1), ValueError()):
            service.away = error
            assert server.told_breakers == 0
            await server.end(server.deliver("pay"))
        assert open_ones(server) == [("pay", 2, False)]


async def test_a_timeout_counts_and_a_process_as_well(server: FakeServer, service: Service) -> None:
    async def slow() -> None:
        await asyncio.sleep(LONG)

    made = Registry()
    made.add(define(slow, options=TaskOptions(timeout=0.01, breaker=Breaker(failures=1))))
    made.add(
        define(handlers.boom, options=TaskOptions(executor="process", breaker=Breaker(failures=1)))
    )
    async with Worker(server, tasks=made):
        await server.end(server.deliver("slow"))
        await server.end(server.deliver("boom"), 60)
        assert open_ones(server) == [("slow", 1, False), ("boom", 1, False)]


async def test_one_job_is_tried_after_the_pause_and_closes_the_breaker(
    server: FakeServer, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobqueue.worker")
    async with Worker(server, tasks=tasks(service, failures=1, pause=0.1)) as worker:
        await fail(server, 1)
        await server.until(lambda: open_ones(server) == [("pay", 1, True)])
        service.away = None
        first, second = server.job("pay"), server.job("pay")
        server.hand_out([first, second])  # an old server sends more than it was asked for
        assert (await server.end(first)).move is Move.SUCCEED
        assert open_ones(server) == []
        assert (await server.end(second)).move is Move.HAND_BACK
        assert (await server.end(server.deliver("pay"))).move is Move.SUCCEED
        assert worker.breakers() == {"pay": 0}
        await server.until(lambda: server.free == 4)
    assert service.calls == 3
    said = [one.getMessage() for one in caplog.records]
    assert "worker w1 tries one job of task pay" in said
    assert "task pay works again: worker w1 takes all its jobs" in said


async def test_a_trial_that_fails_begins_another_pause(
    server: FakeServer, service: Service
) -> None:
    async with Worker(server, tasks=tasks(service, failures=1, pause=0.1)):
        await fail(server, 1)
        numbers = []
        for failures in (2, 3):
            await server.until(lambda: bool(server.breakers and server.breakers[0].trial))
            numbers.append(server.breakers[0].trial)
            await fail(server, 1)
            await server.until(lambda n=failures: open_ones(server)[0][1] == n)  # type: ignore[misc]
        assert len(set(numbers)) == 2


async def test_a_trial_without_a_job_is_requested_again(
    server: FakeServer, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial's job may have been lost with a stream."""
    monkeypatch.setattr(breakers, "_ASK_AGAIN", 0.1)
    async with Worker(server, tasks=tasks(service, failures=1, pause=0.1)):
        await fail(server, 1)
        await server.until(lambda: bool(server.breakers) and server.breakers[0].trial >= 2)


async def test_a_cancelled_trial_decides_nothing(server: FakeServer, service: Service) -> None:
    began = asyncio.Event()

    async def pay() -> None:
        if service.away is not None:
            raise service.away
        began.set()
        await asyncio.sleep(LONG)

    made = Registry()
    made.add(define(pay, options=TaskOptions(breaker=Breaker(failures=1, pause=0.1))))
    async with Worker(server, tasks=made) as worker:
        await fail(server, 1)
        await server.until(lambda: bool(server.breakers and server.breakers[0].trial))
        number = server.breakers[0].trial
        service.away = None
        tried = server.deliver("pay")
        await began.wait()
        worker.cancel([tried.lease])
        assert (await server.end(tried)).move is Move.ACKNOWLEDGE_CANCEL
        assert server.breakers[0].trial == number + 1


async def test_jobs_that_have_not_begun_are_handed_back(
    server: FakeServer, service: Service
) -> None:
    async def pay(ns: list[int]) -> None:
        raise OSError("away")

    made = Registry()
    options = TaskOptions(batch=2, batch_wait=60.0, breaker=Breaker(failures=2, pause=LONG))
    made.add(define(pay, options=options))
    async with Worker(server, tasks=made):
        jobs = [server.job("pay", b'{"ns": 1}') for _ in range(3)]
        server.hand_out(jobs)
        assert [(await server.end(job)).move for job in jobs] == [
            *(Move.FAIL, Move.FAIL),
            Move.HAND_BACK,
        ]


async def test_open_breakers_are_sent_after_a_new_registration(
    server: FakeServer, service: Service
) -> None:
    async with Worker(server, tasks=tasks(service, failures=1)) as worker:
        await fail(server, 1)
        told = list(server.breakers)
        worker.moved()
        await server.until(lambda: server.connects == 2 and server.free == 4)
        assert server.breakers == told
        assert server.told_breakers == 2


async def test_the_default_task_also_pauses_jobs_without_a_type(server: FakeServer) -> None:
    async def broken() -> None:
        raise OSError

    made = Registry()
    made.add(define(broken, options=TaskOptions(breaker=Breaker(failures=1))), default=True)
    async with Worker(server, tasks=made):
        await server.end(server.deliver(""))
        assert [one.type for one in server.breakers] == ["broken", ""]


def test_a_breaker_of_another_kind_is_refused() -> None:
    async def pay() -> None: ...

    with pytest.raises(InvalidArgument, match=r"breaker: expected Breaker\(failures=10, pause=30"):
        define(pay, options=TaskOptions(breaker=3))  # type: ignore[arg-type]
