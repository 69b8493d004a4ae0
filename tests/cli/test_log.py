"""The log as programs write it: to a pipe, to a terminal, from a script of the user's."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from jobqueue import JobQueue
from tests.cli import processes, terminal

TASKS = """
import asyncio, logging, os, sys, time
from pathlib import Path
from jobqueue import JobQueue

app = JobQueue("sqlite:///jobs.db", max_retries=0)
log = logging.getLogger("shop")

@app.task(max_retries=1)
async def charge(order: int) -> int:
    log.info("charging %d", order)
    raise ValueError(f"no order {order}")

@app.task
def pack(order: int) -> int:
    log.info("packing %d", order)
    return order

@app.task(executor="process")
def press(order: int) -> int:
    log.info("pressing %d", order)
    return order

@app.task
async def hold() -> None:
    log.info("holding")
    while not Path("go").exists():
        await asyncio.sleep(0.01)

if __name__ == "__main__":
    if "configured" in sys.argv:
        logging.basicConfig(format="OURS %(message)s", level="WARNING", stream=sys.stdout)
    app.run_worker()
"""
CONTROL = "\x1b["


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


def submit(shop: Path, *types: str) -> list[str]:
    """Submit a job of each type, with retries at once."""
    app = JobQueue(f"sqlite:///{shop}/jobs.db", queues=["default"])
    with app.sync() as q:
        retries = {"charge": 1}
        return [
            q.run(
                app.submit(
                    name,
                    {} if name == "hold" else {"order": 7},
                    max_retries=retries.get(name, 0),
                )
            ).id
            for name in types
        ]


def worker(shop: Path, *args: str, **extra: str) -> processes.Service:
    flags = ("--app", "tasks:app", "--metrics-port", "0", *args)
    return processes.Service("worker", *flags, cwd=shop, **extra)


def of_job(service: processes.Service, job_id: str) -> list[dict[str, Any]]:
    return [line for line in service.lines if line.get("job_id") == job_id]


@pytest.mark.req("jq:FR-041")
def test_a_worker_writes_json_with_the_required_fields_and_every_failure(shop: Path):
    (job,) = submit(shop, "charge")
    with worker(shop) as service:
        service.line(f"attempt 2 of charge (job {job}")
        assert service.stop() == 0
    assert service.noise == []
    for line in service.lines:
        assert {"timestamp", "level", "service", "message"} <= set(line)
        assert line["service"] == "jq-worker"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"])
    own, first, own_again, last = of_job(service, job)
    assert (own["message"], own["logger"]) == ("charging 7", "shop")
    assert (own["attempt"], own_again["attempt"]) == (1, 2)
    assert (first["level"], last["level"]) == ("WARNING", "ERROR")
    assert "it will be retried (1 retry left): ValueError: no order 7" in first["message"]
    assert "it is a dead letter now (no retries left)" in last["message"]
    for line in (first, last):
        assert (line["type"], line["queue"]) == ("charge", "default")
        assert line["duration"] > 0
        assert line["worker_id"]
        assert line["exception"]["type"] == "ValueError"
        assert 'raise ValueError(f"no order {order}")' in line["exception"]["trace"]
        assert "tasks.py" in line["exception"]["trace"]


@pytest.mark.req("jq:FR-041")
def test_a_server_writes_json_about_the_jobs_of_its_own_pool(tmp_path: Path, ctl):
    with processes.server(tmp_path) as server:
        address = server.line("ready")["grpc"]
        ctl(address, "job", "submit", "default", "{}", "--type", "fail", "--max-retries", "0")
        failed = server.line("attempt 1 of fail")
        assert server.stop() == 0
    assert server.noise == []
    assert failed["service"] == "jq-server"
    assert failed["level"] == "ERROR"
    assert failed["exception"]["message"] == "failed on purpose"


@pytest.mark.parametrize("kind", ["charge", "pack", "press"])
def test_lines_of_a_handler_carry_its_job(shop: Path, kind: str):
    (job,) = submit(shop, kind)
    with worker(shop, "--log-level", "debug") as service:
        said = service.line({"charge": "charging", "pack": "packing", "press": "pressing"}[kind])
        if kind != "charge":
            ended = service.line(f"attempt 1 of {kind} (job {job}, queue default) succeeded")
            assert ended["level"] == "DEBUG"
        assert service.stop() == 0
    assert service.noise == []
    assert (said["job_id"], said["type"], said["attempt"]) == (job, kind, 1)


def on_terminal(shop: Path, *args: str, **extra: str) -> str:
    """Run a worker on a terminal until its job is a dead letter, then press Ctrl-C."""
    submit(shop, "charge")
    status, shown = terminal.run(
        "worker", "--app", "tasks:app", "--metrics-port", "0", *args,
        cwd=shop, answers={"dead letter": "^C"}, timeout=60, columns=300, **extra,
    )  # fmt: skip
    assert status == 0
    return shown


def test_on_a_terminal_the_log_is_for_people(shop: Path):
    shown = on_terminal(shop)
    assert re.search(r"\x1b\[33mWARNING\x1b\[0m attempt 1 of charge ", shown)
    assert re.search(r"\x1b\[31mERROR  \x1b\[0m attempt 2 of charge ", shown)
    lines = [line.removeprefix("^C") for line in terminal.screen(shown).splitlines()]
    events = [line for line in lines if not line.startswith(" ")]
    assert all(re.match(r"\d\d:\d\d:\d\d (INFO   |WARNING|ERROR  ) \w", line) for line in events)
    assert '        raise ValueError(f"no order {order}")' in lines
    assert any(re.search(r"charging 7  \[job_id=\S+ type=charge ", line) for line in events)
    assert any("SIGINT: draining" in line and "a second Ctrl-C" in line for line in events)


def test_colours_can_be_turned_off(shop: Path):
    shown = on_terminal(shop, NO_COLOR="1")
    assert CONTROL not in shown
    assert " WARNING attempt 1 of charge " in shown


def test_text_that_is_not_for_a_terminal_has_no_colours(shop: Path):
    submit(shop, "charge")
    with worker(shop, "--log-format", "text") as service:
        assert " ERROR   attempt 2 of charge " in service.plain_line("dead letter")
        assert service.stop() == 0
    assert service.lines == []
    assert CONTROL not in "".join(service.noise)


def test_json_can_be_had_on_a_terminal(shop: Path):
    shown = on_terminal(shop, JQ_LOG_FORMAT="json")
    lines = [line for line in shown.replace("\r", "").splitlines() if line.startswith("{")]
    assert json.loads(lines[0])["service"] == "jq-worker"


def test_the_first_signal_says_what_it_does_and_the_second_ends_the_process(shop: Path):
    submit(shop, "hold")
    with worker(shop) as service:
        service.line("holding")
        service.signal(signal.SIGINT)
        told = service.line("SIGINT: draining")
        assert "up to 60 s" in told["message"]
        assert "a second Ctrl-C or SIGTERM ends it at once" in told["message"]
        service.signal(signal.SIGINT)
        assert service.wait() == 128 + signal.SIGINT


def run_script(shop: Path, *args: str) -> processes.Service:
    """The user's own program."""
    return processes.Service(shop / "tasks.py", *args, cwd=shop)


def test_a_script_that_runs_a_worker_says_that_it_started_what_failed_and_that_it_stopped(
    shop: Path,
):
    (job,) = submit(shop, "charge")
    with run_script(shop) as script:
        script.line("worker started")
        script.line(f"attempt 2 of charge (job {job}")
        script.signal(signal.SIGINT)
        script.line("SIGINT: draining")
        assert script.wait() == 0
    assert script.lines[-1]["message"].startswith("worker stopped: ")
    assert [line["level"] for line in of_job(script, job)] == ["INFO", "WARNING", "INFO", "ERROR"]


def test_a_second_signal_ends_a_script_at_once(shop: Path):
    submit(shop, "hold")
    with run_script(shop) as script:
        script.line("holding")
        script.signal(signal.SIGTERM)
        script.line("SIGTERM: draining")
        script.signal(signal.SIGTERM)
        assert script.wait() == 128 + signal.SIGTERM


def test_a_script_that_configured_its_logging_is_left_alone(shop: Path):
    (job,) = submit(shop, "charge")
    with run_script(shop, "configured") as script:
        script.plain_line("dead letter")
        assert script.stop() == 0
    assert script.lines == []
    assert script.noise[0].startswith(f"OURS attempt 1 of charge (job {job}, queue default) failed")


def test_in_a_program_that_configured_nothing_failures_are_on_stderr(shop: Path):
    script = shop / "main.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio
            from jobqueue import JobFailed
            from tasks import app, charge

            async def main():
                async with app, app.worker():
                    try:
                        await (await charge.options(max_retries=0).submit(7)).result(timeout=300)
                    except JobFailed:
                        print("failed")

            asyncio.run(main())
            """
        )
    )
    ran = subprocess.run(
        [sys.executable, str(script)],
        cwd=shop,
        env=processes.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout == "failed\n"
    assert re.match(r"attempt 1 of charge \(job \S+, queue default\) failed after ", ran.stderr)
    assert 'raise ValueError(f"no order {order}")' in ran.stderr
