"""Submit jobs and end attempts inside a transaction of the user's own, on the user's connection.

Each driver has an adapter, which is chosen by the connection's class. No driver is imported for
that: a driver that the program has not imported cannot have made the connection.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jobqueue.connect.urls import parse_url
from jobqueue.core.errors import (
    Conflict,
    InvalidArgument,
    JobQueueError,
    PermissionDenied,
    QueueFull,
    Unavailable,
    no_such_queue,
)
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import JobSpec, NewJob, SubmitResult, Transition
from jobqueue.core.store import Rules
from jobqueue.engine.admission import check_spec, check_start_within
from jobqueue.engine.settings import EngineSettings

if TYPE_CHECKING:
    import sqlite3

SUPPORTED = (
    "a connection of asyncpg or psycopg 3, a connection or session of SQLAlchemy 2 over one of"
    " them, Django's connection to PostgreSQL, or a sqlite3.Connection to the queue's file"
)
_SUBMIT = (
    "SELECT status, CAST(job_id AS text), field, message"
    " FROM jq.submit_jobs(CAST(CAST({} AS text) AS json)) ORDER BY n"
)
_COMPLETE = (
    "SELECT jq.complete(CAST({} AS bigint), CAST({} AS bigint), CAST({} AS text),"
    " CAST({} AS text), CAST({} AS float8))"
)
_NO_SCHEMA, _NO_FUNCTION, _NO_RIGHT = "3F000", "42883", "42501"
# The database does not know the callers of servers, so a key has no owner here.
_FIELDS = tuple(one.name for one in fields(JobSpec) if one.name != "key_owner")

Row = Sequence[Any]


def _not_begun(how: str, why: str = "") -> InvalidArgument:
    return InvalidArgument(
        "connection",
        f"{why}is not in a transaction, so the call would take effect at once: begin a transaction"
        f" first, as `{how}`",
    )


class UserDatabase(Protocol):
    """A user's connection to PostgreSQL, through its driver."""

    blocking: bool
    """True if a call blocks the thread, and must be made in the thread of the connection."""

    async def fetch(self, statement: str, *values: object) -> Sequence[Row]:
        """Run a statement in the user's transaction. Each ``{}`` in it stands for one value."""
        ...


class _Asyncpg:
    blocking = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *values: object) -> Sequence[Row]:
        if not self._connection.is_in_transaction():
            raise _not_begun("async with connection.transaction():")
        marks = (f"${n}" for n in range(1, len(values) + 1))
        rows: Sequence[Row] = await self._connection.fetch(statement.format(*marks), *values)
        return rows


def _asyncpg(module: Any, connection: Any) -> UserDatabase | None:
    kinds = (module.Connection, module.pool.PoolConnectionProxy)
    return _Asyncpg(connection) if isinstance(connection, kinds) else None


class _Psycopg:
    blocking = True

    def __init__(self, connection: Any, tuples: Any) -> None:
        self._connection = connection
        self._tuples = tuples

    async def fetch(self, statement: str, *values: object) -> Sequence[Row]:
        _check_psycopg(self._connection)
        with self._connection.cursor(row_factory=self._tuples) as cursor:
            cursor.execute(statement.format(*["%s"] * len(values)), values)
            rows: Sequence[Row] = cursor.fetchall()
        return rows


class _AsyncPsycopg(_Psycopg):
    blocking = False

    async def fetch(self, statement: str, *values: object) -> Sequence[Row]:
        _check_psycopg(self._connection)
        async with self._connection.cursor(row_factory=self._tuples) as cursor:
            await cursor.execute(statement.format(*["%s"] * len(values)), values)
            rows: Sequence[Row] = await cursor.fetchall()
        return rows


def _check_psycopg(connection: Any) -> None:
    if connection.autocommit and connection.info.transaction_status.name == "IDLE":
        raise _not_begun("with connection.transaction():")


def _psycopg(module: Any, connection: Any) -> UserDatabase | None:
    if isinstance(connection, module.AsyncConnection):
        return _AsyncPsycopg(connection, module.rows.tuple_row)
    if isinstance(connection, module.Connection):
        return _Psycopg(connection, module.rows.tuple_row)
    return None


class _Alchemy:
    blocking = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *values: object) -> Sequence[Row]:
        connection = self._connection
        if not hasattr(
            connection, "exec_driver_sql"
        ):  # a session, which begins its transaction itself
            connection = connection.connection()
        _check_alchemy(connection)
        return list(connection.execute(*_alchemy_call(statement, values)).all())


class _AsyncAlchemy(_Alchemy):
    blocking = False

    async def fetch(self, statement: str, *values: object) -> Sequence[Row]:
        connection = self._connection
        if not hasattr(connection, "exec_driver_sql"):
            connection = await connection.connection()
        _check_alchemy(connection.sync_connection)
        return list((await connection.execute(*_alchemy_call(statement, values))).all())


def _check_alchemy(connection: Any) -> None:
    dialect = connection.dialect
    if dialect.name != "postgresql":
        raise InvalidArgument("connection", f"is to {dialect.name}; allowed: {SUPPORTED}")
    level = connection.get_execution_options().get("isolation_level")
    # The level of ``create_engine`` has no public name.
    level = level or getattr(dialect, "_on_connect_isolation_level", None)
    if level == "AUTOCOMMIT":
        raise _not_begun("with engine.begin() as connection:", "has the level AUTOCOMMIT and ")


def _alchemy_call(statement: str, values: Sequence[object]) -> tuple[Any, dict[str, object]]:
    from sqlalchemy import text

    named = {f"value_{n}": value for n, value in enumerate(values)}
    return text(statement.format(*(f":{name}" for name in named))), named


def _sqlalchemy(module: Any, connection: Any) -> UserDatabase | None:
    from sqlalchemy import orm
    from sqlalchemy.ext import asyncio as ext

    if isinstance(connection, orm.scoped_session | ext.async_scoped_session):
        connection = connection()
    if isinstance(connection, ext.AsyncConnection | ext.AsyncSession):
        return _AsyncAlchemy(connection)
    if isinstance(connection, module.Connection | orm.Session):
        return _Alchemy(connection)
    return None


class _Django:
    blocking = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *values: object) -> Sequence[Row]:
        connection = self._connection
        if connection.vendor != "postgresql":
            raise InvalidArgument("connection", f"is to {connection.vendor}; allowed: {SUPPORTED}")
        if not connection.in_atomic_block and connection.get_autocommit():
            raise _not_begun("with transaction.atomic():")
        with connection.cursor() as cursor:
            cursor.execute(statement.format(*["%s"] * len(values)), values)
            rows: Sequence[Row] = cursor.fetchall()
        return rows


def _django(module: Any, connection: Any) -> UserDatabase | None:
    from django.utils.connection import ConnectionProxy

    if isinstance(connection, module.BaseDatabaseWrapper | ConnectionProxy):
        return _Django(connection)
    return None


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """A user's connection to an SQLite file. The code of the SQLite store writes on it."""

    connection: sqlite3.Connection


def _sqlite(module: Any, connection: Any) -> SqliteFile | None:
    return SqliteFile(connection) if isinstance(connection, module.Connection) else None


Recognised = UserDatabase | SqliteFile
_DRIVERS: Sequence[tuple[str, Callable[[Any, Any], Recognised | None]]] = (
    ("asyncpg", _asyncpg),
    ("psycopg", _psycopg),
    ("sqlalchemy", _sqlalchemy),
    ("django.db.backends.base.base", _django),
    ("sqlite3", _sqlite),
)


def recognised(connection: object) -> Recognised:
    """Return the adapter of a user's connection. Raises InvalidArgument for anything else."""
    for name, adapt in _DRIVERS:
        module = sys.modules.get(name)
        found = None if module is None else adapt(module, connection)
        if found is not None:
            return found
    kind = type(connection)
    what = f"{kind.__module__}.{kind.__qualname__}"
    raise InvalidArgument("connection", f"{what} is not supported; allowed: {SUPPORTED}")


def holds_file(own: Recognised) -> bool:
    """Return True if the transaction may keep all other connections from writing to the file."""
    return isinstance(own, SqliteFile) and own.connection.in_transaction


def check_thread(own: Recognised, *, blocking: bool) -> None:
    """Raise InvalidArgument for a connection that cannot be used by the caller.

    ``blocking`` is True if the caller is blocking code, without an event loop.
    """
    if isinstance(own, SqliteFile) or own.blocking is blocking:
        return
    if blocking:
        raise InvalidArgument(
            "connection",
            "belongs to an event loop, and this is the blocking client: use it in `await"
            " task.submit(..., connection=...)`",
        )
    raise InvalidArgument(
        "connection",
        "would block the event loop: use it in blocking code, as `app.sync().submit(task, ...,"
        " connection=...)`, or give an asynchronous connection",
    )


class OwnTransactions:
    """Submits jobs and ends attempts in users' transactions, for an app or a worker.

    ``url`` names the store of the jobs. Without it, this class cannot check that a connection is to
    that store, and leaves the refusal to the database.
    """

    child_module = "jobqueue.connect.child"

    def __init__(
        self,
        url: str | None,
        rules: Rules | None = None,
        settings: EngineSettings | None = None,
    ) -> None:
        address = None if url is None else parse_url(url)
        self._scheme = "" if address is None else address.scheme
        self._path: Path | None = None if address is None else address.path
        self._rules = rules or Rules()
        self._most = (settings or EngineSettings()).max_payload_bytes

    def recognised(self, connection: object) -> Recognised:
        """Return a connection's adapter.

        Raises InvalidArgument if the connection cannot be to the database of this app's jobs.
        """
        if self._scheme in ("memory", "redis"):
            raise InvalidArgument(
                "connection",
                f"cannot be used, because a {self._scheme}:// app keeps its jobs outside every"
                " database: submit without a connection, or use an app on postgresql:// or"
                " sqlite://, or on grpc:// with servers on PostgreSQL",
            )
        found = recognised(connection)
        is_file = isinstance(found, SqliteFile)
        if self._scheme in ("postgresql", "sqlite") and is_file != (self._scheme == "sqlite"):
            there = "SQLite" if is_file else "PostgreSQL"
            raise InvalidArgument(
                "connection",
                f"is to {there}, and the app's jobs are in {self._scheme}://: give a connection to"
                " the app's own database",
            )
        return found

    def join(self, connection: object, *, blocking: bool) -> Joined:
        """Return the transaction on a connection, which can accept the result of an attempt."""
        own = self.recognised(connection)
        check_thread(own, blocking=blocking)
        return Joined(own, self._path)

    async def submit(self, own: Recognised, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        """Submit jobs. The results are final when the user's transaction commits.

        On a blocking connection, the call never suspends.
        """
        if isinstance(own, SqliteFile):
            return self._submit_to_file(own.connection, specs)
        results: dict[int, SubmitResult] = {}
        for n, spec in enumerate(specs):
            try:  # refuse what JSON cannot hold; the database checks the size of payloads
                check_spec(spec, len(spec.payload) or 1)
            except InvalidArgument as error:
                results[n] = SubmitResult.refused(error)
        sent = [n for n in range(len(specs)) if n not in results]
        if sent:
            jobs = json.dumps([_document(specs[n]) for n in sent])
            rows = await _fetched(own, _SUBMIT, jobs)
            results |= {n: _result(specs[n], *row) for n, row in zip(sent, rows, strict=True)}
        return [results[n] for n in range(len(specs))]

    def _submit_to_file(
        self, connection: sqlite3.Connection, specs: Sequence[JobSpec]
    ) -> list[SubmitResult]:
        from jobqueue.stores.sqlite.own_transactions import joined

        with joined(connection, self._path) as file:
            ttls = file.ttls({spec.queue for spec in specs})
            results = [self._refused(spec, ttls.get(spec.queue)) for spec in specs]
            places = [n for n, result in enumerate(results) if result is None]
            ids = new_job_ids(len(places))
            jobs = [NewJob(one, specs[n]) for n, one in zip(places, ids, strict=True)]
            for n, result in zip(places, file.submit(jobs, self._rules), strict=True):
                results[n] = result
        return [result for result in results if result is not None]

    def _refused(self, spec: JobSpec, ttl: float | None) -> SubmitResult | None:
        now = time.time()
        try:
            check_spec(spec, self._most, now)
            if ttl is not None and spec.ttl is None:
                check_start_within(spec, ttl, now, "its queue's ttl")
        except InvalidArgument as error:
            return SubmitResult.refused(error)
        return None


def _document(spec: JobSpec) -> dict[str, Any]:
    """Return a spec in the form that ``jq.submit_jobs`` reads."""
    said = {name: getattr(spec, name) for name in _FIELDS}
    said["payload"] = base64.b64encode(spec.payload).decode()
    said["labels"] = dict(spec.labels) or None
    return {name: value for name, value in said.items() if value is not None}


def _result(
    spec: JobSpec, status: str, job_id: str | None, field: str | None, message: str | None
) -> SubmitResult:
    if status == "accepted":
        return SubmitResult.accepted(job_id or "")
    if status == "duplicate":
        return SubmitResult.duplicate(job_id or "")
    if status == "key_conflict":
        return SubmitResult.conflict(job_id or "", spec.key or "")
    if status == "no_queue":
        return SubmitResult.refused(no_such_queue(spec.queue))
    if status == "full":
        return SubmitResult.refused(QueueFull(message or ""))
    return SubmitResult.refused(InvalidArgument(field or "job", message or status))


async def _fetched(database: UserDatabase, statement: str, *values: object) -> Sequence[Row]:
    try:
        return await database.fetch(statement, *values)
    except JobQueueError:
        raise
    except Exception as error:
        state = _state(error)
        if state in (_NO_SCHEMA, _NO_FUNCTION):
            raise InvalidArgument(
                "connection",
                "its database lacks the functions of this version (schema jq): give a connection to"
                " the job queue's own database, and start a jq-server or an app of this version on"
                " it once, which creates them",
            ) from error
        if state == _NO_RIGHT:
            raise PermissionDenied(
                "connection: its role may not call the functions of the schema jq: GRANT USAGE ON"
                " SCHEMA jq, and GRANT EXECUTE ON FUNCTION jq.submit_jobs (for ctx.complete:"
                " jq.complete), TO the role"
            ) from error
        raise


def _state(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of a driver's error, which other libraries may have wrapped."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for name in ("sqlstate", "pgcode"):
            if state := getattr(error, name, None):
                return str(state)
        error = getattr(error, "orig", None) or error.__cause__
    return None


@dataclass(frozen=True, slots=True)
class Joined:
    """Implements ``worker.completing.JoinedTransaction``."""

    own: Recognised
    path: Path | None

    @property
    def needs_start(self) -> bool:
        return not isinstance(self.own, SqliteFile)

    async def complete(self, report: Transition) -> bool:
        own = self.own
        if isinstance(own, SqliteFile):
            from jobqueue.stores.sqlite.own_transactions import joined

            with joined(own.connection, self.path) as file:
                status = file.complete(report)
        else:
            result = None if report.result is None else base64.b64encode(report.result).decode()
            values = report.seq, report.lease, report.worker_id, result, report.ran_for
            ((status,),) = await _fetched(own, _COMPLETE, *values)
        if status in ("done", "cancelled"):
            return status == "done"
        if status == "held":
            raise Unavailable("the start of this attempt is not stored yet; nothing was written")
        raise Conflict(
            "this attempt is over, or its job is in another database: its result was not accepted;"
            " roll the transaction back"
        )
