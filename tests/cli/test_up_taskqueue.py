"""jq-ctl up microservices and up nodes, through the real programs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from jobqueue.cli import ctl as program
from jobqueue.taskqueue.components.model import Spec, Status
from jobqueue.taskqueue.components.ownership import owner_index
from tests import patience
from tests.cli import ups
from tests.cli.ups import Foreground, Home, gone, wait
from tests.taskqueue.startup.test_designs import client, result_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def home() -> Iterator[Home]:
    with ups.home() as made:
        yield made


def run_a_job(target: str) -> str:
    """Its id, once it is done."""

    async def body() -> str:
        async with client(target) as queue:
            job = await queue.submit(
                Spec("short", payload_size_bytes=2), "", timeout=patience.longest(20)
            )
            found = await result_of(queue, job.job_id)
            assert (found.status, found.output) == (Status.DONE, b"xx")
            return job.job_id

    return asyncio.run(body())


@pytest.mark.req("tq:STARTUP", "tq:FR-1", "tq:FR-3")
def test_microservices_go_up_and_down_and_up_again_one_by_one(home: Home) -> None:
    up = home.up("microservices")
    assert (up["topology"], up["condition"], up["api"]) == ("microservices", "up", "taskqueue.v1")
    names = ["job", "queue", "result", "coordinator", "gateway", "worker"]
    assert [process["name"] for process in up["processes"]] == names
    assert {process["health"] for process in up["processes"]} == {"ok"}
    run_a_job(up["grpc"][0])
    table = home.ctl("ps").stdout.splitlines()
    assert [line.split()[0] for line in table[2:8]] == names

    os.kill(home.process("queue")["pid"], signal.SIGKILL)
    wait(lambda: home.process("queue")["restarts"] == 1, "the queue service is started again")
    wait(lambda: home.process("queue")["health"] == "ok", "it is well again")
    run_a_job(up["grpc"][0])

    assert home.json("down")["down"][0]["killed"] == []
    assert all(gone(process["pid"]) for process in up["processes"])
    assert '"event": "state_lost"' in (home.fleet / "logs" / "job.log").read_text()


@pytest.mark.req("tq:INGRESS", "tq:LOCK-27")
def test_nodes_go_up_and_down(home: Home) -> None:
    with Foreground(home, "nodes", "--nodes", "2") as up:
        up.line("nodes is up")
        up.line("gRPC (taskqueue.v1):")
        up.line("Stop:")
        assert not any(line.startswith("Try:") for line in up.lines)  # jq-ctl does not speak it
        state = home.ps()
        assert [process["name"] for process in state["processes"]] == ["node-0", "node-1"]
        for index, target in enumerate(state["grpc"]):
            assert owner_index(run_a_job(target), 2) == index
        assert up.stop() == 0
    assert all(gone(process["pid"]) for process in state["processes"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nodes", "--nodes", "101"], "--nodes: must be 1 to 100"),
        (["microservices", "--workers", "2"], "--workers: is not for the microservices topology"),
        (["microservices", "--app", "a:b"], "worker.app: is not for the microservices topology"),
        (["embedded", "--nodes", "2"], "--nodes: is not for the embedded topology, but"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(tmp_path, monkeypatch, capfd, words, said):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert program.run(["up", *words]) == 2
    assert said in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
