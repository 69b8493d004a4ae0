"""A web application under gunicorn, with and without --preload, that submits before the fork."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request

import pytest

from tests import patience
from tests.journeys.machine import Machine
from tests.programs import Program

WORKERS = 4

WEB = """
import os

from jobqueue import JobQueue, JobQueueError

app = JobQueue(os.environ["JOBS"])


@app.task
def noop(n: int) -> None: ...


q = app.sync()
early = q.submit(noop, 0)  # when the module is imported: before the fork, with --preload


def submit() -> str:
    try:
        return "submitted " + q.submit(noop, os.getpid()).id
    except JobQueueError as error:
        return f"{type(error).__name__}: {error}"


def application(environ, start_response):
    said = submit()
    status = "200 OK" if said.startswith("submitted") else "500 Internal Server Error"
    start_response(status, [("Content-Type", "text/plain")])
    return [said.encode()]
"""

# Every worker submits once, so that none of them is left out by chance.
CONFIGURATION = """
def post_worker_init(worker):
    import web
    worker.log.info("worker says: %s", web.submit())
"""


@pytest.fixture(params=["--preload", "--no-preload"])
def preload(request: pytest.FixtureRequest) -> list[str]:
    return [request.param] if request.param == "--preload" else []


def serve(machine: Machine, url: str, preload: list[str]) -> tuple[Program, list[str]]:
    """Start gunicorn; what each of its workers said of its first submit."""
    machine.write("web.py", WEB)
    machine.write("gunicorn.conf.py", CONFIGURATION)
    gunicorn = machine.start(
        *("gunicorn", "--workers", str(WORKERS), "--bind", "127.0.0.1:0", *preload),
        "web:application",
        JOBS=url,
    )

    def first_words() -> list[str] | None:
        said = [line for line in gunicorn.printed if "worker says: " in line]
        return said if len(said) == WORKERS else None

    heard = gunicorn.wait_until(first_words, "each worker's first words")
    return gunicorn, [line.partition("worker says: ")[2].strip() for line in heard]


def ask(gunicorn: Program) -> tuple[int, str]:
    listens = gunicorn.line_with("Listening at: ")
    address = re.search(r"http://[\d.:]+", listens)
    assert address is not None
    try:
        with urllib.request.urlopen(address[0], timeout=patience.longest(30)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def check_that_it_works(machine: Machine, url: str, preload: list[str]) -> None:
    gunicorn, said = serve(machine, url, preload)
    assert [line.split()[0] for line in said] == ["submitted"] * WORKERS, said
    status, answer = ask(gunicorn)
    assert status == 200, answer
    assert gunicorn.stop() == 0
    assert "SIGSEGV" not in gunicorn.text
    assert "Traceback" not in gunicorn.text
    # None of what was accepted is lost, though parent and children have opened and closed it.
    stats = json.loads(
        machine.succeed("jq-ctl", "--url", url, "--output", "json", "queue", "stats", "default")
    )
    early = 1 if preload else WORKERS
    assert stats["depth"]["PENDING"] == early + WORKERS + 1, stats


def test_on_a_file(machine: Machine, preload: list[str]) -> None:
    check_that_it_works(machine, "sqlite:///jobs.db", preload)


def test_on_a_server(machine: Machine, preload: list[str]) -> None:
    ports = ("--http-port", "0", "--grpc-port", "0", "--worker-concurrency", "0")
    server = machine.start("jq-server", *ports)
    ready = json.loads(server.line_with('"message": "ready'))
    check_that_it_works(machine, f"grpc://{ready['grpc']}", preload)
    assert server.stop() == 0


def test_on_postgresql(machine: Machine, preload: list[str], postgres_dsn: str) -> None:
    check_that_it_works(machine, postgres_dsn, preload)


def test_in_memory_the_workers_of_a_preloaded_application_are_told_what_to_do(
    machine: Machine,
) -> None:
    gunicorn, said = serve(machine, "memory://", ["--preload"])
    status, answer = ask(gunicorn)
    assert status == 500
    for line in (*said, answer):
        assert line.startswith("Conflict: the app's jobs are in the memory of the process")
        assert "sqlite:///FILE" in line
    assert gunicorn.stop() == 0


def test_in_memory_every_worker_has_a_queue_of_its_own(machine: Machine) -> None:
    gunicorn, said = serve(machine, "memory://", [])
    assert [line.split()[0] for line in said] == ["submitted"] * WORKERS, said
    assert ask(gunicorn)[0] == 200
    assert gunicorn.stop() == 0
