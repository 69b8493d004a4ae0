"""The descriptions of built-in types are read once by a process, not by each connection."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from jobqueue.stores.postgres import connections

pytestmark = pytest.mark.integration
ARRAYS = "SELECT '{1,2}'::smallint[], '{0.5}'::float8[], '{x,y}'::bytea[]"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[int]]:
    """Which types were asked for from here on."""
    asked: list[frozenset[int]] = []
    read = asyncpg.Connection._introspect_types

    async def seen(self: Any, oids: Any, timeout: Any) -> Any:
        asked.append(frozenset(oids))
        return await read(self, oids, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", seen)
    monkeypatch.setattr(connections, "_builtin_types", {})
    return asked


async def test_a_second_connection_asks_for_no_types(
    postgres_dsn: str, reads: list[frozenset[int]]
):
    for _ in range(2):
        connection = await connections.connect(postgres_dsn, {})
        try:
            row = await connection.raw.fetchrow(ARRAYS)
            assert tuple(row) == ([1, 2], [0.5], [b"x", b"y"])
            # Prepared before its types were known, and again by its own name.
            assert await connection.raw.fetchval("SELECT $1::smallint[]", [3]) == [3]
        finally:
            await connection.raw.close()
    assert len(reads) == 1


async def test_the_types_of_a_database_are_read_by_every_connection(
    postgres_dsn: str, reads: list[frozenset[int]]
):
    connection = await connections.connect(postgres_dsn, {})
    try:
        await connection.raw.execute("CREATE TYPE colour AS ENUM ('red', 'blue')")
    finally:
        await connection.raw.close()
    for _ in range(2):
        connection = await connections.connect(postgres_dsn, {})
        try:
            assert await connection.raw.fetchval("SELECT '{red}'::colour[]") == ["red"]
        finally:
            await connection.raw.close()
    assert len(reads) == 2
