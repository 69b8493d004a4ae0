"""jq-ctl up replicated: two servers, two workers, PostgreSQL and Redis, and the page about it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import patience, ports
from tests.cli import ups
from tests.cli.ups import Home, gone
from tests.services.run import Run
from tests.test_readme import desk, environment  # noqa: F401

PAGE = (Path(__file__).parents[2] / "docs" / "topologies.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


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


@pytest.fixture
def open_desk(desk: Path, home: Home) -> Path:  # noqa: F811
    """The files of the README in a folder that services may enter."""
    for path in desk.iterdir():
        path.rename(home.folder / path.name)
    return home.folder


@pytest.mark.integration
@pytest.mark.parametrize("number", [0, 1])
def test_the_commands_of_the_page_work(number, open_desk, home):
    assert len(BLOCKS) == 2
    http, grpc = str(ports.take()), str(ports.take())
    text = BLOCKS[number].replace("8080", http).replace("50051", grpc)
    prelude = f"""
        set -euo pipefail
        jq-ctl() {{ command jq-ctl --server 127.0.0.1:{grpc} "$@"; }}
    """
    if number == 1:
        prelude = "set -euo pipefail\n"
    ran = subprocess.run(
        ["bash", "-c", textwrap.dedent(prelude) + text],
        cwd=open_desk,
        env=environment(open_desk) | home.environ,
        capture_output=True,
        text=True,
        timeout=patience.longest(120),
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert "is up (" in ran.stdout
    assert ("world", '"to": "a@b.c"')[number] in ran.stdout
    assert "is down (it was up)" in ran.stdout
