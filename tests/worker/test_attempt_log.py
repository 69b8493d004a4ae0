"""The line that every attempt leaves in the log when it ends."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import Pulse
from jobqueue.core.lifecycle import Move, State
from jobqueue.core.observer import Observer
from jobqueue.logs import JobFields
from jobqueue.tasks.context import Abort, RetryLater
from jobqueue.tasks.task import TaskOptions, define
from jobqueue.worker.registry import Registry
from tests import patience
from tests.worker import handlers
from tests.worker.fakes import FakeServer, Worker

log = logging.getLogger("tests.handlers")


class Figures(Observer):
    """What a worker tells of its attempts."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, State]] = Counter()
        self.times: Counter[str] = Counter()

    def entered(self, queue: str, state: State, count: int) -> None:
        self.counts[queue, state] += count

    def ran(self, queue: str, seconds: Sequence[float]) -> None:
        self.times[queue] += len(seconds)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[..., list[logging.LogRecord]]:
    """The worker's records with a job, from that level on."""
    caplog.set_level(logging.DEBUG, "jobqueue.worker")
    caplog.set_level(logging.DEBUG, "tests.handlers")

    def read(level: int = logging.DEBUG) -> list[logging.LogRecord]:
        return [r for r in caplog.records if hasattr(r, "job_id") and r.levelno >= level]

    return read


async def boom() -> None:
    try:
        int("x")
    except ValueError as error:
        raise LookupError("bad\nnews") from error


async def test_a_success_is_a_debug_line_with_the_job(server: FakeServer, lines: Any) -> None:
    async def fine() -> None: ...

    async with Worker(server, fine):
        job = server.deliver("fine", attempt=2, queue="default")
        await server.end(job)
    (line,) = lines()
    assert line.levelno == logging.DEBUG
    assert (line.job_id, line.type, line.queue) == (job.id, "fine", "default")
    assert (line.attempt, line.worker_id) == (2, "w1")
    assert line.duration >= 0
    assert line.getMessage().startswith(
        f"attempt 2 of fine (job {job.id}, queue default) succeeded after 0."
    )


async def test_nothing_is_worded_for_a_success_that_nobody_reads(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fine() -> None: ...

    monkeypatch.setattr("jobqueue.worker.log.AttemptLog.ended", pytest.fail)
    logging.getLogger("jobqueue.worker").setLevel(logging.INFO)
    try:
        async with Worker(server, fine):
            await server.end(server.deliver("fine"))
    finally:
        logging.getLogger("jobqueue.worker").setLevel(logging.NOTSET)


async def test_a_failure_that_is_retried_is_a_warning_with_its_traceback(
    server: FakeServer, lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(server, boom):
        await server.end(server.deliver("boom", retry_count=1, max_retries=3))
    (line,) = lines()
    assert line.levelno == logging.WARNING
    assert "it will be retried (2 retries left): LookupError: bad" in line.getMessage()
    assert "\n" not in line.getMessage()
    trace = caplog.handler.format(line)
    assert 'raise LookupError("bad\\nnews") from error' in trace
    assert "invalid literal for int()" in trace
    assert "executors" not in trace  # the frames of the handler, not ours


@pytest.mark.parametrize("how", ["raised", "aborted", "wrong"])
async def test_a_dead_letter_is_an_error(server: FakeServer, lines: Any, how: str) -> None:
    async def raised() -> None:
        raise ValueError("last")

    async def aborted() -> None:
        raise Abort("hopeless")

    async def wrong() -> int:
        return "x"  # type: ignore[return-value]

    said = {
        "raised": "it is a dead letter now (no retries left): ValueError: last",
        "aborted": "it is a dead letter now (not retryable): Abort: hopeless",
        "wrong": "it is a dead letter now (not retryable): task 'wrong': result: expected `int`",
    }
    async with Worker(server, raised, aborted, wrong):
        retries = 3 if how == "raised" else 0
        await server.end(server.deliver(how, retry_count=retries, max_retries=3))
    (line,) = lines()
    assert line.levelno == logging.ERROR
    assert said[how] in line.getMessage()
    assert bool(line.exc_info) == (how == "raised")


async def test_a_retry_that_was_asked_for_says_when(server: FakeServer, lines: Any) -> None:
    async def later() -> None:
        raise RetryLater(7, "busy")

    async with Worker(server, later):
        await server.end(server.deliver("later"))
    (line,) = lines()
    assert "it will be retried in 7 s (3 retries left): RetryLater: busy" in line.getMessage()
    assert line.levelno == logging.WARNING
    assert not line.exc_info


async def test_arguments_that_cannot_be_read_leave_no_frames_of_ours(
    server: FakeServer, lines: Any
) -> None:
    async def add(a: int) -> None: ...

    async with Worker(server, add):
        await server.end(server.deliver("add", b'{"a": "x"}'))
    (line,) = lines()
    assert "InvalidArgument: a: expected `int`" in line.getMessage()
    assert not line.exc_info


async def test_a_timeout_is_logged_at_the_deadline(server: FakeServer, lines: Any) -> None:
    async def slow() -> None:
        await asyncio.Event().wait()

    async with Worker(server, slow):
        await server.end(server.deliver("slow", timeout=0.05, retry_count=3))
    (line,) = lines()
    assert line.levelno == logging.ERROR
    assert re.search(r"timed out after \d+\.\d{3} s", line.getMessage())
    assert "dead letter" in line.getMessage()


async def test_a_cancel_is_told_and_not_blamed(server: FakeServer, lines: Any) -> None:
    async def slow() -> None:
        await asyncio.Event().wait()

    async with Worker(server, slow) as worker:
        job = server.deliver("slow")
        await server.start_of(job)
        worker.cancel([job.lease])
        assert (await server.end(job)).move is Move.ACKNOWLEDGE_CANCEL
    (line,) = lines()
    assert (line.levelno, line.job_id) == (logging.INFO, job.id)
    assert "was cancelled after" in line.getMessage()


async def test_a_lost_lease_is_a_warning(server: FakeServer, lines: Any) -> None:
    stopped = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with Worker(server, slow, heartbeat_interval=0.01):
        job = server.deliver("slow")
        await server.start_of(job)
        server.answer = lambda leases: Pulse(True, lost=list(leases))
        await patience.wait_for(stopped.wait(), 10)
    (line,) = lines()
    assert (line.levelno, line.job_id) == (logging.WARNING, job.id)
    assert "its lease is gone" in line.getMessage()


async def test_an_end_that_came_too_late_is_a_warning(server: FakeServer, lines: Any) -> None:
    async def fine() -> None: ...

    server.refuse = lambda report: report.move is Move.SUCCEED
    async with Worker(server, fine):
        job = server.deliver("fine")
        await server.end(job)
    _, line = lines()
    assert (line.levelno, line.job_id) == (logging.WARNING, job.id)
    assert "the server had given the attempt up" in line.getMessage()


async def test_a_result_that_the_server_refuses_is_an_error(server: FakeServer, lines: Any) -> None:
    async def fine() -> str:
        return "x"

    async with Worker(server, fine):
        server.errors.append(InvalidArgument("result", "too large"))
        await server.end(server.deliver("fine"))
    line = lines()[-1]
    assert line.levelno == logging.ERROR
    assert "the server refused the result: result: too large" in line.getMessage()


async def test_an_attempt_left_behind_by_a_stop_is_named(server: FakeServer, lines: Any) -> None:
    async def slow() -> None:
        await asyncio.Event().wait()

    async with Worker(server, slow) as worker:
        job = server.deliver("slow")
        await server.start_of(job)
        await worker.stop(0.1)
    (line,) = lines()
    assert (line.levelno, line.job_id) == (logging.WARNING, job.id)
    assert "did not end in time" in line.getMessage()


async def test_a_process_that_raises_or_dies_is_logged(
    server: FakeServer, lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = Registry()
    for fn in (handlers.crash, handlers.boom):
        tasks.add(define(fn, options=TaskOptions(executor="process")))
    async with Worker(server, tasks=tasks):
        await server.end(server.deliver("crash"), 30)
        await server.end(server.deliver("boom"), 30)
    died, raised = lines()
    assert "the process that ran the job has ended" in died.getMessage()
    assert raised.levelno == logging.WARNING
    assert "handlers.py" in caplog.handler.format(raised)


async def test_a_program_that_fails_is_logged_with_what_it_said(
    server: FakeServer, lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('no such order')")
    async with Worker(server, exec_command=command):
        job = server.deliver("")
        await server.end(job)
    (line,) = lines()
    assert line.job_id == job.id
    assert "exit status 1" in line.getMessage()
    assert caplog.handler.format(line).endswith("\n    no such order")


@pytest.mark.parametrize("kind", ["loop", "thread"])
async def test_lines_of_a_handler_carry_its_job(server: FakeServer, lines: Any, kind: str) -> None:
    async def inner() -> None:
        log.info("from a task of the handler's own")

    async def on_loop() -> None:
        log.info("from the handler")
        await asyncio.create_task(inner())

    def in_thread() -> None:
        log.info("from the handler")

    ours = JobFields()
    for handler in logging.getLogger().handlers:
        handler.addFilter(ours)
    try:
        async with Worker(server, on_loop, in_thread):
            name = "on_loop" if kind == "loop" else "in_thread"
            one, two = server.deliver(name), server.deliver(name)
            await server.end(one)
            await server.end(two)
            log.info("from elsewhere")
    finally:
        for handler in logging.getLogger().handlers:
            handler.removeFilter(ours)
    said = [r for r in lines() if r.name == "tests.handlers"]
    assert {r.job_id for r in said} == {one.id, two.id}
    assert len(said) == (4 if kind == "loop" else 2)
    assert said[0].attempt == 1


async def test_what_a_handler_left_running_does_not_speak_for_it(
    server: FakeServer, lines: Any
) -> None:
    gate, seen = asyncio.Event(), []
    left: list[asyncio.Task[None]] = []

    async def later() -> None:
        await gate.wait()
        record = logging.makeLogRecord({})
        JobFields().filter(record)
        seen.append(hasattr(record, "job_id"))

    async def leave() -> None:
        left.append(asyncio.create_task(later()))

    async with Worker(server, leave):
        await server.end(server.deliver("leave"))
        gate.set()
        await left[0]
    assert seen == [False]


async def test_a_task_that_blocks_the_loop_is_named(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    said = threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has blocked the event loop" in record.getMessage():
                said.set()

    async def stubborn() -> None:
        assert said.wait(30), "nobody noticed"

    logger = logging.getLogger("jobqueue.worker")
    heard = Heard()
    logger.addHandler(heard)
    try:
        async with Worker(server, stubborn):
            job = server.deliver("stubborn")
            await server.end(job, 40)
            said.clear()
    finally:
        logger.removeHandler(heard)
    (line,) = [r for r in caplog.records if "has blocked the event loop" in r.getMessage()]
    assert line.levelno == logging.WARNING
    assert line.job_id == job.id  # type: ignore[attr-defined]
    assert "task stubborn has blocked the event loop" in line.getMessage()
    assert "test_attempt_log.py:" in line.getMessage()
    assert "said.wait(30)" in line.getMessage()


async def test_tasks_that_await_are_not_called_blocking(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def polite() -> None:
        for _ in range(200):
            await asyncio.sleep(0.01)

    async with Worker(server, polite):
        await server.end(server.deliver("polite"), 40)
    assert not [r for r in caplog.records if "has blocked the event loop" in r.getMessage()]


async def test_a_logging_handler_that_raises_costs_no_job_and_no_slot(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise OSError("the disk is full")

    def fail() -> None:
        raise ValueError("no")

    log = logging.getLogger("jobqueue.worker")
    monkeypatch.setattr(log, "handlers", [Broken(logging.WARNING)])
    async with Worker(server, boom, fail, concurrency=1):
        for name in ("boom", "fail", "boom"):
            await server.end(server.deliver(name))
    assert [report.move for report in server.reports if report.move is Move.FAIL] == [Move.FAIL] * 3
    assert "the disk is full" in capsys.readouterr().err


async def test_attempts_are_counted_by_queue_and_end(server: FakeServer) -> None:
    async def end(well: bool) -> None:
        if not well:
            raise ValueError

    figures = Figures()
    async with Worker(server, end, observer=figures, concurrency=4) as worker:
        jobs = [
            server.deliver("end", b'{"well": true}', queue="a"),
            server.deliver("end", b'{"well": true}', queue="b"),
            server.deliver("end", b'{"well": false}', queue="b"),
        ]
        for job in jobs:
            await server.end(job)
        await asyncio.sleep(0)
        assert worker.unended == 0
        server.refuse = lambda report: True
        await server.end(server.deliver("end", b'{"well": true}', queue="a"))
    assert figures.counts == {
        ("a", State.ASSIGNED): 2,
        ("b", State.ASSIGNED): 2,
        ("a", State.DONE): 1,  # the other one was not accepted
        ("b", State.DONE): 1,
        ("b", State.FAILED): 1,
    }
    assert figures.times == {"a": 1, "b": 2}
