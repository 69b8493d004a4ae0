"""jq-server and jq-worker declare the schedules of their app, and a tick is one job."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli import processes

APP = """
from jobqueue import JobQueue

app = JobQueue("memory://")


@app.task(cron="{minute} * * * *", queue="night")
async def clean_up() -> str:
    return "clean"
"""


def write_app(folder: Path) -> None:
    """Its last tick was half an hour ago, and the next one comes after the test."""
    minute = (datetime.now(UTC).minute + 30) % 60
    (folder / "tasks.py").write_text(APP.replace("{minute}", str(minute)))


@pytest.mark.req("inp:PROD")
def test_a_server_and_a_worker_make_one_job_of_a_tick(tmp_path, ctl):
    write_app(tmp_path)
    with processes.server(tmp_path, "--app", "tasks:app") as server:
        server.line("schedule 'clean_up': submitted job")
        grpc = server.line("ready")["grpc"]
        with processes.Service(
            "worker", "--server", grpc, "--app", "tasks:app", "--metrics-port", "0", cwd=tmp_path
        ) as worker:
            worker.line("declared the schedules of the code: clean_up")
            (job,) = ctl(grpc, "job", "list", "-o", "json").json["jobs"]
            assert ctl(grpc, "job", "watch", job["job_id"]).status == 0
            assert worker.stop() == 0
        assert not [line for line in worker.lines if "submitted job" in line["message"]]
        (job,) = ctl(grpc, "job", "list", "-o", "json").json["jobs"]
        assert (job["queue"], job["labels"]) == ("night", {"cron": "clean_up"})
        assert server.stop() == 0
    assert {line["level"] for line in server.lines + worker.lines} == {"INFO"}


def test_a_setting_turns_catching_up_off(tmp_path, ctl):
    write_app(tmp_path)
    late = ("--set", "cron.catch_up=0")
    with processes.server(tmp_path, "--app", "tasks:app", *late) as server:
        server.line("declared the schedules of the code: clean_up")
        grpc = server.line("ready")["grpc"]
        found = ctl(grpc, "schedule", "show", "clean_up", "-o", "json").json
        assert (found["last_at"], found["skipped"], found["catch_up"]) == (None, 0, 0)
        assert ctl(grpc, "job", "list", "-o", "json").json["jobs"] == []
        assert server.stop() == 0


def test_a_worker_on_a_file_makes_the_queue_of_a_schedule(tmp_path, ctl):
    write_app(tmp_path)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with processes.Service(
        "worker", "--url", url, "--app", "tasks:app", "--queues", "default",
        "--metrics-port", "0", cwd=tmp_path,
    ) as worker:  # fmt: skip
        worker.line("schedule 'clean_up': submitted job")
        (job,) = ctl(url, "job", "list", "-o", "json").json["jobs"]
        assert (job["queue"], job["status"]) == ("night", "PENDING")
        assert worker.stop() == 0
