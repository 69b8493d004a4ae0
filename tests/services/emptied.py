"""Databases that tests use one after the other: emptied before the next test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg

from tests import patience

_NORMAL = 16384  # object ids below this one are PostgreSQL's own
_GONE = 5.0  # seconds until the backend of a connection that was terminated is gone
_TROUBLE = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)

_OTHERS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> ALL ($1::int[])
  AND backend_type = 'client backend'
"""

# Everything that a test may have changed besides rows. Each statement that changes a relation or
# a function writes a row of a catalogue anew, which gives it another xmin. VACUUM and ANALYZE
# write the counts in place.
_SCHEMA = f"""
SELECT md5(concat_ws(';',
    string_agg(concat_ws(',', oid, xmin, relpages, reltuples), ' ' ORDER BY oid),
    (SELECT string_agg(concat_ws(',', attrelid, attnum, xmin), ' ' ORDER BY attrelid, attnum)
       FROM pg_attribute WHERE attrelid >= {_NORMAL}),
    (SELECT string_agg(concat_ws(',', oid, xmin), ' ' ORDER BY oid) FROM pg_proc
       WHERE oid >= {_NORMAL}),
    (SELECT string_agg(concat_ws(',', oid, xmin), ' ' ORDER BY oid) FROM pg_trigger
       WHERE oid >= {_NORMAL}),
    (SELECT string_agg(concat_ws(',', oid, xmin), ' ' ORDER BY oid) FROM pg_constraint
       WHERE oid >= {_NORMAL}),
    (SELECT string_agg(concat_ws(',', oid, xmin), ' ' ORDER BY oid) FROM pg_rewrite
       WHERE oid >= {_NORMAL}),
    (SELECT string_agg(concat_ws(',', oid, xmin), ' ' ORDER BY oid) FROM pg_namespace
       WHERE oid >= {_NORMAL} OR nspname = 'public'),
    (SELECT string_agg(concat_ws(',', oid, xmin), ' ' ORDER BY oid) FROM pg_extension),
    (SELECT string_agg(concat_ws(',', setrole, setconfig), ' ' ORDER BY setrole)
       FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase
      WHERE datname = current_database())))
FROM pg_class WHERE oid >= {_NORMAL}
"""

_TABLES = f"""
SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND oid >= {_NORMAL} ORDER BY oid
"""
# The planner takes an empty table of more than ten pages for a full one.
_GROWN = f"""
SELECT oid::regclass::text FROM pg_class
WHERE relkind = 'r' AND oid >= {_NORMAL} AND pg_relation_size(oid) > 4 * 8192
"""
_NO_TRIGGERS = "SET LOCAL session_replication_role = replica;"  # and no foreign key
_SEQUENCES = """
SELECT setval(seqrelid::regclass, seqstart, false) FROM pg_sequence
"""


class Emptied:
    """A database with the schema that tests use one after the other.

    A test sees no difference to a new one: the schema, the planner's figures, the settings and the
    basic rows are those of the template, or the database is not used again. To drop it and to copy
    the template costs PostgreSQL 30 ms more, most of it for reading a catalogue that is not in its
    memory.
    """

    def __init__(self, name: str, connection: Any) -> None:
        self.name = name
        self._connection = connection
        self._schema = ""
        self._kept = ""
        self._rows = ""
        self._empty = ""

    @classmethod
    async def look(cls, name: str, connection: Any) -> Emptied:
        """Remember what a database looks like that was just copied from the template."""
        made = cls(name, connection)
        made._schema = await connection.fetchval(_SCHEMA)
        tables = [row[0] for row in await connection.fetch(_TABLES)]
        filled = [t for t in tables if await connection.fetchval(f"SELECT EXISTS (TABLE {t})")]
        rows = [f"(SELECT string_agg(t::text, ' ' ORDER BY t::text) FROM {t} t)" for t in filled]
        made._kept = f"SELECT md5(concat_ws(';', {', '.join(rows)}))"
        made._rows = await connection.fetchval(made._kept)
        made._empty = "".join(
            [
                _NO_TRIGGERS,
                *(f"DELETE FROM {table};" for table in tables if table not in filled),
                _SEQUENCES,
            ]
        )
        return made

    async def empty(self, kept: Sequence[int] = ()) -> bool:
        """Return True if the database is as good as a new one now.

        All connections are ended, except those of the processes ``kept``, which do nothing.
        """
        connection = self._connection
        try:
            async with patience.timeout(_GONE):
                while await connection.fetchval(_OTHERS, kept):
                    await asyncio.sleep(0.001)
            if await connection.fetchval(_SCHEMA) != self._schema:
                return False
            if await connection.fetchval(self._kept) != self._rows:
                return False
            await connection.execute(self._empty)
            if grown := ", ".join([row[0] for row in await connection.fetch(_GROWN)]):
                await connection.execute(f"{_NO_TRIGGERS} TRUNCATE {grown} CASCADE")
                self._schema = await connection.fetchval(_SCHEMA)
        except _TROUBLE:
            return False
        return True

    async def close(self) -> None:
        """Close the connection, also where the database is gone."""
        if not self._connection.is_closed():
            self._connection.terminate()
