"""Start a private PostgreSQL and Redis for all compared systems, and empty them before each run."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any

from jobqueue.bench.peers.catalogue import Backing, Fsync
from jobqueue.core.errors import Unavailable
from jobqueue.fleet.backing import PrivatePostgres, PrivateRedis

_DATABASE = "peers"


class PeerServers:
    """Starts PostgreSQL or Redis when a run first needs it, and empties it before each run."""

    def __init__(self, folder: Path, fsync: Fsync = Fsync.NEVER) -> None:
        self._folder = folder
        self._fsync = fsync
        self._postgres: PrivatePostgres | None = None
        self._redis: PrivateRedis | None = None
        self._files = 0
        self.conditions: dict[str, str] = {}

    def empty(self, backing: Backing) -> str:
        """Return the URL of an empty database for jobs. Raises Unavailable."""
        if backing is Backing.POSTGRES:
            return self._empty_database()
        if backing is Backing.REDIS:
            return self._flushed()
        self._files += 1
        self.conditions["SQLite"] = "WAL, synchronous=FULL"
        return f"sqlite:///{self._folder}/jobs-{self._files}.db"

    def processes(self) -> dict[str, int]:
        """Return the process ids of the running servers by name."""
        found = {"PostgreSQL": self._postgres, "Redis": self._redis}
        return {name: one.pid for name, one in found.items() if one is not None and one.pid}

    def stop(self) -> None:
        """Stop both servers."""
        for server in (self._postgres, self._redis):
            if server is not None:
                server.remove()

    def _empty_database(self) -> str:
        asyncpg = _library("asyncpg", "PostgreSQL", "postgres")
        if self._postgres is None:
            server = PrivatePostgres(self._folder / "postgres")
            server.start()
            self._postgres = server
        dsn = self._postgres.dsn()

        async def create() -> str:
            connection = await asyncpg.connect(dsn)
            try:
                await connection.execute(f"DROP DATABASE IF EXISTS {_DATABASE} WITH (FORCE)")
                await connection.execute(f"CREATE DATABASE {_DATABASE}")
                await connection.execute("CHECKPOINT")
                names = ("server_version", "fsync", "synchronous_commit")
                told = [await connection.fetchval(f"SHOW {name}") for name in names]
            finally:
                await connection.close()
            return "{}: fsync {}, synchronous_commit {}".format(*told)

        self.conditions["PostgreSQL"] = asyncio.run(create())
        return self._postgres.dsn(_DATABASE)

    def _flushed(self) -> str:
        redis = _library("redis", "Redis", "redis")
        if self._redis is None:
            logged = self._fsync is not Fsync.NEVER
            settings = {"appendonly": "yes", "appendfsync": str(self._fsync)} if logged else {}
            server = PrivateRedis(self._folder / "redis", settings)
            server.start()
            self._redis = server
        with redis.Redis.from_url(self._redis.url) as client:
            client.flushall()
            version = client.info("server")["redis_version"]
            logged = client.config_get("appendonly")["appendonly"] == "yes"
            fsync = client.config_get("appendfsync")["appendfsync"]
            saved = client.config_get("save")["save"] or "never"
        log = f"append-only file, fsync {fsync}" if logged else "no append-only file"
        self.conditions["Redis"] = f"{version}: {log}, save {saved}"
        return self._redis.url


def _library(name: str, server: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise Unavailable(
            f"{server} needs the extra jobqueue[{extra}], which is not installed:"
            f" pip install 'jobqueue[{extra}]'"
        ) from None
