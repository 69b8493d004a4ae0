"""Client libraries that are not installed: every program names the command that installs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import patience
from tests.cli import processes

# Python reads it at its start; a module that is None there cannot be imported.
BARE = """\
import sys

sys.modules.update(dict.fromkeys(["asyncpg", "redis", "confluent_kafka", "cryptography"]))
"""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of an installation without extras."""
    folder = tmp_path / "python"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BARE)
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        (
            ("replicated",),
            "asyncpg and redis are not installed: pip install 'jobqueue[postgres,redis]'",
        ),
        (
            ("streaming",),
            "redis and confluent_kafka are not installed: pip install 'jobqueue[redis,kafka]'",
        ),
        (
            ("embedded", "--set", "kafka.bootstrap=127.0.0.1:1"),
            "confluent_kafka is not installed: pip install 'jobqueue[kafka]'",
        ),
        (
            ("replicated", "--postgres", "postgresql://h/d", "--redis", "redis://h"),
            "asyncpg and redis are not installed: pip install 'jobqueue[postgres,redis]'",
        ),
    ],
)
def test_up_starts_nothing_without_the_extras(tmp_path, bare, topology, said):
    answer = processes.run(
        "ctl", "up", *topology, "--folder", str(tmp_path / "fleet"), cwd=tmp_path, **bare
    )
    assert answer.returncode == 4
    assert answer.stdout == ""
    assert answer.stderr.splitlines()[0] == f"error: {said}"
    assert not (tmp_path / "fleet").exists()


def test_up_names_missing_programs_and_extras_at_once(tmp_path, bare):
    """PATH leads nowhere, and Kafka is in no other of the usual places."""
    answer = processes.run(
        "ctl", "up", "streaming", "--folder", str(tmp_path / "fleet"), cwd=tmp_path, **bare,
        PATH=str(tmp_path), KAFKA_HOME=str(tmp_path), HOME=str(tmp_path),
        XDG_CACHE_HOME=str(tmp_path),
    )  # fmt: skip
    assert answer.returncode == 4
    assert "pip install 'jobqueue[redis,kafka]'" in answer.stderr
    assert "Kafka is not installed" in answer.stderr or "KAFKA_HOME" in answer.stderr


@pytest.mark.parametrize(
    ("module", "args", "extra"),
    [
        ("server", ("--db-url", "postgresql://h/d"), "postgres"),
        ("server", ("--db-url", "redis://h"), "redis"),
        ("server", ("--kafka-bootstrap", "h:9092"), "kafka"),
        ("server", ("--set", "auth.jwt_keys_file=keys"), "jwt"),
        ("worker", ("--url", "postgresql://h/d"), "postgres"),
        ("worker", ("--url", "redis://h"), "redis"),
        ("ctl", ("--url", "postgresql://h/d", "status"), "postgres"),
        ("ctl", ("--url", "redis://h", "queue", "list"), "redis"),
        ("ctl", ("--url", "postgresql://h/d", "layout"), "postgres"),
        ("ctl", ("events", "tail", "--bootstrap", "h:9092"), "kafka"),
        (
            "ctl",
            ("replay", "--from-kafka", "--into", "sqlite:///x.db", "--kafka-bootstrap", "h:9092"),
            "kafka",
        ),
    ],
)
def test_a_program_says_in_one_line_how_to_install_an_extra(tmp_path, bare, module, args, extra):
    answer = processes.run(module, *args, cwd=tmp_path, **bare)
    assert answer.returncode == 2
    (line,) = (answer.stdout + answer.stderr).splitlines()
    assert f"which is not installed: pip install 'jobqueue[{extra}]'" in line


def test_a_shared_secret_needs_no_extra(tmp_path, bare):
    answer = processes.run(
        "server", "--dry-run", "--db-url", "memory://", "--http-port", "0", "--grpc-port", "0",
        cwd=tmp_path, **bare, JQ_AUTH_JWT_SECRET="s" * 32,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout
    assert "callers must be known" in " ".join(answer.stdout.split())


@pytest.mark.parametrize(
    ("url", "extra"),
    [("postgresql://u@h/d", "postgres"), ("postgres://u@h/d", "postgres"), ("redis://h", "redis")],
)
def test_an_app_says_how_to_install_an_extra(tmp_path, bare, url, extra):
    script = f"""
from jobqueue import JobQueue

app = JobQueue({url!r})
app.sync().run(app.operator.list_queues())
"""
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=processes.environment(**bare),
        capture_output=True, text=True, timeout=patience.longest(30),
    )  # fmt: skip
    last = answer.stderr.splitlines()[-1]
    assert last.startswith("jobqueue.core.errors.InvalidArgument: url: needs the package")
    assert last.endswith(f"pip install 'jobqueue[{extra}]'")
    assert answer.stderr.count("Traceback") == 1
