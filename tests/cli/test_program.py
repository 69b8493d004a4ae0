"""Exit codes, timeouts, and the pieces that the three programs share."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from jobqueue._version import __version__
from jobqueue.api.listening import Endpoint
from jobqueue.cli import ctl, version
from jobqueue.cli.program import EXIT_CODES, clean
from jobqueue.core.errors import Code, Unavailable
from jobqueue.server.metrics_listener import MetricsListener
from tests import patience
from tests.cli import processes

ROOT = Path(__file__).parents[2]


def test_every_error_code_has_an_exit_code_of_its_own():
    assert set(EXIT_CODES) == set(Code)
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)
    assert not {0, 130} & set(EXIT_CODES.values())


def test_text_from_elsewhere_cannot_command_the_terminal():
    assert clean("a\x1b[2Jb\tc\nd\x07é", 2) == "a\\x1b[2Jb\tc\n  d\\x07é"


def options(command: Any) -> set[str]:
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_that_a_page_names_in_its_text_exist(page: Path):
    """Those of its blocks are run elsewhere (tests/journeys)."""
    for said in re.findall(r"`jq-ctl ([^`]+)`", page.read_text()):
        here: Any = typer.main.get_command(ctl.app)
        known = options(here)
        for word in said.split():
            if word.startswith("-"):
                assert word.partition("=")[0] in known, f"jq-ctl {said}: there is no {word}"
            elif getattr(here, "commands", None) and word in here.commands:
                here = here.get_command(typer.Context(here), word)
                known |= options(here)


# -- version -----------------------------------------------------------------------------------


@pytest.mark.req("jq:NFR-017")
def test_the_commit_is_that_of_the_environment_or_of_the_checkout(monkeypatch):
    monkeypatch.setenv("JQ_COMMIT", "0123456789abcdef")
    assert version.version_text() == f"jobqueue {__version__} (commit 0123456)"
    monkeypatch.delenv("JQ_COMMIT")

    def git(command, **_):
        return subprocess.CompletedProcess(command, 0, stdout="fedcba9\n")

    monkeypatch.setattr(subprocess, "run", git)
    assert version.commit() in ("fedcba9", version.UNKNOWN)
    monkeypatch.setattr(subprocess, "run", _no_git)
    assert version.commit() == version.UNKNOWN


def _no_git(*_, **__):
    raise FileNotFoundError("git")


# -- unreachable servers -----------------------------------------------------------------------


@pytest.fixture
def silent_port():
    """A port that connects and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.req("jq:NFR-004")
def test_a_server_that_does_not_answer_is_given_up(silent_port, tmp_path):
    limit = patience.Limit(9)
    answer = processes.run(
        "ctl", "--server", f"127.0.0.1:{silent_port}", "--timeout", "1", "queue", "list",
        cwd=tmp_path,
    )  # fmt: skip
    assert answer.returncode in (6, 7)
    assert not limit.over  # the default would be 10, and a start takes its time
    assert answer.stderr.startswith("error: ")
    assert "Traceback" not in answer.stderr


@pytest.mark.req("jq:NFR-004", "jq:FR-042")
def test_a_server_that_is_not_there_is_said_to_be_unreachable(tmp_path):
    answer = processes.run("ctl", "--server", "127.0.0.1:1", "status", cwd=tmp_path)
    assert answer.returncode == 6
    assert answer.stdout == (
        "Server:  unreachable\nAddress: grpc://127.0.0.1:1\n"
        "Error:   the server cannot be reached: 127.0.0.1:1: Connection refused; start one with"
        " jq-server, or name another with --server or JQ_URL\n"
    )
    listed = processes.run("ctl", "--server", "127.0.0.1:1", "-o", "json", "job", "list",
                           cwd=tmp_path)  # fmt: skip
    assert (listed.returncode, listed.stdout) == (6, "")
    assert '"code": "UNAVAILABLE"' in listed.stderr


def test_the_port_of_http_is_told_from_that_of_grpc(tmp_path):
    with processes.server(tmp_path, "--db-url", "memory://") as server:
        http = server.line("ready")["http"].removeprefix("http://")
        answer = processes.run("ctl", "--server", http, "job", "list", cwd=tmp_path)
        assert answer.returncode == 6
        assert answer.stderr.startswith(
            f"error: the server cannot be reached: {http} speaks HTTP, not gRPC; name the server's"
            " gRPC port"
        )
        assert server.stop() == 0


def test_a_file_that_is_not_there_is_not_created(tmp_path):
    answer = processes.run("ctl", "--url", "sqlite:///typo.db", "job", "list", cwd=tmp_path)
    assert answer.returncode == 4
    assert "there is no file 'typo.db'" in answer.stderr
    assert list(tmp_path.iterdir()) == []


# -- the metrics listener ----------------------------------------------------------------------


@pytest.fixture
async def listener():
    async def render() -> tuple[bytes, str]:
        return b"jq_up 1\n", "text/plain; version=0.0.4"

    listening = MetricsListener(render)
    port = await listening.start(Endpoint("127.0.0.1", 0, "host", "port"))
    yield port
    await listening.stop()
    await listening.stop()


async def talk(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1", b"200 OK", b"jq_up 1\n"),
        (b"HEAD /metrics HTTP/1.1", b"200 OK", b""),
        (b"GET /metrics?x=1 HTTP/1.0", b"200 OK", b"jq_up 1\n"),
        (b"GET /healthz HTTP/1.1", b"200 OK", b"ok\n"),
        (b"GET / HTTP/1.1", b"404 Not Found", b"not found; allowed: /metrics and /healthz\n"),
        (b"POST /metrics HTTP/1.1", b"405 Method Not Allowed", b"allowed: GET, HEAD\n"),
        (b"nonsense", b"404 Not Found", b"not found; allowed: /metrics and /healthz\n"),
    ],
)
async def test_the_listener_answers(listener, request_line, status, body):
    answer = await talk(listener, request_line + b"\r\nHost: localhost\r\n\r\n")
    head, _, found = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert found == body


async def test_the_listener_takes_only_so_much(listener):
    assert await talk(listener, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000) == b""


async def test_a_taken_port_is_an_error(listener):
    second = MetricsListener(lambda: asyncio.sleep(0, (b"", "")))
    with pytest.raises(Unavailable, match=f"b: 127.0.0.1:{listener} is in use by another program"):
        await second.start(Endpoint("127.0.0.1", listener, "a", "b"))
    await second.stop()


@pytest.mark.parametrize("program", ["server", "worker", "ctl"])
def test_a_variable_that_nobody_reads_is_told_of(tmp_path, program):
    """Each program ends at once, for another reason."""
    args = {
        "server": ("--db-url", "redis://127.0.0.1:1", "--set", "db.start_timeout=0"),
        "worker": ("--url", "redis://127.0.0.1:1", "--set", "db.start_timeout=0"),
        "ctl": ("--url", "sqlite:///nowhere.db", "queue", "list"),
    }[program]
    answer = processes.run(program, *args, cwd=tmp_path, JQ_DB_URI="x", JQ_HTTP_PORT="0")
    said = answer.stdout + answer.stderr
    wanted = "environment variable JQ_DB_URI is unknown and ignored; did you mean JQ_DB_URL?"
    assert said.count(wanted) == 1
    assert "JQ_HTTP_PORT" not in said
    if program == "ctl":
        answer = processes.run("ctl", "-o", "json", *args, cwd=tmp_path, JQ_DB_URI="x")
        assert json.loads(answer.stderr)["error"]["code"] == "NOT_FOUND"
