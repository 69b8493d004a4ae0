"""A handler says how far it is, and everybody who looks at its job sees it."""

from __future__ import annotations

import json

from tests.journeys.machine import Machine

TASKS = """
import time
from pathlib import Path

from jobqueue import Context, JobQueue

app = JobQueue("memory://")


@app.task
def copy(files: int, ctx: Context) -> str:
    ctx.progress(1 / files, f"1 of {files} files")
    while not Path("finish").exists():
        time.sleep(0.01)
    return "copied"


@app.task
def percent(ctx: Context) -> None:
    ctx.progress(25, "of 100")
"""

PROGRAM = """
echo "0.5 half of it" > "$JQ_PROGRESS"
until test -e finish; do sleep 0.05; done
echo '"by a program"'
"""

LOOK = """
import asyncio
import json
import sys
import urllib.request

from jobqueue import JobQueue

grpc, http, job_id = sys.argv[1:]
app = JobQueue(f"grpc://{grpc}")


async def main() -> None:
    async with app:
        job = await app.job(job_id).status()
        print(job.progress.value, job.progress.text)


asyncio.run(main())
with JobQueue(f"grpc://{grpc}").sync() as blocking:
    print(blocking.job(job_id).status().progress.text)
with urllib.request.urlopen(f"{http}/jobs/{job_id}") as answer:
    print(json.load(answer)["progress"]["text"])
"""


def test_progress_is_seen_while_the_job_runs(machine: Machine) -> None:
    machine.write("tasks.py", TASKS)
    machine.write("copy.sh", PROGRAM)
    machine.write("look.py", LOOK)
    server = machine.start(
        "jq-server", "--http-port", "0", "--grpc-port", "0", "--app", "tasks:app"
    )
    ready = json.loads(server.line_with('"ready: '))
    grpc, http = ready["grpc"], ready["http"]
    ctl = ("jq-ctl", "--server", grpc)
    machine.succeed(*ctl, "queue", "create", "programs")
    worker = machine.start(
        "jq-worker", "--server", grpc, "--queues", "programs", "--metrics-port", "0",
        "--exec", "sh copy.sh",
    )  # fmt: skip
    submit = (*ctl, "job", "submit")
    copy = machine.succeed(*submit, "default", '{"files": 4}', "--type", "copy").strip()
    program = machine.succeed(*submit, "programs", "1").strip()

    watching = machine.start(*ctl, "job", "watch", copy)
    watching.line_with("progress  25 %  1 of 4 files")
    machine.start(*ctl, "job", "watch", program).line_with("progress  50 %  half of it")
    assert "25 %  1 of 4 files (" in machine.succeed(*ctl, "job", "status", copy)
    seen = machine.succeed("python", "look.py", grpc, http, copy)
    assert seen == "0.25 1 of 4 files\n1 of 4 files\n1 of 4 files\n"

    machine.write("finish", "")
    assert watching.wait() == 0
    assert "SUCCEEDED" in watching.printed[-1]
    assert machine.run(*ctl, "job", "watch", program).returncode == 0
    for job_id in (copy, program):
        done = json.loads(machine.succeed(*ctl, "job", "status", job_id, "-o", "json"))
        assert (done["status"], done["progress"]) == ("DONE", None)

    failed = machine.run(*submit, "default", "{}", "--type", "percent", "--wait")
    assert failed.returncode == 12
    assert "progress.value: must be 0 to 1 (0.25 is 25 %), got 25" in failed.stderr
    assert worker.stop() == 0
    assert server.stop() == 0
