"""A service breaks and comes back: its task is paused, shown, tried and taken again."""

from __future__ import annotations

import json
from typing import Any

from tests import patience
from tests.journeys.machine import Machine
from tests.journeys.pages import blocks

APP = """
import os
from pathlib import Path

from jobqueue import Breaker, JobQueue

app = JobQueue(os.environ["JOBS"])


@app.task(max_retries=50, backoff=0.1, breaker=Breaker(failures=3, pause=PAUSE))
async def pay(order: int) -> str:
    with open("calls.txt", "a") as file:
        print(order, file=file)
    if not Path("service").exists():
        raise ConnectionError("the service is away")
    return f"paid {order}"


@app.task
async def greet(name: str) -> str:
    return f"hello {name}"
"""


def test_a_broken_service_is_left_alone_and_found_again(machine: Machine) -> None:
    server = machine.start("jq-server", "--http-port", "0", "--grpc-port", "0")
    ready = json.loads(server.line_with('"message": "ready'))
    url = f"grpc://{ready['grpc']}"
    machine.write("app.py", APP.replace("PAUSE", "3"))
    worker = machine.start(
        "jq-worker", "--app", "app:app", "--id", "w1", "--concurrency", "1", JOBS=url
    )
    worker.line_with("ready: taking jobs")

    def ctl(*command: str) -> str:
        return machine.succeed("jq-ctl", "--server", ready["grpc"], *command)

    def status(job_id: str) -> Any:
        return json.loads(ctl("--output", "json", "job", "status", job_id))

    # The queue's three retries would be used up by trials, however slow this machine is.
    submit = ("job", "submit", "default", '{"order": 1}', "--type", "pay", "--max-retries", "999")
    ids = [ctl(*submit).strip() for _ in range(3)]
    worker.line_with("3 attempts of task pay failed in a row")

    # The operator sees it: in the list, of the worker, in JSON, and at a job that waits.
    assert "ONLINE (1 paused)" in ctl("worker", "list")
    assert "failed attempts in a row; it tries one job" in ctl("worker", "show", "w1")
    (paused,) = json.loads(ctl("--output", "json", "worker", "show", "w1"))["breakers"]
    assert paused["type"] == "pay"
    assert paused["failures"] >= 3
    last = ctl(*submit).strip()
    hint = status(last)["hint"]
    assert "workers of type 'pay'" in hint
    assert "failed attempts in a row (breaker)" in hint

    # Its other task goes on.
    greeted = ctl("job", "submit", "default", '{"name": "you"}', "--type", "greet", "--wait")
    assert "hello you" in greeted

    # A trial fails, and the pause begins anew; then the service is back.
    worker.line_with("4 attempts of task pay failed in a row")
    machine.write("service", "here")
    limit = patience.Limit(60)
    while {status(job_id)["status"] for job_id in [*ids, last]} != {"DONE"}:
        assert not limit.over
    worker.line_with("task pay works again")
    assert "paused" not in ctl("worker", "list")
    # Three calls opened it, each trial was one call, and each job succeeded once.
    calls = len((machine.folder / "calls.txt").read_text().split())
    trials = sum("tries one job of task pay" in line for line in worker.text.splitlines())
    assert calls - 3 - len([*ids, last]) == trials - 1

    unknown = machine.run("jq-ctl", "--server", ready["grpc"], "worker", "show", "w2")
    assert (unknown.returncode, unknown.stdout) == (4, "")
    assert "there is no worker 'w2'; list them with: jq-ctl worker list" in unknown.stderr
    assert worker.stop() == server.stop() == 0


def test_the_program_of_the_page_can_be_imported_and_mistakes_are_explained(
    machine: Machine,
) -> None:
    (text,) = [block for block in blocks("docs/retries.md", "python") if "Breaker" in block]
    machine.write("paying.py", text)
    machine.succeed("python", "paying.py")
    machine.write("paying.py", text.replace("failures=10", "failures=0"))
    ran = machine.run("python", "paying.py")
    assert "breaker.failures: must be a number from 1 to 10000, got 0" in ran.stderr
    machine.write("paying.py", text.replace("Breaker(failures=10, pause=30)", "True"))
    ran = machine.run("python", "paying.py")
    assert "breaker: expected Breaker(failures=10, pause=30), got True" in ran.stderr
