"""Jobs that run on the loop and in threads: ends, timeouts, cancels, slots."""

import asyncio
import contextvars
import threading
import time

import pytest

from jobqueue.core.lifecycle import Move
from jobqueue.tasks.context import Abort, Context, RetryLater
from tests import patience
from tests.worker.fakes import FakeServer, Worker


async def test_builtin_tasks(server: FakeServer) -> None:
    async with Worker(server):
        assert (await server.end(server.deliver("", b'{"any": 1}'))).result == b'{"any": 1}'
        assert (await server.end(server.deliver("echo", b"\xff"))).result == b"\xff"
        slept = await server.end(server.deliver("sleep", b'{"seconds": 0.01}'))
        assert slept.result == b'{"slept":0.01}'
        assert slept.ran_for is not None
        assert slept.ran_for >= 0.01
        failing = b'{"message": "no", "times": 1}'
        first = await server.end(server.deliver("fail", failing))
        assert first.error.startswith("RuntimeError: no")
        second = await server.end(server.deliver("fail", failing, attempt=2))
        assert second.move is Move.SUCCEED
        work = b'{"work_duration_ms": 5, "payload_size_bytes": 100}'
        simulated = await server.end(server.deliver("simulate", work))
        assert simulated.result is not None
        assert b'"' + b"x" * 100 + b'"' in simulated.result
        wrong = await server.end(server.deliver("sleep", b'{"seconds": -1}'))
        assert wrong.error == "InvalidArgument: seconds: must not be negative, got -1.0"


@pytest.mark.req("jq:FR-029")
async def test_a_handler_gets_its_arguments_and_context(server: FakeServer) -> None:
    async def on_loop(a: int, ctx: Context) -> dict[str, object]:
        return {"a": a, "id": ctx.job_id, "attempt": ctx.attempt, "left": ctx.remaining()}

    def in_thread(a: int, ctx: Context) -> str:
        assert ctx.labels == {"team": "x"}
        assert ctx.deadline is not None
        return f"{a} {ctx.queue} {ctx.payload.decode()} {threading.current_thread().name}"

    async with Worker(server, on_loop, in_thread):
        one = await server.end(server.deliver("on_loop", b'{"a": 1}', attempt=3))
        assert one.result == b'{"a":1,"id":"job-1","attempt":3,"left":null}'
        two = server.deliver("in_thread", b'{"a": 2}', labels={"team": "x"}, timeout=9.0)
        assert (await server.end(two)).result == b'"2 default {\\"a\\": 2} worker-thread-1"'


async def test_errors_are_told_with_their_kind_message_and_place(server: FakeServer) -> None:
    async def on_loop() -> None:
        raise KeyError("on the loop")

    def in_thread() -> None:
        raise ValueError("x" * 100_000)

    def leaves() -> None:
        raise SystemExit(3)

    async def busy() -> None:
        raise RetryLater(7.5, "busy")

    def hopeless() -> None:
        raise Abort("hopeless")

    async with Worker(server, on_loop, in_thread, leaves, busy, hopeless):
        report = await server.end(server.deliver("on_loop"))
        assert (report.move, report.retryable, report.retry_after) == (Move.FAIL, True, None)
        assert report.error.startswith("KeyError: 'on the loop'\n")
        assert 'raise KeyError("on the loop")' in report.error
        assert "jobqueue/worker" not in report.error
        report = await server.end(server.deliver("in_thread"))
        assert report.error.startswith("ValueError: xxx")
        assert "raise ValueError" in report.error
        assert len(report.error.encode()) <= 8192
        assert (await server.end(server.deliver("leaves"))).error.startswith("SystemExit: 3")
        report = await server.end(server.deliver("busy"))
        assert (report.retryable, report.retry_after, report.error) == (
            True,
            7.5,
            "RetryLater: busy",
        )
        report = await server.end(server.deliver("hopeless"))
        assert (report.retryable, report.error) == (False, "Abort: hopeless")


async def test_bad_payloads_results_and_types_are_failures(server: FakeServer) -> None:
    async def take(a: int) -> str:
        return "x" * a

    def odd() -> object:
        return object()

    async with Worker(server, take, odd, max_result_bytes=100):
        report = await server.end(server.deliver("take", b'{"a": "1"}'))
        assert report.error == "InvalidArgument: a: expected `int`, got `str`"
        assert not report.retryable
        report = await server.end(server.deliver("take", b'{"a": 99}'))
        assert report.error == "result: 101 bytes, more than the 100 allowed"
        assert not report.retryable
        assert (await server.end(server.deliver("take", b'{"a": 98}'))).move is Move.SUCCEED
        report = await server.end(server.deliver("odd"))
        assert "result: a value of type `object` cannot be written" in report.error
        report = await server.end(server.deliver("nobody"))
        assert report.retryable
        assert report.error == (
            "UnknownTask: this worker has no task named 'nobody'; it has echo, fail, odd, simulate,"
            " sleep, take. A newer server sends only jobs for tasks that this worker has: "
            "update the server"
        )
        assert server.free == 4


async def test_each_coroutine_has_its_own_context_variables(server: FakeServer) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    async def bump() -> int:
        variable.set(variable.get() + 1)
        return variable.get()

    async with Worker(server, bump):
        assert (await server.end(server.deliver("bump"))).result == b"1"
        assert (await server.end(server.deliver("bump"))).result == b"1"


# -- timeouts ----------------------------------------------------------------------------------


async def test_a_coroutine_is_cancelled_at_its_timeout(server: FakeServer) -> None:
    async def hang() -> None:
        await asyncio.sleep(60)

    async with Worker(server, hang, concurrency=1) as worker:
        job = server.deliver("hang", timeout=0.05)
        report = await server.end(job)
        assert (report.move, report.error) == (Move.TIME_OUT, "timed out after 0.05 s")
        await server.until(lambda: server.free == 1)
        assert worker.running == 0


async def test_a_coroutine_that_ignores_its_timeout_keeps_its_slot(server: FakeServer) -> None:
    release = asyncio.Event()

    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    async with Worker(server, stubborn, concurrency=1) as worker:
        job = server.deliver("stubborn", timeout=0.05)
        assert (await server.end(job)).move is Move.TIME_OUT
        assert (server.free, worker.running) == (0, 1)
        release.set()
        await server.until(lambda: server.free == 1)
        assert len(server.ends()) == 1


@pytest.mark.req("jq:FR-021")
async def test_a_timed_out_thread_keeps_its_slot_until_it_ends(server: FakeServer) -> None:
    release = threading.Event()

    def hang(ctx: Context) -> bool:
        release.wait(patience.longest(20))
        return ctx.cancelled

    async with Worker(server, hang, concurrency=1) as worker:
        job = server.deliver("hang", timeout=0.05)
        assert (await server.end(job)).move is Move.TIME_OUT
        assert (server.free, worker.running) == (0, 1)
        release.set()
        await server.until(lambda: server.free == 1)
        assert len(server.ends()) == 1


async def test_a_task_has_a_timeout_of_its_own(server: FakeServer) -> None:
    from tests.worker.fakes import registry

    async def hang() -> None:
        await asyncio.sleep(60)

    async with Worker(server, tasks=registry(hang, timeout=0.05)):
        assert (await server.end(server.deliver("hang"))).move is Move.TIME_OUT


# -- cancels -----------------------------------------------------------------------------------


async def test_cancel_of_a_coroutine(server: FakeServer) -> None:
    async def hang() -> None:
        await asyncio.sleep(60)

    async with Worker(server, hang) as worker:
        job = server.deliver("hang")
        await server.start_of(job)
        worker.cancel([job.lease, 4711])
        assert (await server.end(job)).move is Move.ACKNOWLEDGE_CANCEL
        await server.until(lambda: server.free == 4)


async def test_cancel_of_a_thread_that_looks_at_the_flag(server: FakeServer) -> None:
    def polite(ctx: Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.002)

    def raising(ctx: Context) -> None:
        while True:
            ctx.raise_if_cancelled()
            time.sleep(0.002)

    async with Worker(server, polite, raising) as worker:
        jobs = [server.deliver("polite"), server.deliver("raising")]
        for job in jobs:
            await server.start_of(job)
        worker.cancel([job.lease for job in jobs])
        for job in jobs:
            assert (await server.end(job)).move is Move.ACKNOWLEDGE_CANCEL


async def test_a_thread_that_finishes_its_work_unaware_has_succeeded(server: FakeServer) -> None:
    release = threading.Event()

    def unaware() -> int:
        release.wait(patience.longest(20))
        return 7

    async with Worker(server, unaware) as worker:
        job = server.deliver("unaware")
        await server.start_of(job)
        worker.cancel([job.lease])
        release.set()
        report = await server.end(job)
        assert (report.move, report.result) == (Move.SUCCEED, b"7")


async def test_cancel_before_the_start(server: FakeServer) -> None:
    ran = []

    async def note() -> None:
        ran.append(1)

    async with Worker(server, note) as worker:
        job = server.deliver("note")
        worker.cancel([job.lease])  # before the loop comes round to it
        assert (await server.end(job)).move is Move.HAND_BACK
        assert not ran


# -- slots and time to live --------------------------------------------------------------------


@pytest.mark.req("jq:FR-021")
async def test_concurrency_is_never_exceeded(server: FakeServer) -> None:
    now = peak = 0
    lock = threading.Lock()

    def count(step: int) -> None:
        nonlocal now, peak
        with lock:
            now += step
            peak = max(peak, now)

    async def on_loop() -> None:
        count(1)
        await asyncio.sleep(0.001)
        count(-1)

    def in_thread() -> None:
        count(1)
        time.sleep(0.001)
        count(-1)

    async with Worker(server, on_loop, in_thread, concurrency=3):
        for turn in range(100):
            await server.until(lambda: server.free > 0)
            assert server.free <= 3
            kinds = ["on_loop", "in_thread", "in_thread"]
            server.hand_out([server.job(kinds[(turn + n) % 3]) for n in range(server.free)])
        await server.until(lambda: server.free == 3)
    assert peak == 3
    assert len(server.ends()) == server.jobs


async def test_more_than_was_offered_is_handed_back(server: FakeServer) -> None:
    release = asyncio.Event()

    async def hold() -> None:
        await release.wait()

    async with Worker(server, hold, concurrency=1) as worker:
        jobs = [server.job("hold"), server.job("hold")]
        server.free = 0
        worker.assigned(jobs)
        assert (await server.end(jobs[1])).move is Move.HAND_BACK
        assert worker.running == 1
        worker.assigned(jobs[:1])  # delivered twice
        release.set()
        assert (await server.end(jobs[0])).move is Move.SUCCEED
        await server.until(lambda: server.free == 1)


@pytest.mark.req("jq:FR-004")
async def test_an_expired_job_is_not_started(server: FakeServer) -> None:
    ran = []

    async def on_loop() -> None:
        ran.append("loop")

    def in_thread() -> None:
        ran.append("thread")

    async with Worker(server, on_loop, in_thread):
        for type in ("on_loop", "in_thread"):
            job = server.deliver(type, expires_in=0.0)
            assert (await server.end(job)).move is Move.HAND_BACK
        assert not ran
        job = server.deliver("on_loop", expires_in=30.0)
        assert (await server.end(job)).move is Move.SUCCEED
        await server.until(lambda: server.free == 4)
