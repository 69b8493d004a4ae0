"""Stores and topics that an earlier version has written open, and go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from jobqueue.core.clock import ManualClock
from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.rebuild import gather
from jobqueue.core.store import JobFilter, Store
from jobqueue.events.record import Record
from jobqueue.events.replay import Replay
from jobqueue.stores.postgres.migrate import migrate
from jobqueue.stores.postgres.store import PostgresStore
from jobqueue.stores.redis.store import RedisStore
from jobqueue.stores.sqlite.store import SqliteStore
from tests import patience
from tests.replay import earlier
from tests.replay.conftest import OpenEmpty
from tests.replay.mixed import RULES
from tests.replay.same import content_of, submitted_again
from tests.replay.test_restore import run_all
from tests.stores.driver import Driver

OpenEarlier = Callable[[str], Awaitable[Driver]]
KINDS = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.integration),
    pytest.param("redis", marks=pytest.mark.integration),
]


@pytest_asyncio.fixture
async def open_earlier(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[OpenEarlier]:
    """Open a store that the earlier version has left, at the time when it left it."""
    drivers: list[Driver] = []

    async def open_one(kind: str) -> Driver:
        clock = ManualClock(earlier.shown(kind)["now"])
        store: Store
        if kind == "sqlite":
            path = str(tmp_path / "earlier.db")
            earlier.put_sqlite(path)
            store = SqliteStore(path, rules=RULES, clock=clock)
        elif kind == "postgres":
            dsn = request.getfixturevalue("empty_postgres_dsn")
            await earlier.put_postgres(dsn)
            assert await migrate(dsn) > 0, "it is not an earlier version's"
            store = PostgresStore(dsn, rules=RULES, clock=clock, patience=patience.stretched(5.0))
        else:
            url = request.getfixturevalue("redis_url")
            earlier.put_redis(url)
            store = RedisStore(
                url, prefix="{jq-1}:", rules=RULES, clock=clock, patience=patience.stretched(5.0)
            )
        drivers.append(Driver(store, clock, RULES))
        await store.open()
        return drivers[-1]

    yield open_one
    for driver in drivers:
        await driver.store.close()


@pytest.mark.req("jq:NFR-008")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_store_of_an_earlier_version_shows_the_same_and_goes_on(
    open_earlier: OpenEarlier, kind: str
):
    expected = earlier.shown(kind)
    driver = await open_earlier(kind)
    store = driver.store
    content = earlier.plain(await content_of(store))
    assert earlier.like(content, expected["content"]) == expected["content"]
    dead = await store.reads.dead_letters(JobFilter(limit=500))
    assert earlier.plain(dead.found) == expected["dead"]
    workers = earlier.plain(await store.workers.all())
    for one in (*workers, *expected["workers"]):
        one["info"]["types"] = sorted(one["info"]["types"] or ())
    assert earlier.like(workers, expected["workers"]) == expected["workers"]
    assert earlier.plain(await store.stream.identity()) == expected["identity"]
    again = await submitted_again(store, [earlier.spec(one) for one in expected["keyed"]])
    known = {job["id"] for job in expected["content"]["jobs"]}
    assert [[status, job_id] for status, job_id in again] == expected["keys"]
    assert {job_id for _, job_id in again if job_id} & known
    await _goes_on(driver, expected["leases"])


async def _goes_on(driver: Driver, leases: list[dict[str, Any]]) -> None:
    """Attempts under way end by their leases, everything waiting runs, dead letters run again."""
    store = driver.store
    first = next(one for one in leases if not one["cancel_requested"])
    await driver.do(Transition.succeeded(first["seq"], first["lease"], b"held", 0.5))
    dead = [seq for seq, _ in (await store.reads.dead_letters(JobFilter(limit=500))).found]
    for name in ("asleep", "gone", "again"):
        await store.queues.pause(name, False)
    stood = {one.queue.name for one in await store.queues.stats()}
    jobs = {job.seq: job for job in await driver.all_jobs()}
    back = [seq for seq in dead if jobs[seq].queue in stood]
    assert back
    for seq in back:
        await driver.do(Transition.retried_by_hand(seq))
    new = await driver.submit(queue="mail", labels={"from": "the later version"})
    await run_all(driver)
    jobs = {job.seq: job for job in await driver.all_jobs()}
    assert jobs[first["seq"]].result == b"held"
    assert (await driver.job(new)).state is State.DONE
    assert State.DONE in {jobs[seq].state for seq in back}
    for job in jobs.values():
        history = await store.reads.history(job.id)
        assert [event.version for event in history] == list(range(1, job.version + 1))
        assert history[-1].to_state is job.state


@pytest.mark.req("sch:REPLAY")
async def test_topics_of_an_earlier_version_rebuild_every_store(
    open_empty: OpenEmpty, store_name: str, clock: ManualClock
):
    expected = earlier.shown("sqlite")
    clock.advance(expected["now"] - clock.now())
    found = Replay()
    found.read(cast(Record, earlier.Topics()), lambda count: None)
    found.check()
    assert found.named == [expected["identity"]["store"]]
    target = await open_empty(store_name)
    state = gather(found.world, published=True, identity=found.identity())
    await target.store.restore(state, lambda count: None)
    content = earlier.plain(await content_of(target.store))
    for one in (content, expected["content"]):
        for stats in one["stats"]:  # what workers measured is not in the stream
            stats["run_seconds"] = pytest.approx(stats["run_seconds"], abs=0.001)
            created = stats["queue"]["created_at"]  # a database may keep it to the microsecond
            stats["queue"]["created_at"] = pytest.approx(created, abs=1e-6, rel=0.0)
        for job in one["jobs"]:
            job["progress"] = None  # nor how far a running attempt had come
    assert earlier.like(content, expected["content"]) == expected["content"]
    again = await submitted_again(target.store, [earlier.spec(one) for one in expected["keyed"]])
    assert [[status, job_id] for status, job_id in again] == expected["keys"]
    await run_all(target)
