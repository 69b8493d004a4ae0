"""Peculiar to SQLite: other processes on the file, locks, crashes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from jobqueue.core.errors import Unavailable
from jobqueue.core.job import Transition, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Change, Claim, Rules
from jobqueue.stores.sqlite.store import SqliteStore
from tests import patience
from tests.stores.driver import Driver, accept, new, spec, worker

# -- several processes, one file -----------------------------------------------------------


async def test_two_stores_on_one_file_see_each_other(opened):
    one, two = await opened(), await opened()
    (job_id,) = await accept(one)
    (assignment,) = await two.jobs.claim([Claim(("q",), ["w"])])
    assert assignment.id == job_id
    assert await one.jobs.claim([Claim(("q",), ["w"])]) == []
    job = await one.reads.get(job_id)
    assert job is not None
    assert job.state is State.ASSIGNED


async def test_a_type_that_another_process_brings_is_claimed_at_once(opened):
    one, two = await opened(), await opened()
    known = [Claim(("q",), ["w"] * 9, types=frozenset({"a", "b"}))]
    assert await two.jobs.claim(known) == []
    await one.jobs.submit(new(spec(b"0", type="c"), spec(b"1", type="b"), spec(b"2", type="a")))
    assert [got.payload for got in await two.jobs.claim(known)] == [b"1", b"2"]
    assert [got.payload for got in await one.jobs.claim([Claim(("q",), ["w"] * 9)])] == [b"0"]


async def test_several_processes_never_claim_the_same_job(opened, child, path: Path):
    store = await opened()
    ids = await accept(store, 600)
    children = [await child("claim", path) for _ in range(3)]
    for one in children:
        assert await one.hears() == "ready"
    for one in children:
        one.tell()
    claimed: list[str] = []
    for one in children:
        while (said := await one.hears()) != "empty":
            claimed += said
    assert len(claimed) == len(set(claimed)) == 600
    assert set(claimed) == set(ids)


@pytest.mark.parametrize("idle", [True, False], ids=["never used", "used before"])
async def test_another_processs_submit_is_noticed_within_50_ms(
    opened, child, path: Path, idle: bool
):
    store = await opened()
    other = await child("submit", path)
    assert await other.hears() == "ready"
    noticed = asyncio.Event()
    at: list[float] = []

    def wake(_: Change) -> None:
        at.append(time.monotonic())
        noticed.set()

    store.on_change(wake)
    if not idle:
        await accept(store)
    delays = []
    for _ in range(10):
        await asyncio.sleep(0.05)
        noticed.clear()
        at.clear()
        other.tell()
        _, submitted_at = await other.hears()
        await patience.wait_for(noticed.wait(), 5)
        delays.append(at[0] - submitted_at)
    # The median: one late wake-up on a busy machine is not the store's doing.
    assert sorted(delays)[len(delays) // 2] < 0.05 * patience.slowness(), delays


async def test_its_own_writes_wake_nobody(opened):
    store = await opened()
    woken: list[float] = []
    await accept(store)
    store.on_change(lambda _: woken.append(time.monotonic()))
    await asyncio.sleep(0.05)
    woken.clear()
    for _ in range(5):
        await accept(store)
        await asyncio.sleep(0.03)
    assert woken == []


async def test_two_processes_may_create_the_file_at_once(child, path: Path):
    children = [await child("submit", path) for _ in range(4)]
    for one in children:
        assert await one.hears() == "ready"
        one.tell()
    assert len({(await one.hears())[0] for one in children}) == 4


# -- the loop stays free -------------------------------------------------------------------


async def test_the_loop_stays_responsive_while_another_process_holds_the_lock(
    opened, child, path: Path
):
    store = await opened()
    holder = await child("lock", path)
    assert await holder.hears() == "locked"
    write = asyncio.create_task(store.jobs.submit(new(spec())))
    for _ in range(20):  # a loop that stands still goes on when the write has given up
        await asyncio.sleep(0.005)
    assert not write.done(), "the lock is held: the write must wait"
    holder.tell()
    assert await holder.hears() == "released"
    assert (await patience.wait_for(write, 10)).results[0].unwrap()


async def test_reads_do_not_wait_for_another_processs_write(opened, child, path: Path):
    store = await opened()
    (job_id,) = await accept(store)
    holder = await child("lock", path)
    assert await holder.hears() == "locked"
    job = await patience.wait_for(store.reads.get(job_id), 2)
    assert job is not None


async def test_a_lock_that_is_never_released_is_unavailable_not_a_hang(
    opened, child, path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("jobqueue.stores.sqlite.connection.BUSY_TIMEOUT", 0.5)
    store = await opened()
    holder = await child("lock", path)
    assert await holder.hears() == "locked"
    (job,) = new(spec())
    with pytest.raises(Unavailable):
        await patience.wait_for(store.jobs.submit([job]), 20)
    holder.tell()
    assert await holder.hears() == "released"
    assert await store.reads.get(job.id) is None
    await accept(store)


# -- durability ----------------------------------------------------------------------------


@pytest.mark.req("inp:PROD")
async def test_everything_is_there_after_reopening(opened):
    store: SqliteStore = await opened()
    ids = await accept(store, 10)
    assigned = await store.jobs.claim([Claim(("q",), ["w"] * 3)])
    await store.close()
    again: SqliteStore = await opened()
    states = [job.state for job_id in ids if (job := await again.reads.get(job_id))]
    assert states == [State.ASSIGNED] * 3 + [State.PENDING] * 7
    assert {h.lease for h in await again.workers.held()} == {a.lease for a in assigned}
    (stats,) = await again.queues.stats("q")
    assert (stats.depth[State.PENDING], stats.depth[State.ASSIGNED]) == (7, 3)


@pytest.mark.faults
@pytest.mark.req("jq:NFR-005")
async def test_what_was_accepted_survives_kill_9(opened, child, path: Path):
    accepted: set[str] = set()
    for round_number in range(4):
        victim = await child("flood", path)
        for _ in range(10 + 7 * round_number):
            accepted.update(await victim.hears())
        victim.process.send_signal(signal.SIGKILL)
        for line in (await victim.process.communicate())[0].splitlines():
            with contextlib.suppress(ValueError):  # a line cut off by the kill
                accepted.update(json.loads(line))
    store: SqliteStore = await opened()
    for job_id in accepted:
        assert await store.reads.get(job_id) is not None
    driver = Driver(store, None, Rules())  # type: ignore[arg-type]
    driver.accepted = accepted
    await driver.check()
    jobs = await driver.all_jobs()
    (stats,) = await store.queues.stats("q")
    assert stats.unfinished == len(jobs) >= len(accepted)
    with contextlib.closing(sqlite3.connect(path)) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_commits_are_synced_in_full(opened):
    """kill -9 cannot show a missing fsync: the settings must."""
    store: SqliteStore = await opened()
    settings = await store._database.write(  # the writer's own connection is the one that counts
        "settings",
        lambda db: [
            db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
        ],
    )
    assert settings == ["wal", 2]


@pytest.mark.slow
async def test_a_held_lock_is_waited_for_once_not_once_for_each_caller(
    opened, child, path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("jobqueue.stores.sqlite.connection.BUSY_TIMEOUT", 0.5)
    store = await opened()
    holder = await child("lock", path)
    assert await holder.hears() == "locked"
    limit = patience.Limit(0.5 * 6)
    writes = [asyncio.ensure_future(store.jobs.submit(new(spec()))) for _ in range(12)]
    answers = await asyncio.gather(*writes, return_exceptions=True)
    assert all(isinstance(answer, Unavailable) for answer in answers)
    # One group that was being written and one that waited: two waits, however many callers.
    assert not limit.over
    holder.tell()
    assert await holder.hears() == "released"


async def test_control_is_told_apart_from_jobs(opened):
    """What operators and registrations change is looked at on its own, seldom."""
    one, two = await opened(), await opened()
    await accept(one)
    (assignment,) = await one.jobs.claim([Claim(("q",), ["w"])])
    await one.jobs.apply([Transition.started(assignment.seq, assignment.lease)])
    heard: asyncio.Queue[Change] = asyncio.Queue()
    two.on_change(heard.put_nowait)

    async def hears() -> Change:
        """Everything that is said because of one write, until it is quiet again."""
        said = await patience.wait_for(heard.get(), 5)
        await asyncio.sleep(0.1)
        while not heard.empty():
            said |= heard.get_nowait()
        return said

    await hears()  # of what was done before it listened
    await one.workers.register(worker())
    assert Change.CONTROL in await hears()
    await accept(one)
    assert await hears() == Change.WORK | Change.ENDED
    await one.jobs.request_cancel(assignment.seq)
    assert Change.CONTROL in await hears()
    await one.workers.set_status("w", WorkerStatus.DRAINING)
    assert Change.CONTROL in await hears()
    await one.workers.register(worker("v"))
    assert Change.CONTROL in await hears()
    assert await one.workers.retire("v", 1)
    assert Change.CONTROL in await hears()
    term = await one.leadership.lead(7, 10.0)
    assert term is not None
    assert Change.CONTROL not in await hears()
    await one.leadership.resign(term)
    assert Change.CONTROL in await hears()
