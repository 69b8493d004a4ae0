"""python -m scripts.healthcheck: its exit status and its one line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobqueue.taskqueue.designs import catalogue
from scripts import healthcheck, taskqueue_doc
from tests import patience, ports
from tests.taskqueue.fleet import REQUIRED

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.req("tq:HEALTH")


@pytest.fixture
def listener() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


@pytest.fixture
def closed() -> tuple[str, int]:
    return "127.0.0.1", ports.take()


@pytest.mark.parametrize("mode", ["tcp", "worker"])
def test_one_that_answers_is_healthy(listener, mode, capsys) -> None:
    host, port = listener
    status = healthcheck.main(
        ["--mode", mode, "--target", f"{host}:{port}", "--timeout-ms", "5000", "--service", "job"]
    )
    assert status == 0
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line.keys() >= REQUIRED
    assert (line["service"], line["event"], line["mode"]) == ("job", "healthy", mode)
    assert line["target"] == f"{host}:{port}"


@pytest.mark.parametrize("mode", ["tcp", "worker"])
def test_one_that_does_not_answer_is_not(closed, mode, capsys) -> None:
    host, port = closed
    assert healthcheck.main(["--mode", mode, "--target", f"{host}:{port}"]) == 1
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["level"], line["event"]) == ("ERROR", "unhealthy")
    assert "refused" in line["message"]


def test_a_name_that_takes_too_long_to_find_is_given_up(monkeypatch, capsys) -> None:
    release = threading.Event()

    def slow(*args: object, **more: object) -> socket.socket:
        release.wait(5)  # who waited for this would be told of the error
        raise OSError("too late")

    monkeypatch.setattr(socket, "create_connection", slow)
    try:
        assert healthcheck.main(["--mode=tcp", "--target=x:1", "--timeout-ms=20"]) == 1
    finally:
        release.set()
    assert "no answer within 20 ms" in json.loads(capsys.readouterr().out)["message"]


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--mode", "tcp"],
        ["--target", "a:1"],
        ["--mode", "http", "--target", "a:1"],
        ["--mode", "tcp", "--target", "a"],
        ["--mode", "tcp", "--target", ":1"],
        ["--mode", "tcp", "--target", "a:0"],
        ["--mode", "tcp", "--target", "a:1", "--timeout-ms", "0"],
        ["--mode", "tcp", "--target", "a:1", "--timeout-ms", "soon"],
    ],
)
def test_a_wrong_command_line_is_never_healthy(args, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        healthcheck.main(args)
    assert ended.value.code == 2
    assert "usage: python -m scripts.healthcheck" in capsys.readouterr().err


def test_the_timeout_is_a_second_unless_told() -> None:
    args = healthcheck.parser().parse_args(["--mode", "tcp", "--target", "[::1]:50051"])
    assert (args.timeout_ms, args.service, args.target) == (1000, "", ("::1", 50051))


@pytest.mark.parametrize(("there", "status"), [(True, 0), (False, 1)])
def test_the_command_of_the_document(listener, closed, there, status) -> None:
    """With the standard library alone: -S leaves out what is installed."""
    host, port = listener if there else closed
    words = ["--mode", "tcp", "--target", f"{host}:{port}", "--timeout-ms", "5000"]
    words += ["--service", "gateway"]
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "scripts.healthcheck", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patience.longest(30),
    )
    assert ended.returncode == status, ended.stderr
    assert json.loads(ended.stdout)["service"] == "gateway"


def test_each_service_is_asked_as_the_document_says() -> None:
    asked = {service.name: taskqueue_doc.healthcheck(service) for service in catalogue.DESIGN_A}
    command = "python -m scripts.healthcheck --mode"
    listening = ("gateway", "job", "queue", "coordinator", "result")
    assert asked == {
        **{
            name: f"{command} tcp --target 127.0.0.1:${{{name.upper()}_PORT}} --service {name}"
            for name in listening
        },
        "worker": f"{command} worker --target ${{COORDINATOR_ADDR}} --service worker",
    }


def test_containers_are_asked_when_the_document_says() -> None:
    timing = taskqueue_doc.HEALTH_TIMING
    assert timing == taskqueue_doc.HealthTiming(interval=5, timeout=2, retries=12, start_period=20)
    default = healthcheck.parser().parse_args(["--mode", "tcp", "--target", "host:1"])
    assert default.timeout_ms == 1_000  # it has answered before the container gives it up
    assert default.timeout_ms < timing.timeout * 1_000
