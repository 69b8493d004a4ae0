"""A store named by its URL: what servers, workers and jq-ctl open."""

from __future__ import annotations

import json

import pytest
from redis.asyncio import Redis

from jobqueue.connect.backends import create_backend, create_store
from jobqueue.connect.urls import parse_url
from jobqueue.core.errors import InvalidArgument, NotFound
from jobqueue.core.job import JobSpec
from jobqueue.core.queue import Queue
from jobqueue.stores.redis.store import RedisStore
from tests.cli import processes
from tests.stores.redis.conftest import DURABLE, Victim
from tests.stores.redis.test_dry_run import SECRET, checks


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://user:hush@h:6379/3",
        "rediss://h:6380/0?ssl_ca_certs=ca.pem&prefix=jobs",
        "redis://[::1]:6379/0?prefix=a.b_c-1",
    ],
)
def test_urls(url):
    assert parse_url(url).scheme == "redis"


def test_an_option_that_redis_does_not_know_is_said():
    with pytest.raises(InvalidArgument, match="ssl_nonsense") as caught:
        create_store("rediss://:hush@h/0?ssl_nonsense=1&prefix=x", field="db.url")
    assert caught.value.field == "db.url"
    assert "hush" not in caught.value.message


async def test_a_backend_works_on_it_under_its_prefix(redis_url, client):
    backend = create_backend(f"{redis_url}?prefix=mine")
    await backend.start()
    try:
        (result,) = await backend.submit([JobSpec(payload=b"1")])
        assert (await backend.get(result.unwrap())).payload == b"1"
        health = await backend.health()
        assert "redis" in {part.name for part in health.components}
    finally:
        await backend.stop()
    assert all(key.startswith("{mine}:") for key in await client.keys())


async def test_a_look_creates_nothing(redis_url, client):
    backend = create_backend(redis_url, create=False)
    with pytest.raises(NotFound, match="no queues in Redis"):
        await backend.start()
    await backend.stop()
    assert await client.keys() == []


async def test_a_store_that_was_closed_opens_again_and_keeps_its_connections(own_redis):
    url = own_redis().url
    store = RedisStore(url)
    async with Redis.from_url(url) as client:
        for _ in range(2):
            await store.open()
            await store.queues.create(Queue(name="q"))
            before = (await client.info("stats"))["total_connections_received"]
            for _ in range(20):
                await store.queues.stats()
            after = (await client.info("stats"))["total_connections_received"]
            assert after - before <= 1  # whoever listens may come late
            await store.close()


def test_a_server_would_start_on_it(tmp_path, own_redis):
    victim = Victim(own_redis(DURABLE))
    victim.send("CONFIG", "SET", "requirepass", SECRET)
    url = f"redis://{victim.place}"
    status, rows = checks(tmp_path, "--db-url", url, JQ_DB_PASSWORD=SECRET)
    assert status == 0, rows
    assert rows["store"] == f"ok {url} (durable)"
    status, rows = checks(tmp_path, "--db-url", url, JQ_DB_PASSWORD="wrong")
    assert status != 0
    assert rows["store"].startswith("failing")


async def test_jq_ctl_opens_it(tmp_path, redis_url, open_store):
    await open_store()
    answer = processes.run(
        "ctl", "--url", redis_url, "--output", "json", "queue", "list", cwd=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    assert "q" in [queue["name"] for queue in json.loads(answer.stdout)["queues"]]
