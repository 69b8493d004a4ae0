"""Code declares its schedules. If the server is too old, workers submit the ticks themselves.

Each tick is one job, for any number of workers, and after any step of the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import (
    Conflict,
    InvalidArgument,
    JobQueueError,
    NotFound,
    Unavailable,
    UnknownCall,
)
from jobqueue.core.job import Job, JobQuery, JobSpec, SubmitResult, SubmitStatus
from jobqueue.core.schedule import ON_TIME, ScheduleSpec
from jobqueue.core.store import Store
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.stores.memory import MemoryStore
from jobqueue.stores.sqlite.store import SqliteStore
from jobqueue.worker.periodic import CodeSchedules, Periodic, Track
from tests import patience

HOUR = 3600.0
START = datetime(2026, 11, 15, 10, 7, 30, tzinfo=UTC).timestamp()


def at(text: str) -> float:
    return datetime.fromisoformat(f"2026-11-15T{text}+00:00").timestamp()


def schedule(cron: str = "* * * * *", name: str = "report", queue: str = "default") -> ScheduleSpec:
    return ScheduleSpec(name=name, cron=cron, job=JobSpec(payload=b"{}", type="make", queue=queue))


# -- one schedule as time passes ---------------------------------------------------------------


def test_a_tick_is_owed_once() -> None:
    track = Track(schedule(), START, catch_up=0)
    assert track.look(START) is None
    assert track.next == at("10:08")
    assert track.look(at("10:08:00.01")) == at("10:08")
    assert track.look(at("10:08:01")) == at("10:08")  # until somebody says that it is done
    track.settled()
    assert track.look(at("10:08:02")) is None
    assert track.next == at("10:09")


def test_at_the_start_the_newest_tick_within_the_bound_is_owed() -> None:
    assert Track(schedule(), START, HOUR).look(START) == at("10:07")
    assert Track(schedule("0 10 * * *"), START, HOUR).look(START) == at("10:00")
    assert Track(schedule("0 9 * * *"), START, HOUR).look(START) is None
    assert Track(schedule(), START, 0).look(START) is None


def test_a_process_that_slept_owes_the_newest_only(caplog: pytest.LogCaptureFixture) -> None:
    track = Track(schedule(), START, HOUR)
    track.settled()
    assert track.look(at("13:30:10")) == at("13:30")
    assert "'report': the jobs for the ticks from 2026-11-15T10:08:00Z to before" in caplog.text
    assert "only the newest tick, 2026-11-15T13:30:00Z, is submitted" in caplog.text


def test_what_is_too_old_is_skipped_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    track = Track(schedule("0 * * * *"), START, catch_up=600)
    assert track.look(at("12:10:01")) is None
    assert "the jobs for the ticks from 2026-11-15T12:00:00Z" in caplog.text
    assert "they are more than 600 s late" in caplog.text
    assert track.next == at("13:00")
    assert track.look(at("13:10")) == at("13:00")


def test_without_catching_up_a_tick_may_be_late_by_a_moment_only() -> None:
    track = Track(schedule("0 * * * *"), START, catch_up=0)
    assert track.look(at("11:00") + ON_TIME) == at("11:00")
    assert track.look(at("11:00") + ON_TIME + 1) is None


def test_a_newer_tick_replaces_one_that_could_not_be_submitted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    track = Track(schedule(), START, HOUR)
    assert track.look(START) == at("10:07")
    waits = [track.failed() for _ in range(6)]
    assert waits == [1, 2, 4, 8, 10, 10]
    assert track.look(at("10:08")) == at("10:08")
    assert "the jobs for the ticks from 2026-11-15T10:07:00Z" in caplog.text
    assert track.failed() == 1


def test_ten_years_of_sleep_cost_no_more_than_a_minute() -> None:
    """Bounded: the search reads the schedule a few times, not once for each of 5 million ticks."""
    track = Track(schedule(), START, HOUR)
    track.settled()
    late = START + 10 * 365 * 86_400
    assert track.look(late) == late // 60 * 60


def test_a_clock_set_back_ticks_again_under_the_same_keys() -> None:
    track = Track(schedule("0 * * * *"), at("11:59:59"), 0)
    assert track.look(at("12:00")) == at("12:00")
    track.settled()
    assert track.look(at("10:30")) is None
    assert track.next == at("11:00")
    assert track.look(at("11:00")) == at("11:00")


def test_a_clock_set_back_before_a_tick_that_failed_owes_it_later() -> None:
    track = Track(schedule("0 * * * *"), at("11:59:59"), 60)
    assert track.look(at("12:00")) == at("12:00")
    track.failed()
    assert track.look(at("11:59")) is None
    assert track.look(at("12:00")) == at("12:00")


def test_a_clock_that_was_wrong_for_a_while_costs_no_tick() -> None:
    track = Track(schedule(), START, catch_up=0)
    assert track.look(at("17:30:20")) is None  # set forward: all of these are skipped
    assert track.look(at("10:09:03")) == at("10:09")  # set right, just after a tick


def test_the_job_of_a_tick() -> None:
    spec = schedule().tick(at("10:08"))
    assert spec.key == "cron:report:2026-11-15T10:08:00Z"
    assert spec.labels == {"cron": "report"}
    assert (spec.type, spec.queue, spec.payload) == ("make", "default", b"{}")


# -- the ticker, with a backend that is told what to answer ------------------------------------


class Desk:
    """Notes what is submitted; answers with the next error that it was given."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.tried: asyncio.Queue[str] = asyncio.Queue()
        self.taken: asyncio.Queue[str] = asyncio.Queue()

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        (spec,) = specs
        assert spec.key is not None
        self.tried.put_nowait(spec.key)
        if self.errors:
            error = self.errors.pop(0)
            if isinstance(error, NotFound | InvalidArgument):
                return [SubmitResult.refused(error)]
            raise error
        self.taken.put_nowait(spec.key)
        return [SubmitResult.accepted("id")]


async def soon(queue: asyncio.Queue[str]) -> str:
    return await patience.wait_for(queue.get(), 10)


def quick(backend: object, clock: ManualClock, *schedules: ScheduleSpec, **more: float) -> Periodic:
    return Periodic(backend, schedules, clock=clock, longest_wait=0.002, **more)  # type: ignore[arg-type]


async def test_it_follows_the_clock_it_is_given() -> None:
    clock, desk = ManualClock(START), Desk()
    ticker = quick(desk, clock, schedule())
    ticker.start()
    try:
        assert await soon(desk.taken) == "cron:report:2026-11-15T10:07:00Z"
        clock.advance(30)
        assert await soon(desk.taken) == "cron:report:2026-11-15T10:08:00Z"
        clock.advance(3 * HOUR)  # stopped, or set forward
        assert await soon(desk.taken) == "cron:report:2026-11-15T13:08:00Z"
        clock.advance(-3 * HOUR)
        clock.advance(60)
        assert await soon(desk.taken) == "cron:report:2026-11-15T10:09:00Z"
    finally:
        await ticker.stop()
    assert desk.tried.qsize() == 4


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("the disk is gone"),
        NotFound("queue: there is no queue 'default'"),
        RuntimeError("a defect"),
    ],
)
async def test_a_failed_submit_is_tried_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    clock, desk = ManualClock(START), Desk(error, error)
    ticker = quick(desk, clock, schedule())
    ticker.start()
    try:
        assert await soon(desk.taken) == "cron:report:2026-11-15T10:07:00Z"
    finally:
        await ticker.stop()
    assert desk.tried.qsize() == 3
    assert str(error) in caplog.text


async def test_it_gives_up_when_the_tick_is_too_old() -> None:
    clock, desk = ManualClock(at("10:00")), Desk(*[Unavailable("down")] * 1_000_000)
    ticker = quick(desk, clock, schedule("@hourly"), catch_up=600.0)
    ticker.start()
    try:
        await soon(desk.tried)
        await soon(desk.tried)
        clock.advance(601)
        desk.errors.clear()
        clock.advance(HOUR - 601)
        assert await soon(desk.taken) == "cron:report:2026-11-15T11:00:00Z"
    finally:
        await ticker.stop()


async def test_what_can_never_be_accepted_is_not_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, desk = ManualClock(START), Desk(InvalidArgument("payload", "too large"))
    ticker = quick(desk, clock, schedule())
    ticker.start()
    try:
        await soon(desk.tried)
        clock.advance(60)
        assert await soon(desk.taken) == "cron:report:2026-11-15T10:08:00Z"
    finally:
        await ticker.stop()
    assert "too large" in caplog.text


async def test_one_schedule_that_hangs_delays_no_other_and_no_stop() -> None:
    class Hanging(Desk):
        async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
            if specs[0].labels["cron"] == "stuck":
                self.tried.put_nowait("stuck")
                await asyncio.Event().wait()
            return await super().submit(specs)

    clock, desk = ManualClock(START), Hanging()
    ticker = quick(desk, clock, schedule(name="stuck"), schedule())
    ticker.start()
    assert await soon(desk.taken) == "cron:report:2026-11-15T10:07:00Z"
    clock.advance(60)
    assert await soon(desk.taken) == "cron:report:2026-11-15T10:08:00Z"
    async with patience.timeout(8):
        await ticker.stop()
        await ticker.stop()


async def test_a_clock_beyond_the_calendar_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock, desk = ManualClock(START), Desk()
    ticker = quick(desk, clock, schedule())
    ticker.start()
    try:
        await soon(desk.taken)
        clock.advance(1e15)
        while "cannot compute which job is due" not in caplog.text:
            await asyncio.sleep(0.001)
        clock.advance(60 - 1e15)
        assert await soon(desk.taken) == "cron:report:2026-11-15T10:08:00Z"
    finally:
        await ticker.stop()


async def test_a_stop_wakes_a_ticker_that_waits() -> None:
    ticker = Periodic(Desk(), [schedule("@yearly")], clock=ManualClock(START))
    ticker.start()
    await asyncio.sleep(0)
    async with patience.timeout(1):  # it would look again in ten seconds
        await ticker.stop()


# -- with real stores --------------------------------------------------------------------------


class Watched(Engine):
    """An engine that tells what its tickers were answered."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, EngineSettings())
        self.answers: asyncio.Queue[SubmitResult] = asyncio.Queue()

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        results = await super().submit(specs)
        for result in results:
            self.answers.put_nowait(result)
        return results

    async def ticks(self) -> list[Job]:
        page = await self.list_jobs(JobQuery(limit=1000))
        return sorted(page.jobs, key=lambda job: job.key or "")


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def engines(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Watched, Watched]]:
    """Two processes' engines: on one file, or in memory one engine for both."""
    if request.param == "memory":
        first = second = Watched(MemoryStore())
    else:
        first, second = (Watched(SqliteStore(tmp_path / "jobs.db")) for _ in range(2))
    for engine in {first, second}:
        await engine.start()
    try:
        yield first, second
    finally:
        for engine in {first, second}:
            await engine.stop()


@pytest.mark.req("inp:PROD")
async def test_two_processes_make_one_job_of_each_tick(engines: tuple[Watched, Watched]) -> None:
    clock = ManualClock(START)
    tickers = [
        quick(engine, clock, schedule(), schedule("@hourly", "hourly")) for engine in engines
    ]
    for ticker in tickers:
        ticker.start()
    statuses = []
    try:
        for step in range(5):
            if step:
                clock.advance(60)
            for engine in engines:
                for _ in range(2 if step == 0 else 1):  # hourly, from 10:00, in the first round
                    answer = await patience.wait_for(engine.answers.get(), 10)
                    statuses.append(answer.status)
    finally:
        for ticker in tickers:
            await ticker.stop()
    jobs = await engines[0].ticks()
    assert [job.key for job in jobs] == [
        "cron:hourly:2026-11-15T10:00:00Z",
        *[f"cron:report:2026-11-15T10:{minute:02}:00Z" for minute in range(7, 12)],
    ]
    assert {tuple(job.labels.items()) for job in jobs} == {
        (("cron", "hourly"),),
        (("cron", "report"),),
    }
    assert statuses.count(SubmitStatus.ACCEPTED) == statuses.count(SubmitStatus.DUPLICATE) == 6


async def test_a_restart_submits_no_tick_twice(engines: tuple[Watched, Watched]) -> None:
    clock = ManualClock(START)
    for engine in engines:
        ticker = quick(engine, clock, schedule())
        ticker.start()
        await patience.wait_for(engine.answers.get(), 10)
        await ticker.stop()
        clock.advance(5)
    assert len(await engines[0].ticks()) == 1


async def test_a_duplicate_is_silent(
    engines: tuple[Watched, Watched], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = engines
    await first.submit([schedule().tick(at("10:07"))])
    await first.answers.get()
    # Another version of the app, with other arguments: the tick is taken nevertheless.
    other = replace(schedule(), job=JobSpec(payload=b'{"a":1}', type="make"))
    ticker = quick(second, ManualClock(START), schedule(), other)
    with caplog.at_level(logging.INFO, logger="jobqueue.periodic"):
        ticker.start()
        for _ in range(2):
            await patience.wait_for(second.answers.get(), 10)
        await ticker.stop()
    assert len(await first.ticks()) == 1
    said = [r for r in caplog.records if r.name == "jobqueue.periodic"]
    assert [r.levelname for r in said if "the next job is" not in r.message] == ["INFO"]
    assert "another version of the app has already submitted" in caplog.text


async def test_a_store_that_was_away_gets_the_tick_when_it_is_back(
    engines: tuple[Watched, Watched],
) -> None:
    engine, _ = engines
    real, tried = engine.submit, asyncio.Event()
    down = True

    class Flaky:
        async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
            if down:
                tried.set()
                raise Unavailable("away")
            return await real(specs)

    clock = ManualClock(START)
    ticker = quick(Flaky(), clock, schedule("@hourly"))
    ticker.start()
    try:
        await patience.wait_for(tried.wait(), 10)
        clock.advance(20 * 60)
        down = False
        assert (await patience.wait_for(engine.answers.get(), 10)).status is SubmitStatus.ACCEPTED
    finally:
        await ticker.stop()
    assert [job.key for job in await engine.ticks()] == ["cron:report:2026-11-15T10:00:00Z"]


# -- the schedules of the code, declared -------------------------------------------------------


class Declaring(Desk):
    """Answers declarations with the next errors that it was given."""

    def __init__(self, *errors: JobQueueError) -> None:
        super().__init__()
        self.refusals = list(errors)
        self.answers: list[JobQueueError | None] = []
        self.declared: asyncio.Queue[list[ScheduleSpec]] = asyncio.Queue()

    async def declare_schedules(self, specs: Sequence[ScheduleSpec]) -> list[JobQueueError | None]:
        if self.refusals:
            raise self.refusals.pop(0)
        self.declared.put_nowait(list(specs))
        return self.answers or [None] * len(specs)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobqueue.worker.periodic._LONGEST_PAUSE", 0.002)
    monkeypatch.setattr("jobqueue.worker.periodic._FIRST_PAUSE", 0.001)


async def test_schedules_are_declared_once_with_the_apps_limit(at_once: None) -> None:
    desk = Declaring()
    own = replace(schedule(name="own"), catch_up=5.0)
    code = CodeSchedules(desk, [schedule(), own], catch_up=60.0)
    code.start()
    declared = await patience.wait_for(desk.declared.get(), 10)
    assert declared == [replace(schedule(), catch_up=60.0), own]
    await code.stop()
    await code.stop()
    assert desk.tried.empty()


async def test_without_schedules_nothing_is_asked() -> None:
    desk = Declaring()
    code = CodeSchedules(desk, [])
    code.start()
    await asyncio.sleep(0)
    await code.stop()
    assert desk.declared.empty()


async def test_a_server_that_is_away_is_asked_again(
    at_once: None, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Declaring(Unavailable("away"), Unavailable("away"))
    code = CodeSchedules(desk, [schedule()])
    code.start()
    await patience.wait_for(desk.declared.get(), 10)
    await code.stop()
    assert caplog.text.count("cannot declare the schedules of the code: away") == 1


async def test_a_schedule_that_is_refused_is_logged(
    at_once: None, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Declaring()
    desk.answers = [Conflict("an operator has it"), None]
    code = CodeSchedules(desk, [schedule(), schedule(name="other")])
    with caplog.at_level(logging.INFO):
        code.start()
        await patience.wait_for(desk.declared.get(), 10)
        while "declared the schedules of the code: report, other" not in caplog.text:
            await asyncio.sleep(0.001)
    await code.stop()
    assert "schedule 'report' is not declared: an operator has it" in caplog.text


async def test_for_an_older_server_the_process_ticks_until_a_newer_one_answers(
    at_once: None,
) -> None:
    desk = Declaring(*[UnknownCall("old")] * 1_000_000)
    code = CodeSchedules(desk, [schedule()], catch_up=HOUR)
    code.start()
    try:
        key = await soon(desk.taken)
        assert key.startswith("cron:report:")
        desk.refusals.clear()
        await patience.wait_for(desk.declared.get(), 10)
        while code._periodic is not None:
            await asyncio.sleep(0.001)
    finally:
        await code.stop()
