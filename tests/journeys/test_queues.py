"""Only the URL changes: an app that names its queues, on a file and behind a server; and a worker
that is drained and taken back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.journeys.machine import Machine

TASKS = """
import os

from jobqueue import JobQueue, QueueSpec

app = JobQueue(os.environ["JOBS"], queues=[QueueSpec(name="mail", capacity=100)])


@app.task(queue="mail")
async def send(to: str) -> str:
    return f"sent to {to}"


@app.task(cron="0 3 * * *", queue="nightly")
async def tidy() -> None: ...


if __name__ == "__main__":
    app.run_worker()
"""
SUBMIT = """
from tasks import app, send

with app.sync() as q:
    print(q.submit(send, "a@b.c").id)
"""


@pytest.fixture(params=["sqlite", "grpc"])
def url(request: pytest.FixtureRequest, machine: Machine) -> Iterator[str]:
    if request.param == "sqlite":
        yield "sqlite:///jobs.db"
        return
    ports = ("--http-port", "0", "--grpc-port", "0", "--worker-concurrency", "0")
    server = machine.start("jq-server", *ports)
    yield f"grpc://{json.loads(server.line_with('ready'))['grpc']}"
    assert server.stop() == 0


def names(machine: Machine, url: str) -> dict[str, int | None]:
    listed = machine.succeed("jq-ctl", "--url", url, "-o", "json", "queue", "list")
    return {queue["name"]: queue["capacity"] for queue in json.loads(listed)["queues"]}


@pytest.mark.parametrize(
    "command", [("python", "tasks.py"), ("jq-worker", "--app", "tasks:app")], ids=lambda c: c[0]
)
def test_only_the_url_changes(machine: Machine, url: str, command: tuple[str, ...]) -> None:
    machine.write("tasks.py", TASKS)
    machine.write("submit.py", SUBMIT)
    job = machine.succeed("python", "submit.py", JOBS=url).strip()
    made = names(machine, url)
    assert made.keys() == {"default", "mail", "nightly"}
    assert (made["mail"], made["default"] != 100) == (100, True)
    worker = machine.start(*command, JOBS=url, JQ_WORKER_METRICS_PORT="0")
    watched = machine.succeed("jq-ctl", "--url", url, "job", "watch", job)
    assert "DONE" in watched
    assert worker.stop() == 0
    assert not [line for line in worker.printed if "does not exist" in line]

    typo = machine.run("jq-ctl", "--url", url, "job", "submit", "mial", "1")
    assert typo.returncode == 4
    assert "jq-ctl queue create mial" in typo.stderr


def test_a_worker_starts_before_its_queue(machine: Machine, url: str) -> None:
    machine.write("tasks.py", TASKS)
    words = ("jq-worker", "--app", "tasks:app", "--queues", "urgent", "--metrics-port", "0")
    worker = machine.start(*words, "--url", url, JOBS=url)
    line = json.loads(worker.line_with("does not exist"))
    assert (line["level"], line["queue"]) == ("WARNING", "urgent")
    assert line["message"].endswith("create it with: jq-ctl queue create urgent")
    machine.succeed("jq-ctl", "--url", url, "queue", "create", "urgent")
    submit = ("job", "submit", "urgent", '{"to": "you"}', "--type", "send")
    job = machine.succeed("jq-ctl", "--url", url, *submit).strip()
    assert "DONE" in machine.succeed("jq-ctl", "--url", url, "job", "watch", job)
    worker.line_with("queue 'urgent' exists now")
    assert worker.stop() == 0


def test_a_drained_worker_is_taken_back(machine: Machine, url: str) -> None:
    machine.write("tasks.py", TASKS)
    machine.write("submit.py", SUBMIT)
    words = ("jq-worker", "--app", "tasks:app", "--id", "w1", "--metrics-port", "0")
    worker = machine.start(*words, "--url", url, JOBS=url)
    worker.line_with('"message": "ready')
    operate = ("jq-ctl", "--url", url, "worker")
    assert machine.succeed(*operate, "drain", "w1") == "Worker w1 is draining\n"
    worker.line_with("draining")
    job = machine.succeed("python", "submit.py", JOBS=url).strip()
    state = json.loads(machine.succeed("jq-ctl", "--url", url, "-o", "json", "job", "status", job))
    assert state["status"] == "PENDING"
    assert machine.succeed(*operate, "undrain", "w1") == "Worker w1 takes jobs again\n"
    worker.line_with("taking jobs again")
    assert "DONE" in machine.succeed("jq-ctl", "--url", url, "job", "watch", job)
    unknown = machine.run(*operate, "undrain", "w2")
    assert (unknown.returncode, "there is no worker 'w2'" in unknown.stderr) == (4, True)
    machine.succeed(*operate, "shutdown", "w1")
    assert worker.wait() == 0
