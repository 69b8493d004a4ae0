"""The stores under the suite, by name."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from jobqueue.core.clock import Clock
from jobqueue.core.store import Rules, Store
from jobqueue.stores.memory import MemoryStore
from jobqueue.stores.postgres.store import PostgresStore
from jobqueue.stores.redis.store import RedisStore
from jobqueue.stores.sqlite import connection as sqlite
from jobqueue.stores.sqlite.store import SqliteStore
from tests import patience
from tests.services import kept
from tests.services.run import Run

Where = Callable[[], Any]
"""Makes a new, empty place for a store."""

STORES: dict[str, Callable[[Where, Rules, Clock], Store]] = {
    "memory": lambda where, rules, clock: MemoryStore(rules=rules, clock=clock),
    "sqlite": lambda where, rules, clock: SqliteStore(where(), rules=rules, clock=clock),
    "postgres": lambda where, rules, clock: PostgresStore(
        where(), rules=rules, clock=clock, patience=patience.stretched(5.0)
    ),
    "postgres-ranges": lambda where, rules, clock: PostgresStore(
        where(), rules=rules, clock=clock, patience=patience.stretched(5.0), few=1
    ),
    "redis": lambda where, rules, clock: RedisStore(
        **where(), rules=rules, clock=clock, patience=patience.stretched(5.0)
    ),
}
NEED_SERVERS = {"postgres", "postgres-ranges", "redis"}

NAMES = [
    pytest.param(name, marks=[pytest.mark.integration] if name in NEED_SERVERS else [])
    for name in STORES
]


@functools.cache
def _file_with_schema() -> bytes:
    """Return an SQLite file with the schema and no jobs, as the first opening leaves it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "new.db")
        with contextlib.closing(sqlite.connect(path)) as connection:
            sqlite.prepare(path, connection)
        return path.read_bytes()


class Places:
    """Files, databases or key prefixes for the stores of one test.

    Databases are given back at the end, and emptied before the next test, as Redis's is.
    """

    def __init__(self, request: pytest.FixtureRequest, store_name: str, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._run: Run | None = None
        self._redis = ""
        self._made: list[str] = []
        self._patch = pytest.MonkeyPatch()
        if store_name.startswith("postgres"):
            self._run = request.getfixturevalue("services")
            self._patch.setattr(asyncpg, "connect", kept.connect)
        elif store_name == "redis":
            self._redis = request.getfixturevalue("redis_url")

    def new(self) -> Any:
        """A place where nothing is yet."""
        self._count += 1
        if self._redis:
            return {"url": self._redis, "prefix": f"{{jq-{self._count}}}:"}
        if self._run is None:
            path = self._folder / f"{self._count}.db"
            path.touch(0o600)
            path.write_bytes(_file_with_schema())
            return str(path)
        name = self._run.databases.lend(kept.KEEPER.pids())
        self._made.append(name)
        return self._run.databases.dsn(name)

    def close(self) -> None:
        """Give back the databases, whose stores are closed."""
        while self._made:
            assert self._run is not None
            self._run.databases.give_back(self._made.pop())
        self._patch.undo()
