"""Retries as the page says: of a task, of a queue that stands, and of a server."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.journeys.machine import Machine
from tests.journeys.pages import blocks, shell

PAGE = "docs/retries.md"
FLAKY = """
import os

from jobqueue import JobFailed, JobQueue

app = JobQueue(os.environ["JOBS"])


class Flaky(Exception):
    pass


class Broken(Flaky):
    pass


@app.task(executor="process", retry_on=Flaky, abort_on=Broken, backoff=0, max_retries=2)
def flaky(broken: bool) -> None:
    raise (Broken if broken else Flaky)("no")


# In the process the handler is found under its own name: there it is a bare function.
def _other(broken: bool) -> None:
    raise (Broken if broken else Flaky)("no")


other = app.task(
    name="other", executor="process", retry_on=Flaky, abort_on=Broken, backoff=0, max_retries=2
)(_other)


if __name__ == "__main__":
    import asyncio

    async def main() -> None:
        async with app, app.worker():
            for task in (flaky, other):
                for broken in (False, True):
                    job = await task.submit(broken)
                    try:
                        await job.result(timeout=60)
                    except JobFailed as failed:
                        print((await job.status()).attempt, failed.reason)

    asyncio.run(main())
"""


def test_the_program_of_the_retries_page_works(machine: Machine) -> None:
    text = blocks(PAGE, "python")[0]
    machine.write("fetching.py", text)
    ran = machine.run("python", "fetching.py")
    assert (ran.returncode, ran.stdout) == (0, "NOT_RETRYABLE after attempt 1\n" * 2), ran.stderr


def test_a_script_with_processes_retries_what_its_tasks_say(machine: Machine) -> None:
    """Its exceptions have other names in the worker's process than in its children."""
    machine.write("flaky.py", FLAKY)
    ran = machine.run("python", "flaky.py", JOBS="sqlite:///jobs.db")
    assert (ran.returncode, ran.stdout) == (
        0,
        "3 RETRIES_EXHAUSTED\n1 NOT_RETRYABLE\n" * 2,
    ), ran.stderr


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_commands_of_the_retries_page_work(machine: Machine) -> None:
    ports = ("--http-port", "0", "--grpc-port", "0")
    server = machine.start("jq-server", *ports, JQ_QUEUE_RETRY_BASE="7", JQ_QUEUE_MAX_RETRIES="9")
    ready = json.loads(server.line_with('"message": "ready'))
    commands, request = blocks(PAGE, "sh")
    prelude = f'jq-ctl() {{ command jq-ctl --server {ready["grpc"]} "$@"; }}'
    printed = shell(machine, prelude, commands)
    assert "Queue mail is changed: max-retries 5, retry-base 2, retry-max 60" in printed
    assert "Queue mail is changed: capacity 1000, retry-jitter none, max-retries 9" in printed
    said = shell(machine, "", request.replace("localhost:8080", ready["http"]))
    queue = json.loads(said)
    assert (queue["max_retries"], queue["retry_base"], queue["retry_profile"]) == (5, 2, "producer")
    default = shell(machine, prelude, "jq-ctl queue stats default --output json")
    assert json.loads(default)["retry_base"] == 7
    mistake = machine.run("jq-ctl", "--server", ready["grpc"], "queue", "update", "mial", "--ttl=1")
    assert (mistake.returncode, mistake.stdout) == (4, "")
    assert "there is no queue 'mial'; create it with: jq-ctl queue create mial" in mistake.stderr
    assert server.stop() == 0
