"""The script that every new user writes first: it submits a job, and ends."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.journeys.machine import Machine

TASKS = """
import asyncio
import os

from jobqueue import Context, JobQueue

app = JobQueue(os.environ["JOBS"])


@app.task(max_retries=5, timeout=30)
async def send(to: str, subject: str, ctx: Context) -> dict[str, str]:
    return {"to": to, "subject": subject, "job": ctx.job_id}


async def main() -> None:
    await send.submit("a@b.c", "hello")


if __name__ == "__main__":
    asyncio.run(main())
"""

BLOCKING = """
from tasks import app, send

q = app.sync()
q.submit(send, "a@b.c", "hello")
"""

UVLOOP = """
import uvloop

from tasks import main

uvloop.run(main())
"""


@pytest.fixture(params=["sqlite", "memory", "grpc"])
def url(request: pytest.FixtureRequest, machine: Machine) -> Iterator[str]:
    if request.param != "grpc":
        yield {"sqlite": "sqlite:///jobs.db", "memory": "memory://"}[request.param]
        return
    ports = ("--http-port", "0", "--grpc-port", "0", "--worker-concurrency", "0")
    server = machine.start("jq-server", *ports)
    ready = json.loads(server.line_with('"message": "ready'))
    yield f"grpc://{ready['grpc']}"
    assert server.stop() == 0


@pytest.mark.parametrize("script", ["tasks.py", "blocking.py", "with_uvloop.py"])
def test_a_script_that_only_submits_ends_in_silence(
    machine: Machine, url: str, script: str
) -> None:
    machine.write("tasks.py", TASKS)
    machine.write("blocking.py", BLOCKING)
    machine.write("with_uvloop.py", UVLOOP)
    for _ in range(3):
        ran = machine.run("python", script, JOBS=url)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    if url != "memory://":
        jobs = machine.succeed(
            "jq-ctl", "--url", url, "--output", "json", "queue", "stats", "default"
        )
        assert json.loads(jobs)["depth"]["PENDING"] == 3
