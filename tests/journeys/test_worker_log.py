"""A worker with a failing task, and what its log tells: by a script, and by jq-worker --app."""

from __future__ import annotations

import json
import signal

import pytest

from tests.journeys.machine import Machine

TASKS = """
import logging

from jobqueue import JobQueue

app = JobQueue("sqlite:///jobs.db")
log = logging.getLogger(__name__)


@app.task(max_retries=1)
async def charge(order: int) -> int:
    log.info("charging order %d", order)
    raise ValueError(f"there is no order {order}")


@app.task
def total(order: int) -> int:
    return "12.50"


if __name__ == "__main__":
    app.run_worker()
"""
SUBMIT = """
from tasks import app, charge, total

with app.sync() as q:
    print(q.submit(charge, 7).id)
    print(q.submit(total, 7).id)
"""


@pytest.mark.req("jq:FR-041")
@pytest.mark.parametrize(
    "command", [("python", "tasks.py"), ("jq-worker", "--app", "tasks:app")], ids=lambda c: c[0]
)
def test_a_failing_task_is_seen_in_the_log_of_its_worker(
    machine: Machine, command: tuple[str, ...]
) -> None:
    machine.write("tasks.py", TASKS)
    machine.write("submit.py", SUBMIT)
    charge, total = machine.succeed("python", "submit.py").split()
    worker = machine.start(*command, JQ_WORKER_METRICS_PORT="0")
    dead = json.loads(worker.line_with("attempt 2 of charge"))
    wrong = json.loads(worker.line_with("attempt 1 of total"))
    assert worker.stop(signal.SIGINT) == 0
    lines = [json.loads(line) for line in worker.printed]

    first = next(line for line in lines if line["message"].startswith("attempt 1 of charge"))
    own = next(line for line in lines if line["message"] == "charging order 7")
    assert "started" in lines[0]["message"]
    assert (own["job_id"], own["level"]) == (charge, "INFO")
    assert (first["job_id"], first["level"]) == (charge, "WARNING")
    assert (dead["job_id"], dead["level"]) == (charge, "ERROR")
    assert "it is a dead letter now" in dead["message"]
    assert dead["exception"]["message"] == "there is no order 7"
    assert "tasks.py" in dead["exception"]["trace"]
    assert (wrong["job_id"], wrong["level"]) == (total, "ERROR")
    assert "task 'total': result: expected `int`, got `str`" in wrong["message"]
    assert any(line["message"].startswith("SIGINT: draining") for line in lines)
    assert any(line["message"].startswith("worker stopped: ") for line in lines)


def test_people_can_read_the_log(machine: Machine) -> None:
    machine.write("tasks.py", TASKS)
    machine.write("submit.py", SUBMIT)
    machine.succeed("python", "submit.py")
    worker = machine.start(
        "jq-worker", "--app", "tasks:app", "--log-format", "text", "--metrics-port", "0"
    )
    worker.line_with("attempt 2 of charge")
    worker.line_with("attempt 1 of total")
    assert worker.stop() == 0
    assert '\n        raise ValueError(f"there is no order {order}")\n' in worker.text


INDENT = len("error: ") * " "  # further lines of an error stand below its text


def test_a_mistake_in_the_application_is_shown_with_file_and_line(machine: Machine) -> None:
    machine.write("tasks.py", TASKS.replace("app = JobQueue(", "app = JobQueu("))
    ran = machine.run("jq-worker", "--app", "tasks:app")
    assert ran.returncode == 2
    first, where, text, *_ = ran.stderr.splitlines()
    assert first == "error: --app: importing tasks failed: NameError: name 'JobQueu' is not defined"
    assert where == f'{INDENT}  File "{machine.folder}/tasks.py", line 6, in <module>'
    assert text == f'{INDENT}    app = JobQueu("sqlite:///jobs.db")'
