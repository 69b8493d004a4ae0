"""Submit jobs and end attempts in a user's own transaction, on the user's connection to the file.

The store's own code writes there. While such a transaction is open, no other process and no other
connection of this one can write to the file.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jobqueue.core.errors import InvalidArgument, Unavailable
from jobqueue.core.job import NewJob, SubmitResult, Transition
from jobqueue.core.store import Rules
from jobqueue.stores.sqlite.connection import APPLICATION_ID, SCHEMA_VERSION
from jobqueue.stores.sqlite.statements import SQL, read_marked
from jobqueue.stores.sqlite.writes import JobWriter


class FileTransaction:
    """Writes jobs in the open transaction of a user's connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def ttls(self, queues: Iterable[str]) -> dict[str, float]:
        """Return the TTLs, by queue. Queues without a TTL are left out."""
        rows = read_marked(self._connection, "queues_by_name", list(queues))
        return {name: ttl for name, _, _, ttl, *_ in rows if ttl is not None}

    def submit(self, jobs: Sequence[NewJob], rules: Rules) -> list[SubmitResult]:
        """Accept or refuse each job, as the store does."""
        writer = JobWriter(self._connection, time.time(), rules)
        results = writer.submit(jobs)
        writer.finish()
        return results

    def complete(self, report: Transition) -> str:
        """End an attempt with a result.

        Return ``done``, ``cancelled`` if a cancel was requested, or ``stale`` if its lease is not
        in force. In the latter cases nothing is written.
        """
        values = (report.seq, report.lease)
        if self._connection.execute(SQL["cancelled_lease"], values).fetchone() is not None:
            return "cancelled"
        writer = JobWriter(self._connection, time.time(), Rules())
        (outcome,) = writer.apply([report])
        writer.finish()
        return "done" if outcome.applied else "stale"


@contextlib.contextmanager
def joined(connection: sqlite3.Connection, path: Path | None) -> Iterator[FileTransaction]:
    """Provide writes in the transaction of a user's connection, all of them or none.

    ``path`` is the file of the app's jobs; None accepts every file with a job queue.
    """
    factories = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        _check_file(connection, path)
        _check_begun(connection)
        # This write begins the transaction if Python begins transactions by itself. It waits for
        # other writers before anything is read.
        connection.execute(SQL["take_write_lock"])
        connection.execute("SAVEPOINT jobqueue")
        try:
            yield FileTransaction(connection)
        except BaseException:
            connection.execute("ROLLBACK TO jobqueue")
            raise
        finally:
            connection.execute("RELEASE jobqueue")
    except sqlite3.OperationalError as error:
        raise Unavailable(_why(error)) from error
    finally:
        connection.row_factory, connection.text_factory = factories


def _why(error: sqlite3.OperationalError) -> str:
    said = f"the SQLite store cannot write in this transaction: {error}; nothing was written"
    code = getattr(error, "sqlite_errorname", "")
    if code == "SQLITE_BUSY_SNAPSHOT":
        return f"{said}. Another program has written since it read: begin it with BEGIN IMMEDIATE"
    return f"{said}. Another program is writing; try again" if code == "SQLITE_BUSY" else said


def _check_file(connection: sqlite3.Connection, path: Path | None) -> None:
    files = {name: file for _, name, file in connection.execute("PRAGMA database_list")}
    file = Path(files["main"]) if files["main"] else None
    if path is not None and (file is None or not path.exists() or not path.samefile(file)):
        shown = "a database in memory" if file is None else file
        raise InvalidArgument(
            "connection", f"is to {shown}, and the app's jobs are in {path}: connect to that file"
        )
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise InvalidArgument("connection", f"its file {file} has no job queue")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        raise InvalidArgument(
            "connection",
            f"its file {file} has schema {version}, and this version of jobqueue needs"
            f" {SCHEMA_VERSION}: "
            + (
                "open it with an app or server of this version first"
                if version < SCHEMA_VERSION
                else "install the newer version"
            ),
        )


def _check_begun(connection: sqlite3.Connection) -> None:
    if connection.in_transaction or getattr(connection, "autocommit", None) is False:
        return
    by_hand = connection.isolation_level is None or getattr(connection, "autocommit", None) is True
    if by_hand:
        raise InvalidArgument(
            "connection",
            "is not in a transaction, so the call would take effect at once: begin one first, as"
            " `connection.execute('BEGIN IMMEDIATE')`",
        )
