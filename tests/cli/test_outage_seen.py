"""An outage of what a server keeps its jobs in, as operators and probes see it."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import patience
from tests.cli import processes
from tests.hanging import hung

pytestmark = pytest.mark.integration

NAMED_WITHIN = 5.0  # a second is meant; the machine may be busy with other tests
BACK_WITHIN = 60.0


@dataclass
class Kept:
    """A server's store, the word it goes by, and the arguments that name it."""

    server: Any
    name: str
    arguments: tuple[str, ...]


@pytest.fixture(params=["postgresql", "redis"])
def kept(request: pytest.FixtureRequest) -> Kept:
    """A private PostgreSQL, or a private Redis that keeps the jobs."""
    if request.param == "redis":
        redis = request.getfixturevalue("own_redis")()
        return Kept(redis, "Redis", ("--db-url", redis.url))
    postgres = request.getfixturevalue("own_postgres")()
    return Kept(postgres, "PostgreSQL", ("--db-url", postgres.dsn()))


@contextlib.contextmanager
def refused(server: Any) -> Iterator[None]:
    server.kill()
    yield
    server.restart()


@contextlib.contextmanager
def silent(server: Any) -> Iterator[None]:
    with hung(server.pid):
        yield


OUTAGES = [pytest.param(refused, id="refused"), pytest.param(silent, id="hung")]


def asked(url: str) -> tuple[int, Any, float]:
    """Status, body and the time it took."""
    began = time.monotonic()
    try:
        with urllib.request.urlopen(url, timeout=patience.longest(30)) as answer:
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, body = error.code, error.read()
    took = time.monotonic() - began
    return status, json.loads(body) if body.startswith(b"{") else body.decode(), took


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BACK_WITHIN
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.req("jq:FR-042", "jq:NFR-009")
@pytest.mark.parametrize("outage", OUTAGES)
def test_an_outage_of_the_store_is_named_at_once(ctl, tmp_path: Path, kept: Kept, outage):
    with processes.server(tmp_path, *kept.arguments, "--worker-concurrency", "2") as server:
        ready = server.line("ready")
        http, grpc = ready["http"], ready["grpc"]
        assert asked(f"{http}/readyz")[0] == 200
        with outage(kept.server):
            for _ in range(2):  # the second one meets what the first one left behind
                status, body, took = asked(f"{http}/readyz")
                assert status == 503, body
                assert kept.name in body["error"]["message"]
                assert f":{kept.server.port}" in body["error"]["message"]
                assert took < NAMED_WITHIN

                status, body, took = asked(f"{http}/status")
                assert status == 200, body
                assert (body["ok"], body["status"]) == (False, "failing")
                (part,) = [part for part in body["components"] if part["name"] == "database"]
                assert kept.name in part["detail"]
                assert sorted(body["missing"]) == ["queues", "workers"]
                assert took < NAMED_WITHIN

                began = time.monotonic()
                answer = ctl(grpc, "status")
                took = time.monotonic() - began
                assert answer.status == 6, answer
                assert "unreachable" not in answer.out
                assert "failing" in answer.out
                assert kept.name in answer.out
                assert "not known" in answer.out  # the queues
                assert took < NAMED_WITHIN

                found = ctl(grpc, "status", "--output", "json").json
                assert found["server"]["reachable"] is True
                assert found["queues"] is None

                assert asked(f"{http}/healthz")[:2] == (200, "ok\n")
        until(lambda: asked(f"{http}/readyz")[0] == 200)
        answer = ctl(grpc, "status")
        assert answer.status == 0, answer
        assert "not known" not in answer.out
        assert server.stop() == 0
