"""jq-ctl up replicated: two servers, two workers, PostgreSQL and Redis."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.cli import ups
from tests.cli.ups import Home, gone
from tests.services.run import Run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def home(services: Run) -> Iterator[Home]:
    for name in ("postgres", "redis"):
        services.own(name, {})  # skips or fails where the programs are missing
    with ups.home() as made:
        yield made


def submit(home: Home, server: str, *args: str) -> subprocess.CompletedProcess[str]:
    return home.ctl("--server", server, "job", "submit", "default", '"hello"', *args)


def done_jobs(home: Home, server: str) -> int:
    (queue,) = home.json("--server", server, "queue", "list")["queues"]
    return queue["depth"]["DONE"]


@pytest.mark.integration
@pytest.mark.faults
@pytest.mark.req("jq:NFR-023")
def test_it_works_goes_on_without_a_server_and_comes_back_with_its_jobs(home):
    up = home.up("replicated", "--concurrency", "2")
    assert [row["name"] for row in up["processes"]] == [
        "postgres", "redis", "server-1", "server-2", "worker-1", "worker-2",
    ]  # fmt: skip
    assert {row["health"] for row in up["processes"]} == {"ok"}
    one, two = up["grpc"]
    status = home.json("--server", two, "status")
    assert status["connectivity"]["db"].startswith("ok")
    assert status["connectivity"]["redis"].startswith("ok")
    assert status["active_workers"] == 2
    workers = home.json("--server", one, "worker", "list")["workers"]
    assert {worker["concurrency"] for worker in workers} == {2}
    assert submit(home, one, "--count", "50").returncode == 0
    ups.wait(lambda: done_jobs(home, two) == 50, "the other server sees 50 jobs done")

    killed = next(row["pid"] for row in up["processes"] if row["name"] == "server-1")
    os.kill(killed, signal.SIGKILL)
    assert submit(home, two, "--count", "50").returncode == 0
    ups.wait(lambda: done_jobs(home, two) == 100, "another 50 jobs are done")
    ups.wait(
        lambda: home.process("server-1")["health"] == "ok" and home.process("server-1")["restarts"],
        "server-1 is back",
    )
    assert submit(home, one, "--wait").returncode == 0

    running = [row["pid"] for row in home.ps()["processes"]]
    assert home.json("down")["down"][0]["killed"] == []
    assert all(map(gone, running))
    again = home.up("replicated", "--servers", "1", "--workers", "0")
    assert done_jobs(home, again["grpc"][0]) == 101


@pytest.mark.integration
def test_named_services_by_environment(home, empty_postgres_dsn, redis_url):
    names = {"JQ_DB_URL": empty_postgres_dsn, "JQ_REDIS_URL": redis_url}
    up = home.up("replicated", "--servers", "1", "--workers", "1", **names)
    rows = {row["name"]: row for row in up["processes"]}
    assert rows["postgres"]["address"].endswith("(named)")
    assert rows["redis"]["address"].endswith("(named)")
    assert not (home.fleet / "postgres").exists()
    assert submit(home, up["grpc"][0], "--wait").returncode == 0
    assert home.ctl("down").returncode == 0
    again = home.up("replicated", "--servers", "1", "--workers", "0", **names)  # both still there
    assert again["condition"] == "up"
