"""jq-server and jq-worker that are started before what they keep their jobs in."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli import processes
from tests.hanging import hung

NOWHERE = "postgresql://jq:hush@127.0.0.1:1/jobs"
AWAY = "cannot reach"


@pytest.fixture(params=["postgresql", "redis"])
def private(request: pytest.FixtureRequest):
    """A private server that is not there yet, and its URL."""
    if request.param == "redis":
        server = request.getfixturevalue("own_redis")()
        url = server.url
    else:
        server = request.getfixturevalue("own_postgres")()
        url = server.dsn()
    server.kill()
    return server, url


@pytest.mark.integration
def test_a_server_waits_for_its_store(tmp_path: Path, private):
    store, url = private
    with processes.server(tmp_path, "--db-url", url) as server:
        said = server.line(AWAY)
        assert said["level"] == "WARNING"
        assert f"127.0.0.1:{store.port}" in said["message"]
        assert "trying again in" in said["message"]
        store.restart()
        server.line("ready")
        assert server.stop() == 0


@pytest.mark.integration
def test_a_worker_waits_for_its_store(tmp_path: Path, private):
    store, url = private
    arguments = ("--url", url, "--metrics-port", "0")
    with processes.Service("worker", *arguments, cwd=tmp_path) as worker:
        assert f"127.0.0.1:{store.port}" in worker.line(AWAY)["message"]
        store.restart()
        worker.line("ready")
        assert worker.stop() == 0


@pytest.mark.integration
def test_a_server_waits_for_a_store_that_hangs(tmp_path: Path, own_postgres):
    postgres = own_postgres()
    with hung(postgres.pid):
        server = processes.server(tmp_path, "--db-url", postgres.dsn())
        said = server.line(AWAY, timeout=60.0)
    with server:
        assert "no answer in time" in said["message"]
        server.line("ready")
        assert server.stop() == 0


@pytest.mark.parametrize("url", [NOWHERE, "redis://127.0.0.1:1"])
def test_a_stop_ends_the_wait(tmp_path: Path, url: str):
    with processes.server(tmp_path, "--db-url", url) as server:
        server.line(AWAY)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert server.lines[-1]["message"] == "stopped before it was ready"


@pytest.mark.parametrize("program", ["server", "worker"])
@pytest.mark.parametrize(("wait", "tries"), [("0", 0), ("0.1", 1)])
def test_the_wait_is_bounded(tmp_path: Path, program: str, wait: str, tries: int):
    where = ("--db-url", NOWHERE) if program == "server" else ("--url", NOWHERE)
    with processes.Service(
        program, *where, "--set", f"db.start_timeout={wait}", cwd=tmp_path
    ) as service:
        assert service.wait() == 6
        errors = [line for line in service.lines if line["level"] == "ERROR"]
        assert [line["message"] for line in errors] == [
            "PostgreSQL at 127.0.0.1:1: connection refused"
        ]
        waited = [line for line in service.lines if line["message"].startswith(AWAY)]
        assert len(waited) >= tries
        assert tries or not waited
        assert "hush" not in str(service.lines) + str(service.noise)


@pytest.mark.integration
@pytest.mark.parametrize("mistake", ["database", "user", "redis password"])
def test_what_does_not_heal_by_itself_ends_the_start_at_once(
    tmp_path: Path, request: pytest.FixtureRequest, mistake: str
):
    if mistake == "redis password":
        port = request.getfixturevalue("own_redis")().port
        url = f"redis://:wrong@127.0.0.1:{port}"
    else:
        dsn = request.getfixturevalue("own_postgres")().dsn()
        url = f"{dsn}_nowhere" if mistake == "database" else dsn.replace("postgres:", "nobody:")
    answer = processes.run("server", "--db-url", url, cwd=tmp_path)
    assert answer.returncode == 6
    assert AWAY not in answer.stdout
    assert "at 127.0.0.1:" in answer.stdout
