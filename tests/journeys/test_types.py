"""Two apps and the server's own pool on one queue: each job waits for a worker that knows it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import patience
from tests.journeys.machine import Machine

SUMS = """
import os

from jobqueue import JobQueue

app = JobQueue(os.environ["JOBS"])


@app.task
async def add(a: int, b: int) -> int:
    return a + b


if __name__ == "__main__":
    for job in app.sync().submit_many(add, [(n, n) for n in range(200)]):
        print(job.id)
"""

MAILS = """
import os

from jobqueue import DeadlineExceeded, JobQueue

app = JobQueue(os.environ["JOBS"])


@app.task
async def send(to: str) -> str:
    return f"sent to {to}"


if __name__ == "__main__":
    job = app.sync().submit(send, "a@b.c")
    try:
        job.result(timeout=0.1)
    except DeadlineExceeded as error:
        print(error)
    print(job.id)
"""


@pytest.fixture
def server(machine: Machine) -> Any:
    server = machine.start("jq-server", "--http-port", "0", "--grpc-port", "0")
    yield server
    assert server.stop() == 0


def test_jobs_wait_until_the_worker_of_their_app_connects(machine: Machine, server: Any) -> None:
    ready = json.loads(server.line_with('"message": "ready'))
    url = f"grpc://{ready['grpc']}"
    machine.write("sums.py", SUMS)
    machine.write("mails.py", MAILS)

    def ctl(*command: str) -> str:
        return machine.succeed("jq-ctl", "--server", ready["grpc"], *command)

    # The server's pool leaves them alone, though it takes from the queue.
    ids = machine.succeed("python", "sums.py", JOBS=url).split()
    status = ctl("job", "status", ids[0])
    assert "no connected worker takes type 'add' from queue 'default'" in status
    limit = patience.Limit(10)  # what is said of types may be a second old
    while "add: 200" not in (stats := ctl("queue", "stats", "default")):
        assert not limit.over, stats
    line = json.loads(server.line_with("waiting in queue"))
    assert line["message"].startswith("200 jobs of type 'add' waiting in queue 'default'")

    # Another app's worker on the same queue does not touch them either.
    mailer = machine.start("jq-worker", "--server", ready["grpc"], "--app", "mails:app", JOBS=url)
    mailer.line_with("ready: taking jobs")
    *_, mail = machine.succeed("python", "mails.py", JOBS=url).split()
    assert json.loads(ctl("--output", "json", "job", "status", mail))["queue"] == "default"
    depth = json.loads(ctl("--output", "json", "queue", "stats", "default"))["depth"]
    assert (depth["PENDING"], depth["DEAD_LETTERED"]) == (200, 0)
    assert "send" in ctl("worker", "list")

    # Their own worker runs them all, each at the first attempt.
    adder = machine.start("jq-worker", "--server", ready["grpc"], "--app", "sums:app", JOBS=url)
    adder.line_with("ready: taking jobs")
    limit = patience.Limit(60)
    while True:
        done = json.loads(
            ctl("--output", "json", "job", "list", "--type", "add", "--status", "DONE",
                "--limit", "1000")
        )["jobs"]  # fmt: skip
        if len(done) == 200:
            break
        assert not limit.over, f"{len(done)} of 200 are done"
    assert {job["attempt"] for job in done} == {1}
    assert {job["job_id"] for job in done} == set(ids)
    stats = json.loads(ctl("--output", "json", "queue", "stats", "default"))
    assert (stats["unserved"], stats["depth"]["DEAD_LETTERED"]) == ([], 0)
    assert mailer.stop() == adder.stop() == 0


def test_a_wait_that_is_too_long_says_that_nobody_knows_the_task(
    machine: Machine, server: Any
) -> None:
    ready = json.loads(server.line_with('"message": "ready'))
    machine.write("mails.py", MAILS)
    said = machine.succeed("python", "mails.py", JOBS=f"grpc://{ready['grpc']}")
    assert "(no connected worker takes type 'send' from queue 'default')" in said
