"""jq-worker as a process: tasks of an app, programs, draining, its own metrics."""

from __future__ import annotations

import signal
import urllib.request
from typing import Any

import pytest

from tests import patience, ports
from tests.cli import processes
from tests.cli.layouts import LAYOUTS, named
from tests.services.plugin import run_of

APP = """
import asyncio
import os
from jobqueue import JobQueue

app = JobQueue("{url}", queue="mail")


@app.task
async def greet(name: str) -> str:
    return "hello " + name


@app.task
async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@app.task
async def wait_for(file: str) -> None:
    while not os.path.exists(file):
        await asyncio.sleep(0.01)
"""


@pytest.fixture(scope="module", params=named("embedded", "replicated"))
def grpc(request, tmp_path_factory):
    """A server without a pool of its own, or two on one PostgreSQL."""
    folder = tmp_path_factory.mktemp("server")
    silent = f"worker.heartbeat_timeout={patience.stretched(2):.1f}"
    options = ("--set", "worker.heartbeat_interval=0.5", "--set", silent)
    layout = LAYOUTS[request.param]
    with layout(run_of(request.config), folder, *options, pool=False) as running:
        yield running.target


def worker(cwd, grpc, *args, **extra) -> processes.Service:
    beat = ("--set", "worker.heartbeat_interval=0.5", "--metrics-port", "0")
    return processes.Service("worker", "--server", grpc, *beat, *args, cwd=cwd, **extra)


def done(ctl, grpc, job_id: str) -> Any:
    assert ctl(grpc, "job", "watch", job_id).status == 0
    return ctl(grpc, "job", "status", job_id, "-o", "json").json["result"]


@pytest.mark.req("jq:FR-018", "jq:FR-022")
def test_it_runs_the_tasks_of_an_app(tmp_path, grpc, ctl):
    (tmp_path / "tasks.py").write_text(APP.format(url=f"grpc://{grpc}"))
    ctl(grpc, "queue", "create", "mail")
    other = ctl(grpc, "job", "submit", "default", '{"name": "x"}', "--type", "greet").out.strip()
    with worker(tmp_path, grpc, "--app", "tasks:app", "--id", "mailer") as process:
        ready = process.line("ready")
        assert (ready["worker_id"], ready["queues"]) == ("mailer", ["mail", "taskqueue"])
        job_id = ctl(grpc, "job", "submit", "mail", '{"name": "x"}', "--type", "greet").out.strip()
        assert done(ctl, grpc, job_id) == "hello x"
        (listed,) = ctl(grpc, "worker", "list", "-o", "json").json["workers"]
        assert (listed["worker_id"], listed["concurrency"]) == ("mailer", 4)
        assert listed["hostname"]
        assert process.stop() == 0
    assert process.noise == []
    assert ctl(grpc, "job", "status", other, "-o", "json").json["status"] == "PENDING"
    ctl(grpc, "job", "cancel", other)


def test_the_app_itself_names_the_server(tmp_path, grpc):
    (tmp_path / "tasks.py").write_text(APP.format(url=f"grpc://{grpc}"))
    with processes.Service(
        "worker", "--app", "tasks:app", "--metrics-port", "0", cwd=tmp_path
    ) as process:
        assert process.line("ready")["message"].endswith(f"grpc://{grpc}")
        assert process.stop() == 0


@pytest.mark.req("jq:NFR-015")
def test_sigterm_finishes_the_running_job_and_hands_back_the_rest(tmp_path, grpc, ctl):
    (tmp_path / "tasks.py").write_text(APP.format(url=f"grpc://{grpc}"))
    args = ("--app", "tasks:app", "--queues", "default", "--concurrency", "1", "--id", "drainer")
    with worker(tmp_path, grpc, *args) as process:
        process.line("ready")
        slow = ("default", '{"file": "go"}', "--type", "wait_for")
        first = ctl(grpc, "job", "submit", *slow).out.strip()
        second = ctl(grpc, "job", "submit", *slow).out.strip()
        while ctl(grpc, "job", "status", first, "-o", "json").json["status"] != "RUNNING":
            pass
        process.signal(signal.SIGTERM)
        process.line("SIGTERM: draining")  # not sooner: who has not heard of it takes the second
        (tmp_path / "go").touch()
        assert process.wait() == 0
        assert ctl(grpc, "job", "status", first, "-o", "json").json["status"] == "DONE"
        assert ctl(grpc, "job", "status", second, "-o", "json").json["status"] == "PENDING"
        assert "drainer" not in ctl(grpc, "worker", "list").out
    ctl(grpc, "job", "cancel", second)


@pytest.mark.req("jq:NFR-015", "jq:NFR-007", "jq:AC-2", "jq:FR-020")
def test_a_job_beyond_the_deadline_is_left_to_be_reclaimed(tmp_path, grpc, ctl):
    args = ("--set", "worker.shutdown_timeout=1", "--id", "hasty")
    with worker(tmp_path, grpc, *args) as process:
        process.line("ready")
        job = ("default", '{"seconds": 600}', "--type", "sleep", "--max-retries", "0")
        job_id = ctl(grpc, "job", "submit", *job).out.strip()
        while ctl(grpc, "job", "status", job_id, "-o", "json").json["status"] != "RUNNING":
            pass
        limit = patience.Limit(8)
        assert process.stop() == 1
        assert not limit.over
    watched = ctl(grpc, "job", "watch", job_id)
    assert watched.status == 12
    events = ctl(grpc, "job", "logs", job_id, "-o", "json").json["events"]
    assert "WORKER_LOST" in [event["reason"] for event in events]


@pytest.mark.req("jq:FR-023", "jq:FR-024")
def test_an_operator_drains_it_then_shuts_it_down(tmp_path, grpc, ctl):
    with worker(tmp_path, grpc, "--id", "w1") as process:
        process.line("ready")
        assert ctl(grpc, "worker", "drain", "w1").out == "Worker w1 is draining\n"
        process.line("draining")
        assert "DRAINING" in ctl(grpc, "worker", "list").out
        held = ctl(grpc, "job", "submit", "default", "1").out.strip()
        assert ctl(grpc, "worker", "undrain", "w1").out == "Worker w1 takes jobs again\n"
        process.line("worker w1 is taking jobs again")
        assert done(ctl, grpc, held) == 1
        assert ctl(grpc, "worker", "drain", "w1", "-o", "json").json["status"] == "DRAINING"
        process.line("draining")  # the server that it is connected to may be another one
        waiting = ctl(grpc, "job", "submit", "default", "1").out.strip()
        assert ctl(grpc, "worker", "shutdown", "w1").out == "Worker w1 is stopping\n"
        assert process.wait() == 0
    gone = ctl(grpc, "worker", "undrain", "w1")
    assert (gone.status, "no worker 'w1'" in gone.err) == (4, True)
    assert ctl(grpc, "job", "status", waiting, "-o", "json").json["status"] == "PENDING"
    ctl(grpc, "job", "cancel", waiting)


def test_it_runs_a_program_for_every_job(tmp_path, grpc, ctl):
    with worker(tmp_path, grpc, "--exec", "tr a-z A-Z") as process:
        process.line("ready")
        job_id = ctl(grpc, "job", "submit", "default", '"shout"', "--max-retries", "0").out.strip()
        assert done(ctl, grpc, job_id) == "SHOUT"
        assert process.stop() == 0


def test_it_works_on_a_file_without_a_server(tmp_path, ctl):
    url = f"sqlite:///{tmp_path}/jobs.db"
    with processes.Service(
        "worker", "--url", url, "--queues", "a,b", "--metrics-port", "0", cwd=tmp_path
    ) as process:
        process.line("ready")
        assert ctl(url, "job", "submit", "b", '{"x": 1}').status == 4
        assert ctl(url, "queue", "create", "b").status == 0
        job_id = ctl(url, "job", "submit", "b", '{"x": 1}').out.strip()
        assert done(ctl, url, job_id) == {"x": 1}
        assert process.stop() == 0


@pytest.mark.req("jq:FR-039")
def test_it_serves_its_own_metrics(tmp_path, grpc, ctl):
    port = ports.take()
    with worker(tmp_path, grpc, "--metrics-port", str(port), "--id", "metered") as process:
        assert process.line("ready")["metrics_port"] == port
        job_id = ctl(grpc, "job", "submit", "default", "1").out.strip()
        done(ctl, grpc, job_id)
        limit = patience.Limit(10)
        while 'jq_job_total{queue="default",status="DONE"} 1.0' not in (text := scrape(port)):
            assert not limit.over, text
        assert 'jq_worker_job_concurrency{worker_id="metered"} 0.0' in text
        assert 'jq_job_processing_duration_seconds_count{queue="default"} 1.0' in text
        with worker(tmp_path, grpc, "--metrics-port", str(port), "--id", "other") as second:
            warning = second.line("this worker has no /metrics")
            assert warning["level"] == "WARNING"
            assert warning["message"] == (
                "this worker has no /metrics: worker.metrics_port:"
                f" 127.0.0.1:{port} is in use by another program; stop it, or choose another port"
                " with --metrics-port or JQ_WORKER_METRICS_PORT (0 = none)"
            )
            second.line("ready")
            assert second.stop() == 0
        assert process.stop() == 0


def scrape(port: int) -> str:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{port}/metrics", timeout=patience.longest(5)
    ) as answer:
        return answer.read().decode()


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (("--concurrency", "0"), 2, "worker.concurrency: must be 1 or more"),
        (("--server", "a:1", "--url", "sqlite:///x"), 2, "either --server or --url"),
        (("--exec", "'"), 2, "--exec"),
        (("--exec", "x", "--app", "a:b"), 2, "either --exec or --app"),
        (("--exec", "./nowhere --fast"), 2, "--exec: there is no program './nowhere'"),
        (("--app", "nowhere:app"), 2, "--app: there is no module 'nowhere'"),
        (("--server", "nonsense"), 2, "needs a host and a port"),
        (("--queues", ","), 2, "worker.queues: ',' is not allowed; allowed: one or more names"),
    ],
)
def test_a_bad_start_says_why(tmp_path, args, status, message):
    answer = processes.run("worker", *args, cwd=tmp_path)
    assert answer.returncode == status
    assert message in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stdout + answer.stderr


def test_an_app_with_a_mistake_in_it_shows_the_mistake(tmp_path):
    (tmp_path / "tasks.py").write_text("import nothing_like_this\n")
    missing = processes.run("worker", "--app", "tasks:app", cwd=tmp_path)
    assert "tasks needs the module 'nothing_like_this', which is not installed" in missing.stderr
    (tmp_path / "tasks.py").write_text("1 / 0\n")
    broken = processes.run("worker", "--app", "tasks:app", cwd=tmp_path)
    assert broken.returncode == 2
    assert "importing tasks failed: ZeroDivisionError: division by zero" in broken.stderr
    (tmp_path / "tasks.py").write_text("other = 1\n")
    absent = processes.run("worker", "--app", "tasks:app", cwd=tmp_path)
    assert "tasks has no attribute 'app'" in absent.stderr
