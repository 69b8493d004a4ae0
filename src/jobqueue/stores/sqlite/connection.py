"""Open an SQLite file, create its schema, and translate its errors."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from importlib import resources
from pathlib import Path

from jobqueue.core.errors import JobQueueError, OutcomeUnknown, Unavailable

APPLICATION_ID = 0x4A517631  # "JQv1", to recognize files of other programs
SCHEMA_VERSION = 18
# Version 3.35 has UPDATE … FROM and RETURNING, 3.38 always has the JSON functions.
OLDEST_SQLITE = (3, 38, 0)
BUSY_TIMEOUT = 5.0
_BUSY_PAUSE = 0.01
CACHE_KIB = 16_384
# Frames in the WAL before a commit also writes them back: large enough that a write-back is rare,
# small enough that it is short.
CHECKPOINT_PAGES = 4_000


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a connection with the settings of this store. Create the file if it is missing."""
    if not read_only and path.is_file() and not os.access(path, os.W_OK):
        raise Unavailable(f"cannot open {path}: this user may not write the file")
    if not read_only:
        _create_private(path)
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}",
            uri=True,
            timeout=BUSY_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
        )
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    except sqlite3.Error as error:
        raise Unavailable(f"cannot open {path}: {_why(path, error)}") from error
    return connection


def _create_private(path: Path) -> None:
    """Create a missing file that only its owner may read and write.

    SQLite gives the files that it creates beside this file the same permissions.
    """
    # mknod does not open the file: to close it would end the locks that this process's other
    # connections have on it. Errors are suppressed, because SQLite then fails, too, and reports it.
    with contextlib.suppress(OSError):
        os.mknod(path.resolve(), 0o600)


def _why(path: Path, error: sqlite3.Error) -> str:
    """Return the reason why a file cannot be opened, in clearer words than SQLite's."""
    folder = path.absolute().parent
    if path.is_dir():
        return "it is a folder; name a file in it"
    if getattr(error, "sqlite_errorname", "") == "SQLITE_NOTADB":
        return "it is not an SQLite database; name another file"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"this user may not write in {folder}, where SQLite keeps files beside it"
    return str(error)


def prepare(path: Path, connection: sqlite3.Connection) -> None:
    """Create, check or update the schema of a file. Several processes may do this at once."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise Unavailable(
            f"SQLite {sqlite3.sqlite_version} is too old; version {oldest} or newer is needed"
        )
    try:
        # One snapshot for all checks: another process may just be creating the schema.
        connection.execute("BEGIN")
        try:
            _check_owner(path, connection)  # before anything is changed
        finally:
            connection.execute("ROLLBACK")
        mode = _to_wal(connection)
        if mode != "wal":
            raise Unavailable(
                f"{path}: its file system does not support SQLite's WAL mode; use a local disk"
            )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            _migrate(path, connection)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise Unavailable(f"cannot use {path} as a job queue: {error}") from error


def _to_wal(connection: sqlite3.Connection) -> str:
    """Switch the file to WAL mode, and return the mode that it has now.

    SQLite itself does not wait for the lock that this needs, so this function retries.
    """
    give_up = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > give_up:
                raise
        time.sleep(_BUSY_PAUSE)


def _check_owner(path: Path, connection: sqlite3.Connection) -> int:
    """Return the version of the file's schema, 0 for an empty file.

    Raise Unavailable for a file of another program or of a newer version.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application == APPLICATION_ID:
        if version > SCHEMA_VERSION:
            raise Unavailable(
                f"{path} was written by a newer jobqueue (schema {version}; this version knows"
                f" schemas up to {SCHEMA_VERSION}); install the newer version"
            )
        return int(version)
    if application != 0 or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise Unavailable(f"{path} is an SQLite file of another program; name a new file")
    return 0


def _migrate(path: Path, connection: sqlite3.Connection) -> None:
    """Update the file's schema to the current version, step by step, in the open transaction."""
    version = _check_owner(path, connection)
    schema = resources.files(__package__).joinpath("schema.sql").read_text()
    _, *steps = re.split(r"^-- schema: \d+\n", schema, flags=re.MULTILINE)
    for step in steps[version:]:
        for statement in _statements(step):
            connection.execute(statement)
    if version < SCHEMA_VERSION:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _statements(script: str) -> list[str]:
    # executescript() would commit the open transaction.
    statements, current = [], ""
    for line in script.splitlines():
        current += line + "\n"
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements


def translate(error: sqlite3.Error, *, committing: bool) -> JobQueueError:
    """Return the error to raise for a failed write.

    If a commit failed with an I/O error, this is OutcomeUnknown, because the write may be stored.
    Otherwise nothing was written, and this is Unavailable.
    """
    code = getattr(error, "sqlite_errorname", "") or type(error).__name__
    text = f"the SQLite store cannot write: {error} ({code})"
    if committing and code.startswith("SQLITE_IOERR"):
        return OutcomeUnknown(text)
    return Unavailable(text)
