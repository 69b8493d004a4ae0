"""``jq-ctl status`` and /readyz of a server on PostgreSQL and Redis."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.request

import asyncpg
import pytest

from tests import patience
from tests.cli import processes

NOTICED_WITHIN = 20.0  # an idle server looks every five seconds


def parts(answer) -> dict[str, str]:
    return dict(
        re.split(r": +", line, maxsplit=1) for line in answer.out.splitlines() if ": " in line
    )


@pytest.mark.req("jq:FR-042", "jq:NFR-009")
def test_redis_is_shown_and_is_not_needed(ctl, tmp_path, postgres_dsn, own_redis):
    redis = own_redis()
    with processes.server(
        tmp_path, "--db-url", postgres_dsn, "--redis-url", redis.url, "--worker-concurrency", "2"
    ) as server:
        ready = server.line("ready")
        answer = ctl(ready["grpc"], "status")
        assert answer.status == 0
        shown = parts(answer)
        assert shown["DB"].startswith("ok (postgresql")
        assert shown["Redis"] == f"ok (127.0.0.1:{redis.port}/0)"

        redis.kill()
        limit = patience.Limit(NOTICED_WITHIN)
        while shown["Redis"].startswith("ok"):
            assert not limit.over, shown
            time.sleep(0.1)
            answer = ctl(ready["grpc"], "status")
            shown = parts(answer)
        assert answer.status == 0  # the server is well without it
        assert "dispatch goes on under PostgreSQL's row locks" in shown["Redis"]
        with urllib.request.urlopen(f"{ready['http']}/readyz") as response:
            assert response.status == 200
        done = ctl(ready["grpc"], "job", "submit", "default", "1", "--type", "echo", "--wait")
        assert done.status == 0, done

        redis.restart()
        server.line(f"Redis at 127.0.0.1:{redis.port}/0 is back")
        assert parts(ctl(ready["grpc"], "status"))["Redis"].startswith("ok")
        assert server.stop() == 0
        assert len([one for one in server.lines if "is unavailable" in one["message"]]) == 1
    direct = ctl(postgres_dsn, "status")
    assert direct.status == 0
    assert parts(direct)["Redis"] == "not configured"


@pytest.mark.req("jq:FR-042")
def test_a_store_opened_directly_shows_the_redis_of_the_environment(
    ctl, monkeypatch, postgres_dsn, redis_url
):
    monkeypatch.setenv("JQ_REDIS_URL", redis_url)
    shown = parts(ctl(postgres_dsn, "status"))
    assert shown["DB"].startswith("ok (postgresql")
    assert shown["Redis"].startswith("ok (")


@pytest.mark.req("jq:NFR-020")
@pytest.mark.parametrize(
    "look", [("status",), ("queue", "list"), ("job", "list", "--status", "DEAD_LETTERED")]
)
def test_a_look_at_a_database_without_a_job_queue_creates_none(
    ctl, runner, empty_postgres_dsn, look
):
    """Whoever looks may have named the wrong database; jq-server migrates, nobody else."""
    answer = ctl(empty_postgres_dsn, *look)
    assert answer.status != 0
    assert "there is no job queue in this database yet" in answer.err
    assert runner.run(tables(empty_postgres_dsn)) == []


async def tables(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return [row[0] for row in rows]
    finally:
        await connection.close()


def figure(http: str, name: str) -> float:
    with urllib.request.urlopen(f"{http}/metrics") as response:
        lines = response.read().decode().splitlines()
    (value,) = [line.split()[1] for line in lines if line.split()[0] == name]
    return float(value)


@pytest.mark.req("jq:FR-042")
def test_every_server_tells_which_one_leads(ctl, tmp_path, postgres_dsn):
    with (
        processes.server(tmp_path, "--db-url", postgres_dsn) as one,
        processes.server(tmp_path, "--db-url", postgres_dsn) as two,
    ):
        both = [(server, server.line("ready")) for server in (one, two)]
        deadline = time.monotonic() + NOTICED_WITHIN
        while (leads := [figure(ready["http"], "jq_leader") for _, ready in both]) == [0.0, 0.0]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert sorted(leads) == [0.0, 1.0]
        leader, ready = both[leads.index(1.0)]
        assert figure(ready["http"], "jq_leader_epoch") >= 1.0
        named = f"{socket.gethostname()}:{leader.process.pid} since "
        for _, at in both:
            assert parts(ctl(at["grpc"], "status"))["Leader"].startswith(named)
            with urllib.request.urlopen(f"{at['http']}/status") as response:
                (part,) = [
                    part
                    for part in json.loads(response.read())["components"]
                    if part["name"] == "leader"
                ]
            assert part["detail"].startswith(named)
        assert parts(ctl(postgres_dsn, "status"))["Leader"].startswith(named)


@pytest.mark.req("jq:FR-042")
def test_a_redis_that_keeps_the_jobs_is_shown_as_configured(ctl, tmp_path, own_redis):
    redis = own_redis({"appendonly": "yes", "appendfsync": "always"})
    with processes.server(tmp_path, "--db-url", redis.url) as server:
        ready = server.line("ready")
        shown = parts(ctl(ready["grpc"], "status"))
        assert shown["DB"] == "ok (redis, durable)"
        assert shown["Redis"] == "ok (keeps the jobs: see DB)"
        assert server.stop() == 0
