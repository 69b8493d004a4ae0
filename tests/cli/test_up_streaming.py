"""jq-ctl up streaming: an API, schedulers and workers, on a Redis of its own and a Kafka."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from jobqueue.config import load
from jobqueue.core.errors import InvalidArgument
from jobqueue.fleet.layout import Layout, UpRequest
from jobqueue.fleet.topologies import LAYOUTS
from tests.cli import ups
from tests.cli.ups import Home
from tests.services.run import Run
from tests.services.topics import Topics
from tests.streaming.system import TOPICS


def planned(environ: dict[str, str] | None = None, **more: Any) -> Layout:
    settings = load(environ=environ or {}, flags=more.get("flags", {})).settings
    return LAYOUTS["streaming"](UpRequest(Path("fleet"), settings, **more))


def test_the_processes_and_what_they_are_told() -> None:
    layout = planned(workers=1)
    assert [one.name for one in layout.processes] == [
        "api", "scheduler-1", "scheduler-2", "worker-1",
    ]  # fmt: skip
    assert {one.environment["JQ_PROFILE"] for one in layout.processes} == {"streaming"}
    api, scheduler, _, worker = layout.processes
    roles = [one.environment["JQ_SERVER_ROLE"] for one in (api, scheduler)]
    assert roles == ["api", "scheduler"]
    assert api.needs == {"JQ_DB_URL": "redis", "JQ_KAFKA_BOOTSTRAP": "kafka"}
    assert worker.needs == {"JQ_WORKER_SERVER": "redis", "JQ_KAFKA_BOOTSTRAP": "kafka"}
    assert [(one.name, one.url) for one in layout.services] == [("redis", None), ("kafka", None)]
    assert layout.services[0].settings == {
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory-policy": "noeviction",
    }


def test_named_services_are_used() -> None:
    named = planned(redis="redis://r:1/0", kafka="k:1").services
    assert [one.url for one in named] == ["redis://r:1/0", "k:1"]
    by_environment = planned({"JQ_DB_URL": "redis://r:1/0", "JQ_KAFKA_BOOTSTRAP": "k:1"}).services
    assert [one.url for one in by_environment] == ["redis://r:1/0", "k:1"]
    elsewhere = planned({"JQ_DB_URL": "postgresql://p/x"}).services
    assert elsewhere[0].url is None


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"servers": 2}, "--servers"),
        ({"postgres": "postgresql://p/x"}, "--postgres"),
        ({"nodes": 2}, "--nodes"),
        ({"schedulers": 0}, "--schedulers"),
        ({"flags": {"profile": "producer"}}, "profile"),
        ({"flags": {"server.role": "all"}}, "server.role"),
        ({"flags": {"db.url": "memory://"}}, "db.url"),
        ({"flags": {"http.port": "80"}}, "http.port"),
        ({"flags": {"http.enabled": "false"}}, "http.enabled"),
    ],
)
def test_what_does_not_apply_is_refused(wish: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        planned(**wish)
    assert refused.value.field == field


@pytest.mark.parametrize("other", ["embedded", "replicated", "microservices", "nodes"])
def test_the_others_have_no_schedulers_and_no_kafka(other: str) -> None:
    wishes: list[dict[str, Any]] = [{"schedulers": 2}, {"kafka": "k:1"}]
    for wish in wishes:
        with pytest.raises(InvalidArgument, match="but for `up streaming`"):
            LAYOUTS[other](UpRequest(Path("fleet"), load().settings, **wish))


@pytest.fixture
def home(services: Run) -> Iterator[Home]:
    services.own("redis", {})  # skips or fails where the program is missing
    with ups.home() as made:
        yield made


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.integration
@pytest.mark.timeout(180)
@pytest.mark.req("sch:API", "sch:LOOP", "sch:AOF")
def test_it_works_and_goes_on_without_its_leader(home: Home, kafka: Topics) -> None:
    topics = [f"--set=kafka.topic_{name}={kafka.name(name)}" for name in TOPICS]
    short = ("--set=scheduler.leader_ttl=2", "--set=kafka.replication=1", "--workers=1")
    up = home.up("streaming", "--kafka", kafka.bootstrap, *topics, *short)
    assert [row["name"] for row in up["processes"]] == [
        "redis", "kafka", "api", "scheduler-1", "scheduler-2", "worker-1",
    ]  # fmt: skip
    assert {row["health"] for row in up["processes"]} == {"ok"}
    password = (home.fleet / "redis" / "password").read_text().strip()
    address = home.process("redis")["address"]
    with redis.Redis.from_url(f"redis://:{password}@{address}") as client:
        assert client.config_get("append*")["appendfsync"] == "always"
    (http,) = up["http"]
    status = home.json("--server", up["grpc"][0], "status")
    assert status["connectivity"]["kafka"].startswith("ok")
    assert status["active_workers"] == 1

    def done(count: int) -> None:
        for _ in range(count):
            body = {"type": "echo", "payload": {"number": 1}}
            made = httpx.post(f"{http}/jobs", json=body, trust_env=False)
            assert made.status_code == 202, made.text

    def succeeded() -> int:
        found = httpx.get(f"{http}/queues/default", trust_env=False).json()
        return int(found["depth"]["SUCCESS"])

    done(5)
    ups.wait(lambda: succeeded() == 5, "five jobs are done")
    leads = [
        row["pid"]
        for row in up["processes"]
        if row["role"] == "scheduler"
        and "this server leads" in (home.fleet / "logs" / f"{row['name']}.log").read_text()
    ]
    assert len(leads) == 1
    os.kill(leads[0], signal.SIGKILL)
    done(5)
    ups.wait(lambda: succeeded() == 10, "and five more")
    assert home.json("down")["down"][0]["killed"] == []
