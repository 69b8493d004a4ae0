"""``jq-server --dry-run`` on PostgreSQL and Redis: it looks, and changes nothing."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from jobqueue.cli import dryrun
from jobqueue.config import Settings
from tests.cli import processes

SECRET = "hush-hush"


@pytest.fixture
def silent() -> Iterator[str]:
    """A place that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def checks(tmp_path, *args: str, **environ: Any) -> tuple[int, dict[str, str]]:
    """The exit status, and the row of each check as one line."""
    answer = processes.run(
        "server", "--dry-run", "--http-port", "0", "--grpc-port", "0", *args,
        cwd=tmp_path, **environ,
    )  # fmt: skip
    assert "Traceback" not in answer.stderr
    assert SECRET not in answer.stdout + answer.stderr
    table = answer.stdout.partition("\nCHECK")[2].splitlines()[1:]
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in table if line.strip()}
    return answer.returncode, rows


async def tables(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT schemaname || '.' || tablename AS name FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        return [row["name"] for row in rows]
    finally:
        await connection.close()


@pytest.mark.req("jq:FR-046")
def test_both_are_well(tmp_path, victim, empty_postgres_dsn):
    victim.send("CONFIG", "SET", "requirepass", SECRET)
    status, rows = checks(
        tmp_path, "--db-url", empty_postgres_dsn, "--redis-url", victim.url,
        JQ_REDIS_PASSWORD=SECRET,
    )  # fmt: skip
    assert status == 0, rows
    assert rows["store"].startswith("ok postgresql://")
    assert "(PostgreSQL " in rows["store"]
    assert rows["redis"] == f"ok 127.0.0.1:{victim.port}/0"
    assert rows["app"] == "not configured no built-in pool: jobs wait for a jq-worker"
    assert asyncio.run(tables(empty_postgres_dsn)) == []  # a start makes them, a look does not


@pytest.mark.req("jq:FR-046")
def test_redis_is_not(tmp_path, victim, postgres_dsn):
    victim.signal(signal.SIGSTOP)
    status, rows = checks(tmp_path, "--db-url", postgres_dsn, "--redis-url", victim.url)
    assert status == 1
    assert rows["store"].startswith("ok ")
    assert rows["redis"].startswith(f"failing 127.0.0.1:{victim.port}/0: no answer within")


@pytest.mark.req("jq:FR-046")
def test_a_wrong_password_of_redis(tmp_path, victim, postgres_dsn):
    victim.send("CONFIG", "SET", "requirepass", "another")
    status, rows = checks(
        tmp_path, "--db-url", postgres_dsn, "--redis-url", victim.url,
        JQ_REDIS_PASSWORD=SECRET,
    )  # fmt: skip
    assert status == 1
    assert rows["redis"].startswith("failing ")


@pytest.mark.req("jq:FR-046")
@pytest.mark.parametrize("known", [False, True])
def test_postgresql_is_not(tmp_path, postgres_dsn, known):
    dsn = urlsplit(postgres_dsn)
    url = dsn._replace(path="/there_is_no_such_database").geturl()
    if not known:
        url = "postgresql://jq@127.0.0.1:1/jobs"
    status, rows = checks(tmp_path, "--db-url", url, JQ_DB_PASSWORD=SECRET)
    assert status == 1
    assert rows["store"].startswith("failing PostgreSQL cannot be reached: ")
    assert rows["redis"] == "not configured"


@pytest.mark.req("jq:FR-046")
async def test_postgresql_that_never_answers(silent, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dryrun, "_TIMEOUT", 0.3)
    settings = Settings.model_validate({"db": {"url": f"postgresql://jq@{silent}/jobs"}})
    assert await dryrun._store(settings) == (
        "store", dryrun.FAILING, "PostgreSQL does not answer within 0.3 s",
    )  # fmt: skip


def test_redis_is_not_used_without_postgresql(tmp_path):
    status, rows = checks(tmp_path, "--redis-url", "redis://127.0.0.1:1")
    assert status == 0
    assert rows["redis"] == "not configured not used: only a store on PostgreSQL needs it"


def test_a_bad_redis_url(tmp_path):
    status, rows = checks(tmp_path, "--redis-url", f"http://:{SECRET}@127.0.0.1")
    assert status == 1
    assert rows["redis"].startswith("failing redis.url: 'http://:***@127.0.0.1' is not a known")
