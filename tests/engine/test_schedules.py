"""The leader submits the job of each tick once, and records the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio

from jobqueue.core.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from jobqueue.core.job import Job, JobQuery, JobSpec
from jobqueue.core.observer import armed
from jobqueue.core.queue import QueueSpec
from jobqueue.core.schedule import Overlap, Schedule, ScheduleSpec, ScheduleState, pause
from jobqueue.core.store import Change
from tests import patience
from tests.engine.conftest import OpenRig
from tests.engine.pair import OpenPair
from tests.engine.rig import PATIENCE, Rig, until

START = 1_800_000_000.0  # 08:00:00 UTC


def spec(name: str = "s", **fields: Any) -> ScheduleSpec:
    job = JobSpec(payload=b"{}", type="t", **fields.pop("job", {}))
    if "cron" not in fields:
        fields.setdefault("every", 10)
    return ScheduleSpec(name=name, job=job, **fields)


async def jobs(rig: Rig) -> list[Job]:
    """The jobs of all ticks, oldest first."""
    found = (await rig.engine.list_jobs(JobQuery(limit=1_000))).jobs
    return sorted(found, key=lambda job: job.seq)


async def state(rig: Rig, name: str = "s") -> ScheduleState:
    return (await rig.engine.get_schedule(name)).state


async def comes(rig: Rig, condition: Callable[[ScheduleState], bool]) -> ScheduleState:
    """Wait until the schedule's state is as the test expects it, and return it."""
    async with patience.timeout(10 * PATIENCE):
        while not condition(found := await state(rig)):
            await asyncio.sleep(0.05)
    return found


@pytest_asyncio.fixture
async def led(open_rig: OpenRig) -> Rig:
    """A server that stays the leader when these tests move the clock."""
    rig = await open_rig(leader_ttl=100.0)
    await until(lambda: rig.engine._leads_under() is not None)
    return rig


async def test_each_tick_is_one_job_and_is_recorded(led: Rig):
    await led.engine.create_schedule(spec(job={"labels": {"a": "b"}}))
    assert await jobs(led) == []
    for n in range(1, 4):
        led.clock.advance(10)
        found = await comes(led, lambda now, n=n: now.last_at == START + 10 * n)  # type: ignore[misc]
        assert found.next_at == START + 10 * (n + 1)
    made = await jobs(led)
    assert [job.key for job in made] == [
        f"cron:s:2027-01-15T08:00:{second}Z" for second in (10, 20, 30)
    ]
    assert [dict(job.labels) for job in made] == [{"a": "b", "cron": "s"}] * 3
    assert (await state(led)).last_job_id == made[-1].id


async def test_a_new_schedule_is_not_looked_for_by_the_clock(led: Rig):
    """The creation of a schedule wakes the leader, which would otherwise sleep for seconds."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(1.0)
    led.clock.advance(9.99)
    await led.engine.create_schedule(spec())
    led.clock.advance(0.02)
    began = loop.time()
    await comes(led, lambda now: now.last_at is not None)
    assert loop.time() - began < 2.0


async def test_without_schedules_a_leader_asks_seldom_and_a_standby_never(open_rig: OpenRig):
    one = await open_rig(interval=1.0)
    await until(lambda: one.engine._leads_under() is not None)
    await asyncio.sleep(60)
    asked = [name for name in one.store.calls if name.startswith("schedules.")]
    assert set(asked) == {"schedules.due"}
    assert len(asked) <= 15
    other = await open_rig(interval=1.0)
    await other.memory.leadership.lead(4711, 3_600.0)
    await until(lambda: other.engine._leads_under() is None)
    other.store.calls.clear()
    await asyncio.sleep(60)
    assert [name for name in other.store.calls if name.startswith("schedules.")] == []


async def test_a_standby_submits_nothing(rig: Rig):
    assert await rig.memory.leadership.lead(4711, 3_600.0) is not None
    await rig.engine.create_schedule(spec())
    rig.clock.advance(100)
    await asyncio.sleep(20)
    assert await jobs(rig) == []


async def test_a_leader_that_dies_between_submit_and_record_doubles_nothing(led: Rig):
    await led.engine.create_schedule(spec())
    led.store.fail["schedules.advance"] = [Unavailable("away")] * 2
    led.clock.advance(10)
    found = await comes(led, lambda now: now.last_at == START + 10)
    (job,) = await jobs(led)
    assert found.last_job_id == job.id
    assert led.store.calls.count("schedules.advance") == 3


async def test_a_term_that_ends_between_submit_and_record_leaves_the_tick_to_the_next(led: Rig):
    await led.engine.create_schedule(spec())
    stolen = False

    async def steal() -> None:
        nonlocal stolen
        if not stolen:
            stolen = True
            led.memory.leadership._until = 0.0
            assert await led.memory.leadership.lead(4711, 5.0) is not None

    with armed("ticker.submitted", steal):
        led.clock.advance(10)
        await until(lambda: stolen)
        await asyncio.sleep(1)
        assert (await state(led)).last_at is None
        led.clock.advance(6)  # the other server is gone
        found = await comes(led, lambda now: now.last_at == START + 10)
    (job,) = await jobs(led)
    assert found.last_job_id == job.id


async def test_ticks_of_an_older_worker_are_recorded_and_not_doubled(led: Rig):
    """A worker of an earlier version submits ticks itself, here with other arguments."""
    await led.engine.create_schedule(spec())
    other = ScheduleSpec(name="s", job=JobSpec(payload=b"[]", type="t"), every=10)
    (result,) = await led.engine.submit([other.tick(START + 10)])
    led.clock.advance(10)
    found = await comes(led, lambda now: now.last_at == START + 10)
    assert [job.id for job in await jobs(led)] == [result.job_id] == [found.last_job_id]


async def test_the_store_is_away_for_a_while(led: Rig, caplog: pytest.LogCaptureFixture):
    await led.engine.create_schedule(spec())
    led.store.fail["schedules.due"] = [Unavailable("away")] * 3
    led.clock.advance(10)
    await comes(led, lambda now: now.last_at == START + 10)
    assert caplog.text.count("cannot submit the jobs of schedules: away") == 1
    assert len(await jobs(led)) == 1


async def test_many_schedules_are_submitted_together(led: Rig):
    names = [f"s{n:03}" for n in range(250)]
    for name in names:
        await led.engine.create_schedule(spec(name))
    led.store.calls.clear()
    led.clock.advance(10)
    await until_count(led, 250)
    assert {job.labels["cron"] for job in await jobs(led)} == set(names)
    assert led.store.calls.count("schedules.advance") == 3


async def until_count(rig: Rig, count: int) -> None:
    async with patience.timeout(10 * PATIENCE):
        while len(await jobs(rig)) < count:
            await asyncio.sleep(0.05)


async def test_an_hour_without_a_leader_costs_all_ticks_but_the_newest(rig: Rig):
    led = rig  # this server's term ends meanwhile
    await led.engine.create_schedule(spec(cron="* * * * *"))
    led.clock.advance(3_600)
    found = await comes(led, lambda now: now.last_at is not None)
    assert (found.last_at, found.skipped) == (START + 3_600, 59)
    led.clock.advance(1)
    await asyncio.sleep(20)
    assert len(await jobs(led)) == 1


# -- overlap -----------------------------------------------------------------------------------


async def test_skip_submits_the_next_tick_after_the_last_job_has_ended(led: Rig):
    worker = await led.worker(slots=1)
    await led.engine.create_schedule(spec(overlap=Overlap.SKIP))
    led.clock.advance(10)
    job = await worker.gets_one()
    await worker.start(job)
    led.clock.advance(10)
    found = await comes(led, lambda now: now.skipped == 1)
    assert (found.skipped_at, found.last_job_id) == (START + 20, job.id)
    assert await worker.succeed(job, freed=1)
    led.clock.advance(10)
    assert (await worker.gets_one()).id == (await jobs(led))[-1].id
    assert [one.key for one in await jobs(led)] == [
        "cron:s:2027-01-15T08:00:10Z",
        "cron:s:2027-01-15T08:00:30Z",
    ]


async def test_queue_submits_one_tick_when_the_last_job_has_ended(led: Rig):
    worker = await led.worker(slots=1)
    await led.engine.create_schedule(spec(overlap=Overlap.QUEUE))
    led.clock.advance(10)
    job = await worker.gets_one()
    led.clock.advance(10)
    await comes(led, lambda now: now.waiting_at == START + 20)
    led.clock.advance(10)
    found = await comes(led, lambda now: now.skipped == 1)
    assert (found.waiting_at, len(await jobs(led))) == (START + 20, 1)
    assert await worker.succeed(job, freed=1)
    second = await worker.gets_one()
    assert (await led.engine.get(second.id)).key == "cron:s:2027-01-15T08:00:20Z"
    assert (await comes(led, lambda now: now.waiting_at is None)).last_job_id == second.id


async def test_a_deleted_last_job_does_not_count_as_unfinished(led: Rig):
    worker = await led.worker(slots=1)
    await led.engine.create_schedule(spec(overlap=Overlap.SKIP))
    led.clock.advance(10)
    job = await worker.gets_one()
    await worker.succeed(job)
    await led.engine.delete_job(job.id)
    led.clock.advance(10)
    assert (await comes(led, lambda now: now.last_at == START + 20)).skipped == 0


# -- refused ticks -----------------------------------------------------------------------------


async def test_a_tick_that_finds_its_queue_full_is_submitted_later(
    led: Rig, caplog: pytest.LogCaptureFixture
):
    await led.engine.create_queue(QueueSpec("small", capacity=1))
    await led.submit(queue="small")
    await led.engine.create_schedule(spec(job={"queue": "small"}, cron="* * * * *"))
    led.clock.advance(60)
    found = await comes(led, lambda now: bool(now.problem))
    assert "is full" in found.problem
    assert (found.last_at, found.next_at) == (None, START + 60)
    await asyncio.sleep(20)
    assert caplog.text.count("schedule 's': cannot submit its job: ") == 1
    worker = await led.worker(slots=1, queues=("small",))
    await worker.gets_one()
    found = await comes(led, lambda now: now.last_at == START + 60)
    assert found.problem == ""


async def test_a_queue_that_was_deleted_is_named_until_it_is_back(led: Rig):
    await led.engine.create_queue(QueueSpec("gone"))
    await led.engine.create_schedule(spec(job={"queue": "gone"}))
    await led.engine.delete_queue("gone")
    led.clock.advance(10)
    assert "there is no queue 'gone'" in (await comes(led, lambda now: bool(now.problem))).problem
    await led.engine.create_queue(QueueSpec("gone"))
    assert (await comes(led, lambda now: now.last_at == START + 10)).problem == ""


# -- what operators do -------------------------------------------------------------------------


async def test_a_paused_schedule_submits_nothing_until_it_is_resumed(led: Rig):
    await led.engine.create_schedule(spec())
    paused = await led.engine.pause_schedule("s")
    assert (paused.state.paused, paused.state.next_at) == (True, None)
    led.clock.advance(100)
    await asyncio.sleep(20)
    assert await jobs(led) == []
    assert (await led.engine.resume_schedule("s")).state.next_at == START + 110
    led.clock.advance(10)
    await comes(led, lambda now: now.last_at == START + 110)
    assert len(await jobs(led)) == 1


async def test_a_pause_that_a_leader_did_not_hear_of_counts_at_once(led: Rig):
    """The leader reads a schedule only when its tick is due."""
    await led.engine.create_schedule(spec())
    await asyncio.sleep(1)
    found = await led.engine.get_schedule("s")
    changed = pause(found, led.clock.now())
    assert changed is not None
    assert await led.memory.schedules.change(
        changed
    )  # as another server does, without a notification
    led.clock.advance(10)
    await asyncio.sleep(20)
    assert await jobs(led) == []


async def test_a_run_by_hand_is_a_job_and_the_last_one(led: Rig):
    await led.engine.create_schedule(spec(overlap=Overlap.SKIP, job={"priority": 5}))
    await led.engine.pause_schedule("s")
    job_id = await led.engine.run_schedule("s")
    job = await led.engine.get(job_id)
    assert (job.type, job.priority, job.key, dict(job.labels)) == ("t", 5, None, {"cron": "s"})
    assert (await state(led)).last_job_id == job_id
    await led.engine.resume_schedule("s")
    led.clock.advance(10)
    assert (await comes(led, lambda now: now.skipped == 1)).last_job_id == job_id


async def test_a_removed_schedule_is_gone_and_its_jobs_stay(led: Rig):
    await led.engine.create_schedule(spec())
    led.clock.advance(10)
    await until_count(led, 1)
    await led.engine.remove_schedule("s")
    led.clock.advance(100)
    await asyncio.sleep(20)
    assert len(await jobs(led)) == 1
    for call in (
        "get_schedule",
        "pause_schedule",
        "resume_schedule",
        "run_schedule",
        "remove_schedule",
    ):
        with pytest.raises(NotFound, match="there is no schedule 's'"):
            await getattr(led.engine, call)("s")


async def test_what_is_wrong_is_refused_without_effect(led: Rig):
    await led.engine.create_schedule(spec())
    with pytest.raises(AlreadyExists, match="there is a schedule 's' already"):
        await led.engine.create_schedule(spec())
    with pytest.raises(NotFound, match="there is no queue 'nowhere'"):
        await led.engine.create_schedule(spec("other", job={"queue": "nowhere"}))
    with pytest.raises(InvalidArgument, match="priority: 10 is outside 0 to 9"):
        await led.engine.create_schedule(spec("other", job={"priority": 10}))
    with pytest.raises(InvalidArgument, match="cron: minute '61': 61 is out of range"):
        await led.engine.create_schedule(spec("other", cron="61 * * * *"))
    with pytest.raises(InvalidArgument, match="limit: 0 is outside 1 to 1000"):
        await led.engine.list_schedules(0)
    assert [one.name for one in (await led.engine.list_schedules()).schedules] == ["s"]


async def test_the_number_of_schedules_is_bounded(led: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jobqueue.engine.schedules.MAX_SCHEDULES", 2)
    await led.engine.create_schedule(spec("a"))
    await led.engine.create_schedule(spec("b"))
    with pytest.raises(Conflict, match="the most that a store may have"):
        await led.engine.create_schedule(spec("c"))
    (error,) = await led.engine.declare_schedules([spec("c")])
    assert isinstance(error, Conflict)


async def test_pages_are_bounded_by_number_and_by_bytes(led: Rig):
    wide = {"labels": {f"{n}": "x" * 255 for n in range(31)}}
    for n in range(300):
        await led.engine.create_schedule(spec(f"s{n:03}", job=wide if n < 270 else {}))
    page = await led.engine.list_schedules(7)
    assert ([one.name for one in page.schedules], page.next_page_token) == (
        [f"s{n:03}" for n in range(7)],
        "s006",
    )
    names: list[str] = []
    token, pages = "", 0
    while True:
        page = await led.engine.list_schedules(1_000, token)
        names += [one.name for one in page.schedules]
        pages, token = pages + 1, page.next_page_token
        if not token:
            break
    assert names == [f"s{n:03}" for n in range(300)]
    assert pages == 2


# -- what code declares ------------------------------------------------------------------------


async def test_code_declares_its_schedules_again_and_again(led: Rig):
    for _ in range(3):
        assert await led.engine.declare_schedules([spec("a"), spec("b")]) == [None, None]
    found = (await led.engine.list_schedules()).schedules
    assert [(one.name, one.revision, one.source.value) for one in found] == [
        ("a", 1, "code"),
        ("b", 1, "code"),
    ]


async def test_the_codes_newer_definition_wins_and_a_pause_stays(led: Rig):
    await led.engine.declare_schedules([spec("s", catch_up=0.0)])
    await led.engine.pause_schedule("s")
    assert await led.engine.declare_schedules([spec("s", every=60)]) == [None]
    found = await led.engine.get_schedule("s")
    assert (found.spec.every, found.state.paused) == (60, True)
    assert (await led.engine.resume_schedule("s")).state.next_at == START + 60


async def test_code_leaves_an_operators_schedule_alone(led: Rig):
    await led.engine.create_schedule(spec("s", every=60))
    refused, wrong, fine = await led.engine.declare_schedules(
        [spec("s"), spec("w", cron="no"), spec("f")]
    )
    assert isinstance(refused, Conflict)
    assert "was made by an operator" in refused.message
    assert isinstance(wrong, InvalidArgument)
    assert fine is None
    assert (await led.engine.get_schedule("s")).spec.every == 60


async def test_many_workers_declare_at_once(led: Rig):
    answers = await asyncio.gather(
        *(led.engine.declare_schedules([spec("s", every=10 + n % 2)]) for n in range(20))
    )
    assert {error for answer in answers for error in answer} == {None}


# -- several servers ---------------------------------------------------------------------------


async def test_the_next_leader_goes_on_where_the_last_one_stood(open_pair: OpenPair):
    """In real time, on shared stores: a schedule ticks every second while the leader crashes."""
    one, two = await open_pair(leader_ttl=1.0)
    await two.engine.create_schedule(spec(every=1))

    async def ticks() -> list[str]:
        found = (await two.engine.list_jobs(JobQuery(limit=100))).jobs
        return sorted(job.key or "" for job in found)

    async def schedule() -> Schedule:
        return await two.engine.get_schedule("s")

    async with patience.timeout(30):
        while len(await ticks()) < 2:
            await asyncio.sleep(0.05)
        one.crash()
        before = len(await ticks())
        while len(await ticks()) < before + 4:
            await asyncio.sleep(0.05)
    last = (await schedule()).state.last_at
    assert last is not None
    assert two.leads
    found = await ticks()
    assert len(set(found)) == len(found)
    seconds = [int(key[-3:-1]) for key in found]
    assert {(b - a) % 60 for a, b in pairwise(seconds)} == {1}


async def test_another_servers_word_wakes_the_leader(led: Rig):
    await asyncio.sleep(1)
    await led.memory.schedules.create(await led.engine.create_schedule(spec("first")))
    led.store.calls.clear()
    led.hears(Change.SCHEDULES)
    await until(lambda: "schedules.due" in led.store.calls)
