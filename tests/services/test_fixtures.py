"""What tests get from the plugin."""

from __future__ import annotations

import asyncpg
import pytest
import redis


@pytest.fixture
def another_dsn(request):
    return None


async def test_a_database_is_fresh(postgres_dsn):
    c = await asyncpg.connect(postgres_dsn)
    await c.execute("create table x()")
    await c.close()


async def test_a_database_is_fresh2(postgres_dsn):
    c = await asyncpg.connect(postgres_dsn)
    await c.execute("create table x()")
    await c.close()


def test_r(redis_url):
    with redis.Redis.from_url(redis_url) as c:
        assert c.set("a", "b", nx=True)


def test_r2(redis_url):
    with redis.Redis.from_url(redis_url) as c:
        assert c.set("a", "b", nx=True)


def test_own(own_postgres, own_redis):
    p = own_postgres()
    p.kill()
    p.start()
    p = own_redis()
    p.kill()
    p.start()
