"""Progress of running attempts: told in heartbeats, gone with the attempt."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

import pytest

from jobqueue.core.job import Assignment, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.progress import MAX_PROGRESS_TEXT, Progress
from jobqueue.core.store import JobFilter
from jobqueue.stores.memory import MemoryStore
from jobqueue.stores.postgres.store import PostgresStore
from jobqueue.stores.redis.store import RedisStore
from jobqueue.stores.sqlite.store import SqliteStore
from tests.stores.driver import Driver, worker


def tell(driver: Driver, given: Assignment, value: float | None = 0.4, text: str = "") -> None:
    """A heartbeat of the worker that has the attempt, with its progress."""
    told = {given.lease: Progress.of(value, text)}
    driver.store.workers.pulse(given.worker_id, 1, [given.lease], [given.lease], told)


async def shown(driver: Driver, given: Assignment) -> tuple[float | None, str] | None:
    """What a reader sees, of the job alone and in a list."""
    job = await driver.job(given.id)
    (listed,) = [one for one in await driver.all_jobs() if one.id == given.id]
    assert listed.progress == job.progress
    return None if job.progress is None else (job.progress.value, job.progress.text)


async def test_progress_is_shown_while_the_attempt_runs(driver: Driver):
    await driver.store.workers.register(worker())
    a = await driver.running()
    assert (await driver.job(a.id)).progress is None
    driver.clock.advance(5.0)
    tell(driver, a, 0.4, "12 of 30 files")
    expected = Progress(0.4, "12 of 30 files", driver.clock.now())
    assert (await driver.job(a.id)).progress == expected
    (listed,) = await driver.store.reads.list_jobs(JobFilter(states=(State.RUNNING,)))
    assert listed.progress == expected


async def test_the_last_word_counts_and_stays_until_the_next(driver: Driver):
    await driver.store.workers.register(worker())
    a = await driver.running()
    tell(driver, a, 0.9, "nearly")
    tell(driver, a, 0.1, "from the beginning")
    assert await shown(driver, a) == (0.1, "from the beginning")
    driver.store.workers.pulse("w", 1, [a.lease], [a.lease])
    assert await shown(driver, a) == (0.1, "from the beginning")
    tell(driver, a, None, "counting")
    assert await shown(driver, a) == (None, "counting")
    tell(driver, a, 1.0)
    assert await shown(driver, a) == (1.0, "")


async def test_progress_is_no_event_and_no_version(driver: Driver):
    await driver.store.workers.register(worker())
    a = await driver.running()
    before = await driver.job(a.id)
    events = await driver.all_events()
    driver.clock.advance(1.0)
    tell(driver, a, 0.4, "on the way")
    after = await driver.job(a.id)
    assert (after.version, after.updated_at) == (before.version, before.updated_at)
    assert await driver.all_events() == events


ENDS: dict[str, Callable[[Driver, Assignment], Awaitable[object]]] = {
    "success": lambda driver, a: driver.succeed(a),
    "failure": lambda driver, a: driver.fail(a),
    "failure for good": lambda driver, a: driver.fail(a, retryable=False),
    "lost worker": lambda driver, a: driver.lose(a),
    "time-out": lambda driver, a: driver.do(Transition.timed_out(a.seq, a.lease)),
    "cancel": lambda driver, a: driver.do(Transition.cancel_acknowledged(a.seq, a.lease)),
}


@pytest.mark.parametrize("end", ENDS)
async def test_progress_is_gone_with_the_attempt(driver: Driver, end: str):
    await driver.store.workers.register(worker())
    a = await driver.running()
    tell(driver, a, 0.4, "on the way")
    if end == "cancel":
        await driver.store.jobs.request_cancel(a.seq)
    await ENDS[end](driver, a)
    assert await shown(driver, a) is None
    tell(driver, a, 0.5, "too late")
    assert await shown(driver, a) is None


async def test_the_next_attempt_begins_without_progress(driver: Driver):
    await driver.store.workers.register(worker())
    a = await driver.running()
    tell(driver, a, 0.4, "first")
    await driver.fail(a, retry_after=1.0)
    await driver.after(2.0)
    b = await driver.claim_one()
    assert await shown(driver, a) is None
    await driver.start(b)
    assert b.id == a.id
    assert await shown(driver, b) is None
    tell(driver, a, 0.9, "the first attempt, late")
    assert await shown(driver, b) is None
    tell(driver, b, 0.2, "second")
    tell(driver, a, 0.9, "the first attempt, later")
    assert await shown(driver, b) == (0.2, "second")
    await driver.succeed(b)
    assert await shown(driver, b) is None


async def test_progress_told_before_the_start_is_shown_from_the_start_on(driver: Driver):
    await driver.store.workers.register(worker())
    a = await driver.assigned()
    tell(driver, a, 0.3, "the report of the start is late")
    assert await shown(driver, a) is None
    await driver.start(a)
    assert await shown(driver, a) == (0.3, "the report of the start is late")


async def test_only_the_worker_that_holds_the_lease_tells(driver: Driver):
    await driver.store.workers.register(worker("w"))
    await driver.store.workers.register(worker("thief"))
    a = await driver.running()
    told = {a.lease: Progress.of(0.9, "stolen")}
    driver.store.workers.pulse("thief", 1, [a.lease], [], told)
    driver.store.workers.pulse("w", 2, [a.lease], [], told)  # another life of it
    driver.store.workers.pulse("w", 1, [], [], {4711: Progress.of(0.9, "of nothing")})
    assert await shown(driver, a) is None


async def test_any_line_of_text_is_kept(driver: Driver):
    await driver.store.workers.register(worker())
    a = await driver.running()
    for text in ('"quoted" \\ back', "grüße 🚀 ", "[0.5]", "ä" * MAX_PROGRESS_TEXT, "null", " "):
        tell(driver, a, 1 / 3, text)
        seen = await shown(driver, a)
        assert seen is not None
        assert seen[0] == pytest.approx(1 / 3)
        assert seen[1] == text


async def test_one_heartbeat_tells_of_many(driver: Driver):
    await driver.store.workers.register(worker(concurrency=300))
    for n in range(300):
        await driver.submit(b"%d" % n)
    given = await driver.claim(300)
    await driver.apply(*(Transition.started(a.seq, a.lease) for a in given))
    told = {a.lease: Progress.of(n / 300, f"file {n}") for n, a in enumerate(given)}
    leases = [a.lease for a in given]
    driver.store.workers.pulse("w", 1, leases, leases, told)
    jobs = {job.id: job for job in await driver.all_jobs()}
    for n, a in enumerate(given):
        progress = jobs[a.id].progress
        assert progress is not None
        assert progress.value == pytest.approx(n / 300)
        assert progress.text == f"file {n}"


async def test_threads_tell_beside_each_other(driver: Driver):
    await driver.store.workers.register(worker())
    given = [await driver.running(payload=b"%d" % n) for n in range(4)]
    told = {a.lease: Progress.of(0.5, "together") for a in given}
    leases = [a.lease for a in given]
    threads = [
        threading.Thread(target=driver.store.workers.pulse, args=("w", 1, leases, leases, order))
        for order in (told, dict(reversed(told.items()))) * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)  # the loop is blocked meanwhile: a heartbeat must not need it
    for a in given:
        assert await shown(driver, a) == (0.5, "together")


async def kept(driver: Driver) -> int:
    """Of how many attempts the store still has progress, shown or not."""
    store = driver.store
    if isinstance(store, MemoryStore):
        return len(store._contents.progress)
    if isinstance(store, SqliteStore):
        count = "SELECT count(*) FROM progress"
        return await store._database.read("kept", lambda db: db.execute(count).fetchone()[0])
    if isinstance(store, PostgresStore):
        count = "SELECT count(*) FROM job_progress"
        return await store._database.reading.read("kept", lambda db: db.fetchval(count))
    assert isinstance(store, RedisStore)
    listed = await store._runner.command("kept", "ZCARD", f"{store._runner.prefix}progress")
    ids = [job.id for job in await driver.all_jobs()]
    fields = [
        await store._runner.command(
            "kept", "HEXISTS", f"{store._runner.prefix}job:{one}", "progress"
        )
        for one in ids
    ]
    assert sum(fields) == listed
    return int(listed)


async def test_what_is_left_of_attempts_that_are_over_is_removed(driver: Driver):
    await driver.store.workers.register(worker())
    given = [await driver.running(payload=b"%d" % n) for n in range(8)]
    for a in given:
        tell(driver, a, 0.5, "on the way")
    assert await kept(driver) == 8
    for a in given[:5]:
        await driver.succeed(a)
    await driver.fail(given[5], retryable=False)
    driver.clock.advance(61.0)
    if isinstance(driver.store, (SqliteStore, PostgresStore)):
        driver.store.workers._forget_progress_at = 0.0
    leases = [a.lease for a in given[6:]]
    driver.store.workers.pulse("w", 1, leases, leases, {given[6].lease: Progress.of(0.6, "")})
    assert await kept(driver) == 2
    assert await shown(driver, given[6]) == (0.6, "")
    assert await shown(driver, given[7]) == (0.5, "on the way")
