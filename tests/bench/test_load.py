"""What a load asks for and counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobqueue.bench import load as loads
from jobqueue.bench.cell import PRIMARY, Cell, Method
from jobqueue.bench.load import LoadGenerator
from jobqueue.bench.profile import Profile
from jobqueue.bench.records import TO_DONE, RunRecord, histogram
from jobqueue.bench.targets import Fate, SeenJob
from jobqueue.core.errors import Unavailable
from tests.bench.memory_target import STEP, MemoryTarget, Time

ALL = {Method.SUBMIT: 2, Method.STATUS: 1, Method.RESULT: 1, Method.CANCEL: 1}


def profile(**other: float) -> Profile:
    said = {"warm_up": 1.0, "seconds": 4.0, "job_seconds": 2.0, "listings": 3, "drain": 1.0}
    return Profile(name="test", about="", topologies=[], **{**said, **other})  # type: ignore[arg-type]


async def run(
    target: MemoryTarget, cell: Cell, time: Time, how: Profile, seed: int = 4
) -> tuple[RunRecord, Counter[str]]:
    """All stretches; the record, and the calls that the target saw in the counted one."""
    with LoadGenerator(target, cell, how, seed=seed, tag="t", stopwatch=time) as load:
        await load.warm_up()
        before = target.begun()
        await load.requests()
        seen = target.begun() - before
        await load.latest_ended()
        await load.account()
        await load.job_after_job()
        await load.listings()
        record = RunRecord("test", cell, 1, 1, seed, "", how.warm_up, how.seconds)
        load.fill(record)
    return record, seen


MIXES = st.fixed_dictionaries(
    {Method.SUBMIT: st.integers(1, 4)},
    optional={one: st.integers(0, 4) for one in Method if one is not Method.SUBMIT},
)
CELLS = st.builds(
    Cell,
    topology=st.just("memory"),
    callers=st.integers(1, 6),
    rate=st.none() | st.just(40.0),
    mix=MIXES,
    key_ratio=st.sampled_from([0.0, 0.5, 1.0]),
    key_skew=st.sampled_from([0.0, 1.5]),
    batch=st.sampled_from([1, 3]),
)


@pytest.mark.req("tq:EVAL")
@settings(max_examples=40, deadline=None)
@given(
    cell=CELLS,
    fails=st.sampled_from([0.0, 0.2]),
    full=st.sampled_from([0.0, 0.2]),
    hangs=st.sampled_from([0.0, 0.05]),
    backlog=st.sampled_from([0.0, 0.5]),
)
def test_every_request_and_every_job_is_counted_once(
    cell: Cell, fails: float, full: float, hangs: float, backlog: float
) -> None:
    async def body() -> None:
        time = Time()
        target = MemoryTarget(time, fails=fails, full=full, hangs=hangs, backlog=backlog, step=0.01)
        load = stack.enter_context(
            LoadGenerator(target, cell, how, seed=4, tag="t", stopwatch=time)
        )
        await load.warm_up()
        before, jobs_before = target.begun(), len(target.jobs)
        await load.requests()
        seen = target.begun() - before
        made = len(target.jobs) - jobs_before
        target.answer_all()  # what follows reads how it ended
        await load.latest_ended()
        await load.account()
        record = RunRecord("test", cell, 1, 1, 4, "", how.warm_up, how.seconds)
        load.fill(record)
        assert {name: one.total for name, one in record.counts.items() if one.total} == seen
        for name, one in record.counts.items():
            answered = one.ok + sum(one.soft.values()) - one.soft.get("QUEUE_FULL", 0)
            assert histogram(record.latencies[name]).get_total_count() == answered
        jobs = record.jobs
        assert jobs.submitted == made
        assert jobs.submitted == jobs.ended + jobs.open
        canceled = sum(one.fate is Fate.CANCELED for one in target.jobs.values())
        assert jobs.canceled + jobs.open <= canceled  # the open ones were canceled afterwards
        assert target.under_way == 0

    how = profile(warm_up=0.05, seconds=0.25)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(loads, "_GRACE", 0.01))
        asyncio.run(body())


@pytest.mark.req("tq:NFR-2")
@pytest.mark.parametrize("callers", [1, 3, 10])
async def test_as_many_callers_at_once_as_asked_for(callers: int) -> None:
    time = Time()
    target = MemoryTarget(time)
    cell = Cell("memory", callers=callers)
    with LoadGenerator(target, cell, profile(), seed=1, tag="", stopwatch=time) as load:
        await load.warm_up()
        await load.requests()
    assert target.most == callers


@pytest.mark.req("tq:NFR-2", "tq:FAIR")
async def test_the_jobs_and_the_mix_are_those_asked_for() -> None:
    time = Time()
    target = MemoryTarget(time)
    mix = {Method.SUBMIT: 2, Method.STATUS: 1, Method.RESULT: 1}
    cell = Cell("memory", callers=1, work_ms=20, payload_bytes=300, mix=mix)
    record, _ = await run(target, cell, time, profile(seconds=50.0))
    ((milliseconds, size),) = {(one.milliseconds, one.output_bytes) for one in target.works}
    assert (milliseconds, size) == (20, 300)
    totals = {name: one.total for name, one in record.counts.items()}
    assert "cancel" not in totals
    assert totals["list"] == 3
    assert totals["submit"] > totals["status"] > 0
    assert totals["submit"] > totals["result"] > 0
    primary = sum(totals.get(one, 0) for one in PRIMARY)
    assert record.requests_a_second == primary / 50.0  # neither listings nor whole jobs


@pytest.mark.req("tq:FAIR")
async def test_every_topology_is_asked_the_same_in_the_same_order() -> None:
    asked = []
    for topology in ("microservices", "nodes"):
        time = Time()
        target = MemoryTarget(time)
        cell = Cell(topology, callers=2, mix=ALL, key_ratio=0.5, key_skew=1.1)
        how = profile()
        await run(target, cell, time, how, how.seed_of(cell, 2))
        asked.append((target.calls, target.keys))
    assert asked[0] == asked[1]
    assert {method for method, _ in asked[0][0]} >= {"submit", "cancel", "list", "end"}


@pytest.mark.req("tq:FAIR", "tq:NFR-3")
async def test_the_warm_up_is_not_counted_and_the_time_after_it_is() -> None:
    time = Time()
    target = MemoryTarget(time)
    how = profile(warm_up=1.5, seconds=3.0, listings=0)
    record, _ = await run(target, Cell("memory", callers=1), time, how)
    counted = round(3.0 / STEP)
    taken = histogram(record.latencies["submit"])
    assert taken.get_total_count() == record.counts["submit"].ok == counted
    assert taken.get_value_at_percentile(50) // 1000 == STEP * 1000
    assert record.requests_a_second == counted / 3.0
    assert record.jobs.submitted == record.jobs.done == counted
    assert record.jobs.a_second == counted / 3.0
    began = [at for method, at in target.calls if method == "submit"]
    assert sum(at < 1_001.5 for at in began) == round(1.5 / STEP)  # and yet it was a load
    whole = histogram(record.latencies[TO_DONE])
    assert whole.get_total_count() == record.counts[TO_DONE].ok > 0


async def test_the_open_loop_counts_from_the_intended_start() -> None:
    """A target that takes ten times too long for the rate: waiting is part of the latency."""
    time = Time()
    target = MemoryTarget(time, step=1.0)
    cell = Cell("memory", rate=10.0)
    record, _ = await run(target, cell, time, profile(warm_up=0.0, seconds=5.0))
    taken = histogram(record.latencies["submit"])
    assert record.counts["submit"].total > 30
    assert taken.get_value_at_percentile(99) > 20 * 1_000_000
    assert taken.get_total_count() == record.counts["submit"].ok


async def test_the_open_loop_never_has_more_requests_under_way_than_it_may(monkeypatch) -> None:
    monkeypatch.setattr(loads, "_MOST_OPEN", 5)
    monkeypatch.setattr(loads, "_GRACE", 0.05)
    time = Time()
    target = MemoryTarget(time, hangs=1.0)
    cell = Cell("memory", rate=50.0)
    with LoadGenerator(target, cell, profile(warm_up=0.0), seed=1, tag="", stopwatch=time) as load:
        await load.requests()
    counts = load.counts["submit"]
    assert target.most == 5
    assert counts.unfinished == counts.total > 100
    assert target.begun()["submit"] == 5


async def test_skewed_keys_repeat_and_make_one_job_each() -> None:
    time = Time()
    target = MemoryTarget(time)
    cell = Cell("memory", callers=2, key_ratio=1.0, key_skew=1.5)
    record, seen = await run(target, cell, time, profile(seconds=40.0, job_seconds=0))
    counted = target.keys[-seen["submit"] :]
    assert record.counts["submit"].ok == len(counted)
    assert record.jobs.submitted == len(set(counted)) < len(counted)
    (_, most), (_, second) = Counter(counted).most_common(2)
    assert most > second
    warm = target.keys[: -len(counted)]
    assert warm
    assert not set(warm) & set(counted)


async def test_keys_that_are_not_skewed_are_all_new() -> None:
    time = Time()
    target = MemoryTarget(time)
    cell = Cell("memory", callers=2, key_ratio=1.0)
    record, _ = await run(target, cell, time, profile(job_seconds=0))
    assert len(set(target.keys)) == len(target.keys)
    assert record.jobs.submitted == record.counts["submit"].ok


async def test_a_load_that_is_cancelled_leaves_no_request_behind() -> None:
    time = Time()
    target = MemoryTarget(time, hangs=1.0)
    cell = Cell("memory", callers=3)
    with LoadGenerator(target, cell, profile(), seed=1, tag="", stopwatch=time) as load:
        running = asyncio.create_task(load.requests())
        while target.under_way < 3:
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert target.under_way == 0


async def test_a_defect_of_the_generator_is_raised_and_not_counted() -> None:
    time = Time()
    target = MemoryTarget(time)
    with (
        mock.patch.object(target, "submit", side_effect=ZeroDivisionError),
        LoadGenerator(target, Cell("memory"), profile(), seed=1, tag="", stopwatch=time) as load,
        pytest.raises(ZeroDivisionError),
    ):
        await load.warm_up()


async def test_jobs_that_cannot_be_asked_for_are_waited_for_as_long_as_the_profile_says() -> None:
    """Before, each of the latest jobs was asked for once more, and one try takes seconds."""
    time = Time()
    target = MemoryTarget(time)

    async def away(job_id: str) -> SeenJob:
        await time.sleep(3.0)
        raise Unavailable(f"nobody knows {job_id}")

    with LoadGenerator(
        target, Cell("memory", callers=1), profile(), seed=1, tag="", stopwatch=time
    ) as load:
        await load.requests()
        began = time.now()
        with mock.patch.object(target, "status", away):
            await load.latest_ended()
    assert time.now() - began == pytest.approx(3.0)
