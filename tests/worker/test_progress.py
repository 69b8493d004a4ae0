"""``ctx.progress()``: from any kind of handler into the next heartbeat, which comes soon."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from functools import partial

import pytest

from jobqueue.core.errors import Unavailable
from jobqueue.core.job import Pulse
from jobqueue.core.lifecycle import Move
from jobqueue.core.progress import Progress
from jobqueue.tasks.context import Context
from jobqueue.worker import side_threads
from jobqueue.worker.child import Throttle
from jobqueue.worker.side_threads import UnsentProgress
from tests import patience
from tests.worker import handlers
from tests.worker.fakes import FakeServer, Worker, registry

Running = partial(Worker, stop_within=0.2)  # its jobs have no end


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two heartbeats that tell of progress."""
    monkeypatch.setattr(side_threads, "_PAUSE", 0.1)


async def told(server: FakeServer, lease: int, expected: Progress) -> int:
    """Wait until a heartbeat has told it; returns the number of that heartbeat."""
    limit = patience.Limit(20)
    while True:
        for n, progress in enumerate(server.progress):
            if progress.get(lease) == expected:
                return n
        assert not limit.over, f"not told: {expected}; {server.progress}"
        await asyncio.sleep(0.005)


async def test_progress_brings_the_next_heartbeat_forward(server: FakeServer) -> None:
    go_on = asyncio.Event()

    async def count(ctx: Context) -> None:
        ctx.progress(0.25, "1 of 4")
        await go_on.wait()
        ctx.progress(text="nearly there")
        await asyncio.sleep(60)

    async with Running(server, count, heartbeat_interval=3_600.0):
        job = server.deliver("count")
        first = await told(server, job.lease, Progress(0.25, "1 of 4"))
        # What is missing in it proves nothing: a job may be under way to the worker.
        assert server.complete[first] is False
        assert server.pulses[first] == [job.lease]
        go_on.set()
        await told(server, job.lease, Progress(None, "nearly there"))


async def test_a_thread_reports_progress(server: FakeServer) -> None:
    release = threading.Event()

    def count(ctx: Context) -> None:
        ctx.progress(0.5, "in a thread")
        release.wait(patience.longest(20))

    async with Running(server, count):
        job = server.deliver("count")
        await told(server, job.lease, Progress(0.5, "in a thread"))
        release.set()
        await server.end(job)


async def test_a_process_reports_progress_and_its_last_word_is_not_lost(
    server: FakeServer,
) -> None:
    tasks = registry(
        handlers.count_and_wait, handlers.report_in_a_loop_of_its_own, executor="process"
    )
    async with Running(server, tasks=tasks) as worker:
        job = server.deliver("count_and_wait")
        await told(server, job.lease, Progress(1.0, "step 20000"))
        worker.cancel([job.lease])
        await server.end(job)
        # The same process, the next job: nothing of the last one is left.
        other = server.deliver("report_in_a_loop_of_its_own")
        await told(server, other.lease, Progress(None, "no loop of the worker's"))
        said = [progress[other.lease] for progress in server.progress if other.lease in progress]
        assert len(said) == 1
        worker.cancel([other.lease])
        await server.end(other)


async def test_nonsense_fails_the_attempt_and_says_what_is_allowed(server: FakeServer) -> None:
    async def shout(ctx: Context) -> None:
        ctx.progress(float("nan"))

    tasks = registry(handlers.report_nonsense, executor="process")
    tasks.add(registry(shout).get("shout"))  # type: ignore[arg-type]
    async with Running(server, tasks=tasks):
        for name, got in (("shout", "nan"), ("report_nonsense", "40")):
            report = await server.end(server.deliver(name))
            assert report.move is Move.FAIL
            assert report.error == (
                f"InvalidArgument: progress.value: must be 0 to 1 (0.25 is 25 %), got {got}"
            )
            assert report.retryable is False


async def test_the_same_word_twice_is_no_news(server: FakeServer) -> None:
    async def repeat(ctx: Context) -> None:
        while True:
            ctx.progress(0.5, "still here")
            await asyncio.sleep(0)

    async with Running(server, repeat, heartbeat_interval=0.01):
        job = server.deliver("repeat")
        first = await told(server, job.lease, Progress(0.5, "still here"))
        for _ in range(3):
            await server.next_beat()
        assert not any(server.progress[first + 1 :])


async def test_however_much_there_is_to_tell_heartbeats_keep_their_pause(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_threads, "_PAUSE", 0.05)

    async def hurry(ctx: Context) -> None:
        n = 0
        while True:
            n += 1
            ctx.progress(text=f"step {n}")
            await asyncio.sleep(0)

    async with Running(server, hurry, heartbeat_interval=3_600.0):
        job = server.deliver("hurry")
        began = time.monotonic()
        while not server.progress:
            await asyncio.sleep(0.001)
        for _ in range(5):
            await server.next_beat()
        # A slow machine makes fewer of them, never more.
        assert len(server.pulses) <= (time.monotonic() - began) / 0.05 + 1
        steps = [progress[job.lease].text for progress in server.progress]
        assert len(set(steps)) == len(steps)


async def test_complete_heartbeats_keep_their_interval_beside_early_ones(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_threads, "_PAUSE", 0.01)

    async def hurry(ctx: Context) -> None:
        n = 0
        while True:
            n += 1
            ctx.progress(text=f"step {n}")
            await asyncio.sleep(0)

    async with Running(server, hurry, heartbeat_interval=0.2):
        server.deliver("hurry")
        limit = patience.Limit(20)
        while server.complete.count(True) < 3 or server.complete.count(False) < 3:
            assert not limit.over, server.complete
            await asyncio.sleep(0.005)


async def test_what_a_failed_heartbeat_had_to_tell_is_told_by_the_next(
    server: FakeServer,
) -> None:
    failing = True

    def answer(leases: object) -> Pulse:
        if failing:
            raise Unavailable("no route")
        return Pulse(True)

    server.answer = answer
    go_on = asyncio.Event()

    async def count(ctx: Context) -> None:
        ctx.progress(0.25)
        await go_on.wait()
        ctx.progress(0.5)
        await asyncio.sleep(60)

    async with Running(server, count, heartbeat_interval=0.02):
        job = server.deliver("count")
        before = await told(server, job.lease, Progress(0.25))
        await server.next_beat()
        assert server.progress[before + 1] == {job.lease: Progress(0.25)}
        go_on.set()
        last = await told(server, job.lease, Progress(0.5))
        failing = False
        await server.next_beat()
        beats = len(server.progress)
        await server.next_beat()
        assert not server.progress[beats]  # it was answered
        assert Progress(0.25) not in [p.get(job.lease) for p in server.progress[last:]]


async def test_what_a_server_did_not_take_is_told_again_after_registering(
    server: FakeServer,
) -> None:
    # The worker is unknown until it has told the progress once, however late its handler begins.
    server.answer = lambda leases: Pulse(known=sum(map(bool, server.progress)) > 1)

    async def count(ctx: Context) -> None:
        ctx.progress(0.25)
        await asyncio.sleep(60)

    async with Running(server, count, heartbeat_interval=0.02):
        job = server.deliver("count")
        first = await told(server, job.lease, Progress(0.25))
        limit = patience.Limit(20)
        while not any(server.progress[first + 1 :]):
            assert not limit.over, server.progress
            await asyncio.sleep(0.005)
        assert server.connects > 1
        last = len(server.progress)
        await server.next_beat()
        await server.next_beat()
        assert not server.progress[last + 1]  # it was taken


async def test_a_server_that_is_slow_to_answer_is_asked_less_often(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_threads, "_PAUSE", 0.001)
    asked: list[tuple[float, float]] = []

    def answer(leases: object) -> Pulse:
        began = time.monotonic()
        time.sleep(0.02)  # in the heartbeat's thread
        asked.append((began, time.monotonic()))
        return Pulse(True)

    server.answer = answer

    async def hurry(ctx: Context) -> None:
        n = 0
        while True:
            n += 1
            ctx.progress(text=f"step {n}")
            await asyncio.sleep(0)

    async with Running(server, hurry, heartbeat_interval=3_600.0):
        server.deliver("hurry")
        limit = patience.Limit(20)
        while len(asked) < 4:
            assert not limit.over
            await asyncio.sleep(0.005)
    for (began, ended), (following, _) in itertools.pairwise(asked):
        assert following - ended >= 9 * (ended - began)


async def test_nothing_is_told_of_an_attempt_that_is_over(server: FakeServer) -> None:
    release = threading.Event()

    def overrun(ctx: Context) -> None:
        release.wait(patience.longest(20))
        ctx.progress(0.9, "nobody asked")

    async with Running(server, overrun, heartbeat_interval=0.01):
        job = server.deliver("overrun", timeout=0.01)
        assert (await server.end(job)).move is Move.TIME_OUT
        release.set()
        await server.until(lambda: server.free == 4)
        for _ in range(3):
            assert await server.next_beat() == []
        assert not any(server.progress)


def test_words_of_other_attempts_are_dropped() -> None:
    news = UnsentProgress()
    news.add(1, Progress(0.1))
    news.add(2, Progress(0.2))
    assert news.take({2}) == {2: Progress(0.2)}
    assert news.take({1, 2}) == {}


def test_a_later_word_is_not_overwritten_by_one_that_comes_back() -> None:
    news = UnsentProgress()
    news.add(1, Progress(0.1))
    news.add(2, Progress(0.2))
    taken = news.take({1, 2})
    news.add(1, Progress(0.5))
    news.give_back(taken)
    assert news.take({1, 2}) == {1: Progress(0.5), 2: Progress(0.2)}


def test_a_throttle_passes_on_the_first_and_the_last_word() -> None:
    passed: list[Progress] = []
    done = threading.Event()

    def pass_on(progress: Progress) -> None:
        passed.append(progress)
        if progress.value == 1:
            done.set()

    throttle = Throttle(0.05, pass_on)
    for n in range(1, 1_001):
        throttle(Progress(n / 1_000))
    assert done.wait(patience.longest(10))
    assert passed[0] == Progress(0.001)
    assert passed[-1] == Progress(1.0)
    assert passed == sorted(passed, key=lambda one: one.value or 0)
    assert len(passed) < 1_000


def test_a_context_of_a_users_own_test_keeps_the_last_word() -> None:
    ctx = Context()
    ctx.progress(0.5, "half")
    assert ctx.latest_progress == Progress(0.5, "half")
