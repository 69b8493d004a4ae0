"""Schedules by hand and in the code, as the page about them says, and a newcomer's mistakes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.journeys.machine import Machine
from tests.journeys.pages import blocks, shell

TASKS = """
import os

from jobqueue import JobQueue

app = JobQueue(os.environ["JOBS"])


@app.task(every=1, overlap="queue")
async def poll() -> str:
    return "polled"


@app.task
async def report(kind: str) -> str:
    return f"the {kind} report"


app.periodic("@yearly", report, "big", name="yearly", timezone="Europe/Zurich")
"""


@pytest.fixture
def url(machine: Machine) -> Iterator[str]:
    server = machine.start("jq-server", "--http-port", "0", "--grpc-port", "0")
    yield f"grpc://{json.loads(server.line_with('ready'))['grpc']}"
    assert server.stop() == 0


def schedules(machine: Machine, url: str) -> dict[str, Any]:
    listed = machine.succeed("jq-ctl", "--url", url, "-o", "json", "schedule", "list")
    return {one["name"]: one for one in json.loads(listed)["schedules"]}


@pytest.mark.skipif(not shutil.which("bash"), reason="needs a shell")
def test_the_commands_of_the_page_work_in_order(machine: Machine, url: str) -> None:
    prelude = f"""
        jq-ctl() {{ command jq-ctl --url {url} "$@"; }}
    """
    (text,) = blocks("docs/periodic.md", "sh")
    printed = shell(machine, prelude, text)
    print(printed)
    assert "Schedule nightly is added; its next tick is at " in printed
    assert "0 3 * * * Europe/Zurich" in printed
    assert "Schedule nightly is paused" in printed
    assert "DONE" in printed
    assert "Schedule often is removed" in printed
    assert schedules(machine, url).keys() == {"nightly"}


def test_schedules_of_the_code_run_behind_a_server(machine: Machine, url: str) -> None:
    machine.write("tasks.py", TASKS)
    words = ("jq-worker", "--app", "tasks:app", "--metrics-port", "0", "--url", url)
    worker = machine.start(*words, JOBS=url)
    worker.line_with("declared the schedules of the code: poll, yearly")
    found = schedules(machine, url)
    assert [(one["source"], one["overlap"]) for one in found.values()] == [
        ("code", "queue"),
        ("code", "allow"),
    ]
    assert (found["yearly"]["cron"], found["yearly"]["timezone"]) == ("@yearly", "Europe/Zurich")
    last = None
    while last is None:
        last = schedules(machine, url)["poll"]["last_job_id"]
    assert "DONE" in machine.succeed("jq-ctl", "--url", url, "job", "watch", last)
    machine.succeed("jq-ctl", "--url", url, "schedule", "pause", "poll")
    assert worker.stop() == 0
    again = machine.start(*words, JOBS=url)
    again.line_with("declared the schedules of the code: poll, yearly")
    assert schedules(machine, url)["poll"]["paused"]  # an operator's pause stays
    assert again.stop() == 0


def test_mistakes_are_named_and_have_no_effect(machine: Machine, url: str) -> None:
    def fails(code: int, *words: str) -> str:
        ran = machine.run("jq-ctl", "--url", url, "schedule", *words)
        assert ran.returncode == code, (words, ran.stdout, ran.stderr)
        return ran.stderr

    new = ("add", "s", "default", "{}")
    assert "--cron: give --cron FIELDS or --every SECONDS" in fails(2, *new)
    assert "--cron: minute '61': 61 is out of range" in fails(2, *new, "--cron", "61 * * * *")
    zone = (*new, "--cron", "@daily", "--timezone", "Europe/Zürich")
    assert "did you mean 'Europe/Zurich'?" in fails(2, *zone)
    assert "--every: must be a whole number of seconds" in fails(2, *new, "--every", "0")
    assert "--priority" in fails(2, *new, "--every", "5", "--priority", "10")
    assert "there is no queue 'mial'" in fails(4, "add", "s", "mial", "{}", "--every", "5")
    assert "there is no schedule 's'" in fails(4, "show", "s")
    assert schedules(machine, url) == {}
    machine.succeed("jq-ctl", "--url", url, "schedule", *new, "--cron", "@yearly")
    assert "there is a schedule 's' already" in fails(8, *new, "--every", "5")
    assert schedules(machine, url)["s"]["every"] is None
