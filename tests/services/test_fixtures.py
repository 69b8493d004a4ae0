"""What tests get from the plugin, and when they get nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import asyncpg
import pytest
import redis

from tests.services.conftest import InnerRun
from tests.services.plugin import OwnPostgres, OwnRedis

# -- a database of one's own --------------------------------------------------------------------


@pytest.fixture
def second_dsn(request: pytest.FixtureRequest, postgres_dsn: str) -> Iterator[str]:
    """Another database, as another test would get it at the same time."""
    databases = request.getfixturevalue("services").databases
    name = databases.create()
    yield databases.dsn(name)
    databases.drop(name)


async def test_two_databases_are_separate(postgres_dsn: str, second_dsn: str) -> None:
    assert postgres_dsn != second_dsn
    first, second = await asyncpg.connect(postgres_dsn), await asyncpg.connect(second_dsn)
    await first.execute("CREATE TABLE mine ()")
    assert await first.fetchval("SELECT to_regclass('mine')::text") == "mine"
    assert await second.fetchval("SELECT to_regclass('mine')::text") is None
    await first.close()
    await second.close()


TABLES = (
    "SELECT count(*) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
)


async def test_a_database_has_the_schema_and_an_empty_one_has_not(
    postgres_dsn: str, empty_postgres_dsn: str
) -> None:
    full, empty = await asyncpg.connect(postgres_dsn), await asyncpg.connect(empty_postgres_dsn)
    assert await full.fetchval(TABLES) > 0
    assert await empty.fetchval(TABLES) == 0
    await full.close()
    await empty.close()


async def test_a_template_is_prepared_once(
    services, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare(dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute("CREATE TABLE from_the_template ()")
        await connection.close()

    databases = services.databases
    monkeypatch.setattr(databases, "template", f"{databases.template}_of_this_test")
    databases.make_template(prepare)
    databases.make_template(prepare)  # it is there: not prepared a second time
    name = databases.create()
    try:
        copy = await asyncpg.connect(databases.dsn(name))
        assert await copy.fetchval("SELECT to_regclass('from_the_template')::text")
        await copy.close()
    finally:
        databases.drop(name)
        databases.drop(databases.template)


async def test_the_shared_postgres_is_durable(postgres_dsn: str) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    assert await connection.fetchval("SHOW fsync") == "on"
    await connection.close()


@pytest.mark.parametrize("test", ["one", "another"])
def test_redis_is_empty(redis_url: str, test: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_no_test_can_empty_the_redis_databases_of_others(redis_url: str) -> None:
    with (
        redis.Redis.from_url(redis_url) as client,
        pytest.raises(redis.ResponseError, match="unknown command"),
    ):
        client.flushall()


def test_own_servers_are_nobody_elses(
    postgres_dsn: str, redis_url: str, own_postgres: OwnPostgres, own_redis: OwnRedis
) -> None:
    first, second = own_redis(), own_redis({"databases": "3"})
    assert len({first.url, second.url, redis_url}) == 3
    first.kill()
    assert second.alive()
    postgres = own_postgres()
    assert str(postgres.port) not in postgres_dsn
    postgres.stop("immediate")
    assert not postgres.alive()


# -- where a service is missing -----------------------------------------------------------------

MISSING = """
import dataclasses
from tests.services.catalog import SERVICES

for name, service in SERVICES.items():
    SERVICES[name] = dataclasses.replace(service, find=lambda: None)

def test_database(postgres_dsn): ...
def test_redis(redis_url): ...
def test_server(own_postgres): own_postgres()
def test_topics(kafka): ...
def test_scrapes(own_prometheus): own_prometheus()
"""


def test_a_test_without_its_service_is_skipped_with_the_way_to_get_it(inner_run: InnerRun) -> None:
    done = inner_run(MISSING)
    assert done.returncode == 0, done.stdout
    assert "5 skipped" in done.stdout
    assert "postgres is not installed here" in done.stdout
    assert "scripts/services ensure postgres" in done.stdout
    assert "JQ_TEST_POSTGRES_DSN" in done.stdout
    assert "scripts/services ensure redis" in done.stdout
    assert "scripts/services ensure kafka" in done.stdout


def test_a_service_that_is_required_must_not_be_missing(inner_run: InnerRun) -> None:
    done = inner_run(MISSING, JQ_TEST_REQUIRE="postgres")
    assert done.returncode == 1, done.stdout
    assert "1 failed, 3 skipped, 1 error" in done.stdout
    assert "JQ_TEST_REQUIRE names it" in done.stdout
    assert "scripts/services ensure postgres" in done.stdout
    done = inner_run(MISSING, "-n", "1", JQ_TEST_REQUIRE=" redis , postgres,kafka,prometheus")
    assert done.returncode == 1, done.stdout
    assert "skipped" not in done.stdout


def test_an_unknown_service_cannot_be_required(inner_run: InnerRun) -> None:
    done = inner_run("def test_nothing(): ...", JQ_TEST_REQUIRE="postgres,rabbit")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    known = "postgres, redis, kafka, prometheus, chromium"
    assert f"JQ_TEST_REQUIRE: unknown service rabbit; known are {known}" in done.stderr


# -- the marker ---------------------------------------------------------------------------------

MARKED = """
import pytest

@pytest.fixture
def mine(redis_url): return redis_url

def test_asks(redis_url): ...
def test_asks_by_way_of_another(mine): ...
def test_asks_for_nothing(): ...
"""


def test_a_test_that_asks_for_a_server_is_marked(inner_run: InnerRun) -> None:
    done = inner_run(MARKED, "-m", "integration", "--collect-only")
    assert "test_asks" in done.stdout
    assert "test_asks_by_way_of_another" in done.stdout
    assert "test_asks_for_nothing" not in done.stdout


def test_a_test_that_asks_in_secret_has_to_be_marked(inner_run: InnerRun) -> None:
    done = inner_run("def test_it(request): request.getfixturevalue('redis_url')")
    assert done.returncode == 1
    assert "needs @pytest.mark.integration" in done.stdout


# -- a server that was named --------------------------------------------------------------------

NAMED = """
import os

def test_it(postgres_dsn, redis_url, services):
    assert postgres_dsn.rpartition("/")[0] == os.environ["JQ_TEST_POSTGRES_DSN"].rpartition("/")[0]
    assert redis_url == os.environ["JQ_TEST_REDIS_URL"]
    assert not (services.place.folder / "postgres").exists()
    assert not (services.place.folder / "redis").exists()

def test_crash(postgres_dsn):
    if "CRASH" in os.environ:
        os._exit(1)
"""


@pytest.mark.parametrize("crash", [{}, {"CRASH": "1"}], ids=["well", "crash"])
async def test_named_servers_are_used_and_left_as_they_were(
    inner_run: InnerRun, own_postgres: OwnPostgres, own_redis: OwnRedis, crash: dict[str, str]
) -> None:
    postgres, private_redis = own_postgres(), own_redis()
    done = inner_run(
        NAMED,
        *("-n", "1"),
        JQ_TEST_POSTGRES_DSN=postgres.dsn(),
        JQ_TEST_REDIS_URL=private_redis.url,
        PATH=os.environ["PATH"],
        **crash,
    )
    assert done.returncode == (1 if crash else 0), done.stdout
    connection = await asyncpg.connect(postgres.dsn())
    names = await connection.fetch("SELECT datname FROM pg_database ORDER BY 1")
    assert [name["datname"] for name in names] == ["postgres", "template0", "template1"]
    await connection.close()
    assert private_redis.alive()
