"""Real Redis servers: one for tests that only use it, own ones for tests that disturb it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

START_TIMEOUT = 10.0


class OwnRedis:
    """A Redis of one test's own: it may be stopped, paused and started again on its port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        binary = shutil.which("redis-server")
        assert binary is not None
        self._process = subprocess.Popen(
            [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder),
             "--save", "", "--appendonly", "no", *self._options],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                    probe.sendall(b"PING\r\n")
                    if probe.recv(64):
                        return
            except OSError:
                assert self._process.poll() is None, "redis-server ended"
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.01)

    def send(self, *words: str) -> bytes:
        """One command over a connection of its own."""
        text = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(f"*{len(words)}\r\n{text}".encode())
            return connection.recv(65536)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # nothing is kept, and a paused one hears nothing else
            self._process.wait(START_TIMEOUT)
            self._process = None


def _need_redis() -> None:
    if shutil.which("redis-server") is None:
        why = "redis-server is not installed; on Debian: apt-get install redis-server"
        if "redis" in os.environ.get("JQ_TEST_REQUIRE", "").split(","):
            pytest.fail(why)
        pytest.skip(why)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[OwnRedis]:
    _need_redis()
    server = OwnRedis(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis that nobody disturbs; names must not collide, as jobs' ids do not."""
    _need_redis()
    server = OwnRedis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.stop()
