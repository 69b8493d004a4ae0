"""jq-server as a process: start, stop, settings, dry run."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import patience, ports
from tests.cli import processes
from tests.test_metrics import NAMES

SECRET = "correct-horse"
one_server = pytest.mark.parametrize("server", ["embedded"], indirect=True)


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=patience.longest(10)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.req("jq:FR-041", "jq:NFR-013", "jq:FR-039")
def test_it_starts_answers_and_logs_only_json(tmp_path, ctl):
    with processes.server(tmp_path) as server:
        ready = server.line("ready")
        assert ready["message"] == "ready: sqlite store, durable"
        assert ready["service"] == "jq-server"
        assert (tmp_path / "data" / "jobqueue.db").exists()
        assert fetch(f"{ready['http']}/healthz")[0] == 200
        assert fetch(f"{ready['http']}/readyz")[0] == 200
        assert ctl(ready["grpc"], "status").status == 0
        status, text = fetch(f"{ready['http']}/metrics")
        assert status == 200
        assert set(NAMES) <= {family.name for family in text_string_to_metric_families(text)}
        assert server.stop() == 0
    assert server.noise == []
    for line in server.lines:
        assert {"timestamp", "level", "service", "message"} <= set(line)


@pytest.mark.req("jq:NFR-017")
def test_status_shows_the_commit_of_the_server(tmp_path, ctl):
    with processes.server(tmp_path, "--db-url", "memory://") as server:
        ready = server.line("ready")
        _, text = fetch(f"{ready['http']}/status")
        assert json.loads(text)["version"] == "0.1.0+abc1234"
        assert ctl(ready["grpc"], "status", "-o", "json").json["version"] == "0.1.0+abc1234"


@one_server
@pytest.mark.req("jq:AC-6", "jq:FR-040")
def test_metrics_count_what_happened(server, ctl):
    ctl(server.grpc, "job", "submit", "default", "1", "--wait")
    _, text = fetch(f"{server.http}/metrics")
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["jq_job_total", "DONE", "default"] >= 1
    assert samples["jq_job_queue_depth", "DONE", "default"] >= 1
    assert samples["jq_worker_active_count",] == 1
    assert samples["jq_job_processing_duration_seconds_count", "default"] >= 1
    assert samples["jq_scheduler_jobs_assigned_total", "default"] >= 1
    assert samples["jq_scheduler_cycle_duration_seconds_count",] >= 1
    assert any(name[0] == "jq_grpc_request_duration_seconds_count" for name in samples)
    assert any(name[0] == "jq_db_query_duration_seconds_count" for name in samples)
    assert any(name[0] == "jq_worker_job_concurrency" for name in samples)


def test_memory_says_that_it_is_not_durable(tmp_path):
    with processes.server(tmp_path, "--db-url", "memory://") as server:
        ready = server.line("ready")
        assert "NOT DURABLE" in ready["message"]
        assert ready["durable"] is False
        assert server.stop() == 0


@pytest.mark.req("jq:NFR-014")
def test_sigterm_lets_the_running_job_end(tmp_path, ctl):
    with processes.server(tmp_path) as server:
        grpc = server.line("ready")["grpc"]
        url = f"sqlite:///{tmp_path}/data/jobqueue.db"
        answer = ctl(grpc, "job", "submit", "default", '{"seconds": 1}', "--type", "sleep")
        job_id = answer.out.strip()
        limit = patience.Limit(10)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert not limit.over
        assert ctl(url, "job", "status", job_id, "-o", "json").json["status"] == "DONE"


@pytest.mark.req("jq:NFR-014")
def test_a_job_that_does_not_end_cannot_hold_up_the_stop(tmp_path, ctl):
    options = ("--set", "server.shutdown_timeout=2")
    with processes.server(tmp_path, *options) as server:
        grpc = server.line("ready")["grpc"]
        ctl(grpc, "job", "submit", "default", '{"seconds": 600}', "--type", "sleep")
        limit = patience.Limit(6)
        assert server.stop() == 0
        assert not limit.over


def test_a_second_signal_ends_it_at_once(tmp_path, ctl):
    with processes.server(tmp_path) as server:
        grpc = server.line("ready")["grpc"]
        ctl(grpc, "job", "submit", "default", '{"seconds": 600}', "--type", "sleep")
        url = f"sqlite:///{tmp_path}/data/jobqueue.db"
        server.signal(signal.SIGTERM)
        # The stop is under way when gRPC does not answer any more.
        while ctl(grpc, "--timeout", "1", "queue", "list").status == 0:
            pass
        server.signal(signal.SIGINT)
        assert server.wait(10) == 128 + signal.SIGINT
        assert ctl(url, "queue", "list").status == 0


HANGS_ONCE = """
import asyncio
from jobqueue import Context, JobQueue

app = JobQueue("memory://")


@app.task
async def hangs_once(ctx: Context) -> None:
    if ctx.attempt == 1:
        await asyncio.sleep(3600)
"""


def test_a_server_killed_and_started_again_finishes_its_jobs(tmp_path, ctl):
    (tmp_path / "tasks.py").write_text(HANGS_ONCE)
    options = (
        *("--http-port", str(ports.take()), "--app", "tasks:app"),
        *("--set", "queue.retry_profile=scheduler"),
    )
    with processes.server(tmp_path, *options) as server:
        grpc = server.line("ready")["grpc"]
        args = ("default", "{}", "--type", "hangs_once", "--max-retries", "5")
        job_id = ctl(grpc, "job", "submit", *args).out.strip()
        while ctl(grpc, "job", "status", job_id, "-o", "json").json["status"] != "RUNNING":
            pass
        server.signal(signal.SIGKILL)
        server.wait()
    with processes.server(tmp_path, *options) as server:
        grpc = server.line("ready")["grpc"]
        # No heartbeat timeout has to pass: the pool comes back under its old name.
        assert ctl(grpc, "--timeout", "20", "job", "watch", job_id).status == 0
        events = ctl(grpc, "job", "logs", job_id, "-o", "json").json["events"]
        assert "WORKER_LOST" in [event["reason"] for event in events]
        assert server.stop() == 0


# -- settings ----------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-043", "jq:FR-044")
def test_file_environment_and_flags_reach_the_server(tmp_path, ctl):
    (tmp_path / "server.yaml").write_text(
        "queue:\n  capacity: 3\n  max_retries: 9\nworker:\n  concurrency: 0\n  queues: [mail]\n"
    )
    with processes.server(
        tmp_path,
        "--config",
        "server.yaml",
        "--set",
        "queue.ttl=77",
        JQ_QUEUE_MAX_RETRIES="8",
    ) as server:
        grpc = server.line("ready")["grpc"]
        ctl(grpc, "queue", "create", "mail")
        for name in ("default", "mail"):
            stats = ctl(grpc, "queue", "stats", name, "-o", "json").json
            assert (stats["capacity"], stats["max_retries"], stats["ttl"]) == (3, 8, 77)
        full = ctl(grpc, "job", "submit", "mail", "1", "--count", "4")
        assert full.status == 10
        assert len(full.out.split()) == 3
        assert server.stop() == 0


@pytest.mark.req("jq:FR-045")
def test_a_secret_in_the_file_is_warned_about_and_not_shown(tmp_path):
    (tmp_path / "server.yaml").write_text(f"db:\n  password: {SECRET}\n")
    with processes.server(tmp_path, "--config", "server.yaml") as server:
        warning = server.line("server.yaml:2: db.password holds a secret")
        assert warning["level"] == "WARNING"
        server.line("ready")
        assert server.stop() == 0
    assert SECRET not in json.dumps(server.lines)
    assert server.noise == []


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (("--http-port", "x"), 2, "http.port: 'x' is not allowed"),
        (("--set", "http.prot=1"), 2, "--set: unknown key http.prot (did you mean http.port?)"),
        (("--set", "db.password=x"), 2, "--set: db.password is a secret"),
        (("--config", "nowhere.yaml"), 2, "--config nowhere.yaml: No such file"),
        (("--db-url", "mysql://u:hush@h/x"), 2, "db.url: 'mysql://u:***@h/x' is not a known form"),
        (("--db-url", "redis://h/jobs"), 2, "the path must be the number of a database"),
        (
            ("--db-url", "redis://127.0.0.1:1", "--set", "db.start_timeout=0"),
            6,
            "Redis at 127.0.0.1:1",
        ),
        (("--db-url", "sqlite:////proc/x/jobs.db"), 6, "cannot create the folder"),
        (("--app", "nowhere:app"), 2, "--app: there is no module 'nowhere'"),
        (("--app", "json:dumps"), 2, "--app: json:dumps is a function"),
        (("--app", "json"), 2, "--app: 'json' is not MODULE:ATTRIBUTE"),
    ],
)
def test_a_bad_start_says_why(tmp_path, args, status, message):
    answer = processes.run("server", *args, cwd=tmp_path)
    assert answer.returncode == status
    assert message in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stdout + answer.stderr
    assert "hush" not in answer.stdout + answer.stderr
    assert list(tmp_path.iterdir()) == []


@one_server
@pytest.mark.parametrize("face", ["http", "grpc"])
def test_a_taken_port_is_one_line_that_says_what_to_do(tmp_path, server, face):
    port = getattr(server, face).rpartition(":")[2]
    ports = {"JQ_HTTP_PORT": "0", "JQ_GRPC_PORT": "0", f"JQ_{face.upper()}_PORT": port}
    answer = processes.run("server", cwd=tmp_path, **ports)
    assert answer.returncode == 6
    assert answer.stderr == ""
    (line,) = answer.stdout.splitlines()
    error = json.loads(line)
    assert (error["level"], error["code"]) == ("ERROR", "UNAVAILABLE")
    assert error["message"] == (
        f"{face}.port: 127.0.0.1:{port} is in use by another program; stop it, or choose another"
        f" port with --{face}-port or JQ_{face.upper()}_PORT (0 takes a free one)"
    )
    assert list(tmp_path.rglob("*.db")) == []


@pytest.mark.parametrize("face", ["http", "grpc"])
def test_a_second_server_on_the_same_ports_leaves_the_first_one_its_pool(tmp_path, ctl, face):
    name = {"JQ_WORKER_ID": "pool"}  # as two servers have it that are given the same ports
    with processes.server(tmp_path, **name) as first:
        ready = first.line("ready")
        port = ready[face].rpartition(":")[2]
        ports = {"JQ_HTTP_PORT": "0", "JQ_GRPC_PORT": "0", f"JQ_{face.upper()}_PORT": port}
        second = processes.run("server", cwd=tmp_path, timeout=30, **name, **ports)
        assert second.returncode == 6
        job = ("job", "submit", "default", "1", "--wait", "--wait-timeout", "20")
        assert ctl(ready["grpc"], *job).status == 0
        assert first.stop() == 0
    assert not [line for line in first.lines if line["level"] == "WARNING"]


@pytest.mark.parametrize("face", ["http", "grpc"])
def test_an_address_of_another_machine_names_the_setting(tmp_path, face):
    host = "192.0.2.1"  # for documentation: nobody has it
    answer = processes.run(
        "server", f"--{face}-host", host, "--http-port", "0", "--grpc-port", "0",
        "--set", "server.insecure=true", "--log-level", "error", cwd=tmp_path,
    )  # fmt: skip
    assert answer.returncode == 6
    assert answer.stderr == ""
    (line,) = answer.stdout.splitlines()
    assert f"{face}.host: {host} is not an address of this machine" in json.loads(line)["message"]


# -- dry run -----------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-046", "jq:FR-045")
def test_a_dry_run_checks_and_starts_nothing(tmp_path):
    answer = processes.run(
        "server", "--dry-run", "--http-port", "0", "--grpc-port", "0", cwd=tmp_path,
        JQ_DB_PASSWORD=SECRET, JQ_QUEUE_CAPACITY="5",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    rows = [line.split() for line in answer.stdout.splitlines()]
    assert ["queue.capacity", "5", "environment", "JQ_QUEUE_CAPACITY"] in rows
    assert ["db.password", "***", "environment", "JQ_DB_PASSWORD"] in rows
    assert ["http.port", "0", "flag", "--http-port"] in rows
    assert rows[-1] == ["All", "checks", "passed"]
    assert any(row[:2] == ["store", "ok"] for row in rows)
    assert any(row[:3] == ["kafka", "not", "configured"] for row in rows)
    assert SECRET not in answer.stdout + answer.stderr
    assert list(tmp_path.iterdir()) == []


@one_server
@pytest.mark.req("jq:FR-046")
def test_a_dry_run_fails_when_something_is_wrong(tmp_path, server):
    (tmp_path / "broken.db").write_bytes(b"this is no database, and it is long enough to tell" * 99)
    port = server.http.rpartition(":")[2]
    answer = processes.run(
        "server", "--dry-run", "--db-url", "sqlite:///broken.db", "--http-port", port,
        "--grpc-port", "0", "--app", "nowhere:app", cwd=tmp_path,
    )  # fmt: skip
    assert answer.returncode == 1
    failing = [line.split()[0] for line in answer.stdout.splitlines() if " failing " in line]
    assert failing == ["store", "http", "app"]
    assert "3 of 9 checks failed" in answer.stdout


# -- help and version --------------------------------------------------------------------------


@pytest.mark.req("jq:NFR-017")
@pytest.mark.parametrize(
    ("module", "argument"),
    [
        ("server", "--version"),
        ("worker", "--version"),
        ("service", "--version"),
        ("ctl", "--version"),
        ("ctl", "version"),
    ],
)
def test_version_is_semantic_with_the_commit(tmp_path, module, argument):
    answer = processes.run(module, argument, cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (0, "jobqueue 0.1.0 (commit abc1234)\n")


@pytest.mark.req("jq:NFR-016")
@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("server", ["--config", "--dry-run", "--app", "--http-port", "--version", "Examples"]),
        ("worker", ["--queues", "--concurrency", "--exec", "--server", "--version", "Examples"]),
        ("ctl", ["job", "queue", "worker", "dlq", "status", "--output", "--timeout", "Examples"]),
    ],
)
def test_help_describes_every_flag(tmp_path, module, expected):
    answer = processes.run(module, "--help", cwd=tmp_path)
    assert answer.returncode == 0
    for word in expected:
        assert word in answer.stdout


@pytest.mark.req("jq:NFR-016")
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (
            ("server",),
            {
                "--http-port": "INT",
                "--worker-concurrency": "INT",
                "--worker-queues": "NAME,...",
                "--db-url": "URL",
                "--config": "FILE",
                "--role": "all|api|scheduler",
                "--dry-run": "",
                "--version": "",
                "--help": "",
            },
        ),
        (("worker",), {"--concurrency": "INT", "--metrics-port": "INT", "--id": "TEXT"}),
        (("ctl",), {"--timeout": "SECONDS", "--version": "", "--output": "table|json"}),
        (("ctl", "job", "submit"), {"--priority": "INT", "--wait": "", "--type": "TEXT"}),
        (("ctl", "queue", "create"), {"--capacity": "INT", "--ttl": "SECONDS", "--help": ""}),
        (("ctl", "up"), {"--servers": "INT", "--concurrency": "INT", "--detach": ""}),
        (("ctl", "replay"), {"--from-kafka": "", "--into": "URL"}),
        (("service", "worker"), {"--check": "", "--output": "table|json"}),
        (("demo",), {"--fast": "", "--seed": "INT"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_help_shows_the_type_of_each_option_and_none_for_flags(tmp_path, command, shown):
    module, *below = command
    answer = processes.run(module, *below, "--help", cwd=tmp_path, COLUMNS="200")
    assert answer.returncode == 0
    found = dict(re.findall(r"^│ +(--[a-z-]+)(?: +-\w)? {2,}(.*)$", answer.stdout, re.MULTILINE))
    for option, name in shown.items():
        if name:
            assert re.match(rf"{re.escape(name)}( \[|  )", found[option]), (option, found[option])
        else:
            assert re.match(r"[A-Z][a-z]+ ", found[option]), (option, found[option])
    assert not re.search(r"<(bool|int|str|float)", answer.stdout)
