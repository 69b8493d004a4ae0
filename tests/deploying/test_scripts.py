"""What runs inside the containers beside the programs, without a container."""

from __future__ import annotations

import http.server
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobqueue.access.files import read_secret
from jobqueue.access.keyring import Keyring, read_key_file
from scripts import compose_secrets, ready
from tests import ports


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 503)
        self.end_headers()
        self.wfile.write(b"store: connecting")

    def log_message(self, *args: object) -> None:
        """Not to the terminal."""


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Answer) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def test_a_server_that_says_200_is_ready(server: str, capsys) -> None:
    assert ready.main([f"{server}/readyz"]) == 0
    assert capsys.readouterr().out.endswith("/readyz: ready\n")


def test_a_server_that_says_why_it_is_not_ready_is_quoted(server: str, capsys) -> None:
    assert ready.main([f"{server}/other"]) == 1
    assert capsys.readouterr().out.endswith("/other: 503: store: connecting\n")


def test_a_server_that_does_not_answer_is_not_ready(capsys) -> None:
    assert ready.main([f"http://127.0.0.1:{ports.take()}/readyz"]) == 1
    assert "refused" in capsys.readouterr().out


@pytest.mark.parametrize("url", ["", "ftp://a:1/b", "http://a/b", "http://a:x/b", "http://a:1"])
def test_what_is_no_address_is_never_ready(url: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        ready.main([url])
    assert ended.value.code == 2
    assert "http://HOST:PORT/PATH" in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the volumes mounted in it."""
    for name in compose_secrets.FOLDERS:
        (tmp_path / name).mkdir()
    return tmp_path


def test_secrets_are_made_once_and_fit_each_other(folder: Path) -> None:
    assert compose_secrets.main([str(folder)]) == 0
    made = {file: file.read_text() for file in folder.rglob("*") if file.is_file()}
    assert all(stat.S_IMODE(file.stat().st_mode) & 0o337 == 0 for file in made)
    keys = Keyring(read_key_file(folder / "server/api-keys", "keys"))
    roles = {
        name: {str(role) for role in found.roles}
        for name in ("worker", "operator", "monitoring")
        if (found := keys.find(read_secret(folder / name / "api-key", "key")))
    }
    assert roles == {
        "worker": {"worker"},
        "operator": {"operator", "client"},
        "monitoring": {"monitor"},
    }
    redis = read_secret(folder / "server/redis-password", "redis")
    assert f"requirepass {redis}\n" in (folder / "backing/redis.conf").read_text()
    assert not (folder / "worker/redis-password").exists()

    assert compose_secrets.main([str(folder)]) == 0
    assert made == {file: file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_an_interrupted_making_of_secrets_begins_again(folder: Path) -> None:
    compose_secrets.main([str(folder), "--workers-on-redis"])
    (folder / "server/.done").unlink()
    compose_secrets.main([str(folder), "--workers-on-redis"])
    redis = (folder / "worker/redis-password").read_text()
    assert redis == (folder / "server/redis-password").read_text()
    assert redis.strip() in (folder / "backing/redis.conf").read_text()
