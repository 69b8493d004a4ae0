"""A Redis that a test disturbs."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from jobqueue.topology.backing import PrivateRedis


class Victim:
    """A Redis of one test's own: it may be stopped, paused and started again on its port."""

    def __init__(self, server: PrivateRedis) -> None:
        self._server = server
        self.url = server.url
        self.port = server.port
        self.stop = server.kill
        self.start = server.restart  # on its old port

    def send(self, *words: str) -> bytes:
        """One command over a connection of its own."""
        text = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(f"*{len(words)}\r\n{text}".encode())
            return connection.recv(65536)

    def signal(self, number: signal.Signals) -> None:
        """Pause it, or let it go on."""
        assert self._server.pid is not None
        os.kill(self._server.pid, number)


@pytest.fixture
def victim(own_redis) -> Victim:
    return Victim(own_redis())
