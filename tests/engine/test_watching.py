"""Those who wait for jobs ask the store together, and only when somebody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from jobqueue.core.errors import Unavailable
from jobqueue.core.job import Event, Job, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Change
from jobqueue.engine import watching
from tests import patience
from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig, until

P, A, R, D, F, X = State


class Looks:
    """What the store was asked by the engine: single jobs, and all that are waited for."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._ask = rig.memory.reads.moved_on
        self.asked: list[dict[int, int]] = []
        rig.memory.reads.moved_on = self._moved_on  # type: ignore[method-assign]

    async def _moved_on(self, seen: Mapping[int, int]) -> list[int]:
        self.asked.append(dict(seen))
        return await self._ask(seen)

    @property
    def reads(self) -> int:
        return self._rig.store.calls.count("reads.get")

    async def another(self) -> None:
        """Let it look once more, because of news that are nobody's."""
        before = len(self.asked)
        self._rig.hears(Change.ENDED)
        await until(lambda: len(self.asked) > before)


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_PAUSE", 0.01)


@pytest.fixture
def looks(rig: Rig) -> Looks:
    return Looks(rig)


@pytest.fixture
def no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_SAFETY_NET", 3_600.0)


async def waiting(rig: Rig, looks: Looks, *job_ids: str) -> list[asyncio.Task[Job]]:
    """Callers that have read their jobs, and wait for them."""
    before = looks.reads
    tasks = [asyncio.create_task(rig.engine.wait(job_id, None)) for job_id in job_ids]
    await until(lambda: looks.reads == before + len(job_ids))
    await asyncio.sleep(0)
    return tasks


async def ends_elsewhere(rig: Rig, job_id: str) -> None:
    """As by another server on the same store, which says so."""
    seq = await rig.memory.reads.seq_of(job_id)
    assert seq is not None
    (outcome,) = (await rig.memory.jobs.apply([Transition.cancelled(seq)])).outcomes
    assert outcome.applied
    rig.hears(Change.ENDED)


async def cancelled(*tasks: asyncio.Task[Job]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_all_who_wait_are_one_question_in_bounded_parts(
    rig: Rig, looks: Looks, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watching, "_AT_ONCE", 100)
    job_ids = [await rig.submit() for _ in range(250)]
    tasks = await waiting(rig, looks, *job_ids)
    looks.asked.clear()
    reads = looks.reads
    await looks.another()
    await until(lambda: len(looks.asked) >= 3)
    sizes = [len(seen) for seen in looks.asked[:3]]
    assert sorted(sizes) == [50, 100, 100]
    assert len({seq for seen in looks.asked[:3] for seq in seen}) == 250
    assert looks.reads == reads, "whose job has not ended does not read it"
    await ends_elsewhere(rig, job_ids[123])
    assert (await patience.wait_for(tasks[123], 10)).state is X
    assert looks.reads == reads + 1
    await cancelled(*tasks)


async def test_an_end_is_found_without_news_of_it(
    rig: Rig, looks: Looks, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rig.engine._watchers, "changed_elsewhere", lambda: None)
    job_id = await rig.submit()
    (task,) = await waiting(rig, looks, job_id)
    await ends_elsewhere(rig, job_id)
    assert (await patience.wait_for(task, 10)).state is X


@pytest.mark.usefixtures("no_safety_net")
async def test_a_job_that_ends_here_wakes_its_waiter_without_a_look(rig: Rig, looks: Looks):
    worker = await rig.worker(slots=1)
    job_id = await rig.submit()
    assignment = await worker.gets_one()
    (task,) = await waiting(rig, looks, job_id)
    await worker.start(assignment)  # is no end, and not read
    await worker.succeed(assignment)
    assert (await patience.wait_for(task, 10)).state is D
    assert looks.reads == 2
    assert looks.asked == []


@pytest.mark.usefixtures("no_safety_net")
async def test_nothing_is_asked_while_nobody_waits(rig: Rig, looks: Looks):
    job_id = await rig.submit()
    rig.hears(Change.ENDED)
    (task,) = await waiting(rig, looks, job_id)
    await asyncio.sleep(5 * watching._PAUSE)
    assert looks.asked == [], "these news are older than what it read"
    await cancelled(task)
    assert not rig.is_watched
    for _ in range(3):
        rig.hears(Change.ENDED)
        await asyncio.sleep(2 * watching._PAUSE)
    assert looks.asked == []


@pytest.mark.usefixtures("no_safety_net")
async def test_an_end_while_the_job_is_read_is_not_missed(rig: Rig, looks: Looks):
    job_id = await rig.submit()
    read = rig.memory.reads.get

    async def read_slowly(job_id: str) -> Job | None:
        job = await read(job_id)
        rig.memory.reads.get = read  # type: ignore[method-assign]
        await ends_elsewhere(rig, job_id)
        return job

    rig.memory.reads.get = read_slowly  # type: ignore[method-assign]
    assert (await patience.wait_for(rig.engine.wait(job_id, None), 10)).state is X


async def test_who_waits_is_told_that_the_store_is_away(rig: Rig, looks: Looks):
    first, second = await rig.submit(), await rig.submit()
    tasks = await waiting(rig, looks, first, second)
    reads = looks.reads
    rig.store.fail["reads.moved_on"] = [Unavailable("the database is away")]
    rig.hears(Change.ENDED)
    for task in tasks:
        with pytest.raises(Unavailable, match="the database is away"):
            await patience.wait_for(task, 10)
    assert looks.reads == reads, "nobody asks a store that is away once more"
    (task,) = await waiting(rig, looks, first)
    await ends_elsewhere(rig, first)
    assert (await patience.wait_for(task, 10)).state is X


async def test_a_defect_of_a_look_is_logged_and_ends_no_later_look(
    rig: Rig, looks: Looks, caplog: pytest.LogCaptureFixture
):
    job_id = await rig.submit()
    (task,) = await waiting(rig, looks, job_id)
    rig.store.fail["reads.moved_on"] = [ZeroDivisionError("a defect")]  # type: ignore[list-item]
    rig.hears(Change.ENDED)
    with pytest.raises(Unavailable, match="a defect"):
        await patience.wait_for(task, 10)
    assert "reading the awaited jobs failed" in caplog.text
    (task,) = await waiting(rig, looks, job_id)
    await ends_elsewhere(rig, job_id)
    assert (await patience.wait_for(task, 10)).state is X


async def test_who_waits_is_told_of_the_stop(open_rig: OpenRig):
    rig = await open_rig()
    looks = Looks(rig)
    job_id = await rig.submit()
    (task,) = await waiting(rig, looks, job_id)
    await rig.engine.stop()
    with pytest.raises(Unavailable, match="shutting down"):
        await patience.wait_for(task, 10)
    with pytest.raises(Unavailable, match="shutting down"):
        await patience.wait_for(rig.engine.wait(job_id, None), 10)
    assert not rig.is_watched


async def test_who_follows_a_job_hears_of_every_move_elsewhere(rig: Rig, looks: Looks):
    """And who waits for its end does not read it again at each of them."""
    worker = await rig.worker()
    job_id = await rig.submit()
    seen: list[Event] = []

    async def follow() -> None:
        async for event in rig.engine.watch(job_id):
            seen.append(event)

    (task,) = await waiting(rig, looks, job_id)
    followers = [asyncio.create_task(follow()) for _ in range(2)]
    await until(lambda: len(seen) == 2)
    histories = rig.store.calls.count("reads.history")
    for _ in range(3):
        await looks.another()
    assert rig.store.calls.count("reads.history") == histories, "nothing has moved"
    worker.link.grant(1)  # a claim tells nobody
    await worker.gets_one()
    await until(lambda: len(seen) == 4)
    await ends_elsewhere(rig, job_id)
    await patience.wait_for(asyncio.gather(*followers), 10)
    assert sorted((event.version, event.to_state) for event in seen) == sorted(
        [(1, P), (2, A), (3, X)] * 2
    )
    assert (await patience.wait_for(task, 10)).state is X


async def test_a_watcher_behind_the_others_is_not_forgotten(rig: Rig):
    """Of those who follow one job, the one that has seen the least counts."""
    watchers = rig.engine._watchers
    worker = await rig.worker(slots=1)
    job_id = await rig.submit()
    assignment = await worker.gets_one()
    at = {version: watchers.enter(job_id, every_move=True) for version in (2, 1)}
    tasks = {
        version: asyncio.create_task(watcher.wait(assignment.seq, version))
        for version, watcher in at.items()
    }
    await patience.wait_for(tasks[1], 10)
    tasks[2].cancel()
    await asyncio.wait([tasks[2]])
    for watcher in at.values():
        watchers.leave(watcher)
    assert not watchers


@pytest.mark.usefixtures("no_safety_net")
async def test_many_news_are_one_look_and_the_last_is_not_forgotten(rig: Rig, looks: Looks):
    job_id = await rig.submit()
    (task,) = await waiting(rig, looks, job_id)
    await looks.another()
    for _ in range(100):  # while it pauses
        rig.hears(Change.ENDED)
    await until(lambda: len(looks.asked) == 2)
    await asyncio.sleep(5 * watching._PAUSE)
    assert len(looks.asked) == 2
    await cancelled(task)
