"""A Redis that a test disturbs."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from jobqueue.core.queue import Queue
from jobqueue.fleet.backing import PrivateRedis
from jobqueue.stores.redis.store import RedisStore
from tests.stores.driver import NO_BACKOFF
from tests.stores.redis.proxy import Proxy


class Victim:
    """A Redis of one test's own: it may be stopped, paused and started again on its port."""

    def __init__(self, server: PrivateRedis) -> None:
        self._server = server
        self.url = server.url
        self.port = server.port
        self.place = f"127.0.0.1:{server.port}/0"  # what its URL says without a login
        self._password = server.password
        self.stop = server.kill
        self.start = server.restart  # on its old port

    def send(self, *words: str) -> bytes:
        """One command over a connection of its own."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(_command("AUTH", self._password))
            assert connection.recv(65536) == b"+OK\r\n"
            connection.sendall(_command(*words))
            answer = connection.recv(65536)
        if words[:-1] == ("CONFIG", "SET", "requirepass"):
            self._password = words[-1]
        return answer

    def signal(self, number: signal.Signals) -> None:
        """Pause it, or let it go on."""
        assert self._server.pid is not None
        os.kill(self._server.pid, number)


def _command(*words: str) -> bytes:
    text = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{text}".encode()


@pytest.fixture
def victim(own_redis) -> Victim:
    return Victim(own_redis())


# -- the store -------------------------------------------------------------------------------

DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
OpenStore = Callable[..., Awaitable[RedisStore]]


@pytest_asyncio.fixture
async def open_store(redis_url: str) -> AsyncIterator[OpenStore]:
    """Stores on one Redis database, or on the one that is named, with the queue ``q``."""
    stores: list[RedisStore] = []

    async def open_one(url: str = redis_url, **options: Any) -> RedisStore:
        stores.append(RedisStore(url, **options))
        await stores[-1].open()
        await stores[-1].queues.create(Queue(name="q", retry_profile=NO_BACKOFF))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.close()


@pytest_asyncio.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    """Plain Redis, as ``redis-cli`` would be."""
    async with Redis.from_url(redis_url, decode_responses=True) as plain:
        yield plain


@pytest_asyncio.fixture
async def proxy(redis_url: str) -> AsyncIterator[Proxy]:
    made = Proxy(redis_url)
    await made.open()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def cuttable(proxy: Proxy, open_store: OpenStore) -> RedisStore:
    """A store whose line can be cut."""
    return await open_store(proxy.url)
