"""A replay that ends half-way leaves nothing, or something that says so."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from jobqueue.core.errors import Conflict, InvalidArgument
from jobqueue.core.rebuild import Restored
from jobqueue.stores.redis.store import RedisStore
from jobqueue.stores.sqlite.store import SqliteStore
from tests import patience
from tests.replay.conftest import OpenEmpty
from tests.replay.same import all_jobs, assert_same, content_of
from tests.replay.test_restore import Follower, some
from tests.stores.driver import Driver

pytestmark = pytest.mark.req("sch:REPLAY")


class Interrupted(Exception):
    """Somebody pulled the plug."""


async def rebuilt(source: Driver) -> Restored:
    follower = Follower(source)
    await follower.catch_up()
    return follower.state()


def interrupt(count: int) -> None:
    raise Interrupted


@pytest.mark.parametrize(
    "store_name", ["sqlite", pytest.param("postgres", marks=pytest.mark.integration)]
)
async def test_a_transaction_leaves_nothing(open_empty: OpenEmpty, store_name: str):
    source = await some(open_empty)
    state = await rebuilt(source)
    target = await open_empty(store_name)
    seen: list[int] = []

    def late(count: int) -> None:
        seen.append(count)
        if count:
            raise Interrupted

    for told in (interrupt, late) if store_name == "sqlite" else (interrupt,):
        with pytest.raises(Interrupted):
            await target.store.restore(state, told)
        assert not await all_jobs(target.store)
        assert not await target.store.queues.stats()
    await target.store.restore(state, seen.append)
    assert seen[-1] == len(state.jobs)
    await assert_same(await content_of(source.store), target.store)


@pytest.mark.parametrize("store_name", ["sqlite"])
async def test_whoever_is_cancelled_has_written_nothing(
    open_empty: OpenEmpty, store_name: str, tmp_path: Path
):
    state = await rebuilt(await some(open_empty))
    store = SqliteStore(tmp_path / "target.db")
    await store.open()
    begun, go_on = threading.Event(), threading.Event()

    def told(count: int) -> None:
        begun.set()
        assert go_on.wait(patience.longest(30.0))

    restoring = asyncio.create_task(store.restore(state, told))
    assert await asyncio.to_thread(begun.wait, 30.0)
    restoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await restoring
    go_on.set()
    await store.close()
    await store.open()
    assert not await all_jobs(store)
    await store.close()


@pytest.mark.integration
@pytest.mark.parametrize("store_name", ["redis"])
async def test_redis_says_that_it_was_interrupted(
    open_empty: OpenEmpty, store_name: str, redis_url: str
):
    source = await some(open_empty)
    state = await rebuilt(source)
    prefix = "{half}:"
    store = RedisStore(redis_url, prefix=prefix, clock=source.clock)
    await store.open()
    with pytest.raises(Interrupted):
        await store.restore(state, interrupt)
    with pytest.raises(Conflict, match="interrupted"):
        await store.restore(state, lambda count: None)
    await store.close()
    with pytest.raises(Conflict, match=r"remove every key that begins with \{half\}:"):
        await store.open()
    other = RedisStore(redis_url, prefix="{whole}:", clock=source.clock)
    await other.open()
    command = other._runner.command
    for key in await command("keys", "KEYS", f"{prefix}*"):
        await command("del", "DEL", key)
    await other.close()
    await store.open()
    await store.restore(state, lambda count: None)
    await assert_same(await content_of(source.store), store)
    await store.close()


@pytest.mark.integration
@pytest.mark.parametrize("store_name", ["postgres"])
async def test_what_postgresql_cannot_keep_is_said_before(open_empty: OpenEmpty, store_name: str):
    source = await open_empty("memory")
    await source.queue("q")
    job_id = await source.submit(type="a\0b")
    target = await open_empty(store_name)
    with pytest.raises(InvalidArgument, match=f"{job_id}.*NUL"):
        await target.store.restore(await rebuilt(source), lambda count: None)
    assert not await all_jobs(target.store)
