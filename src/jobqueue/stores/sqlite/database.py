"""Run SQL on an SQLite file in threads, so that the event loop never waits for a disk.

SQLite has one write lock, so one thread writes. Operations that arrive while a transaction commits
share the next transaction (group commit), and each operation gets its own result. Two more threads
read snapshots.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from jobqueue.core.clock import Clock
from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.core.observer import Observer
from jobqueue.core.store import Rules, TermEnded
from jobqueue.stores.sqlite.connection import connect, prepare, translate

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound="SqlitePart")
Work = Callable[[sqlite3.Connection], T]
Refused = JobQueueError | TermEnded
_log = logging.getLogger("jobqueue.stores.sqlite")

# Operations in one transaction. This limits how long the first operation waits for the last.
GROUP_LIMIT = 64
# Seconds after which an idle writer checks again for commits of other processes.
WATCH_INTERVAL = 0.02


class _Operation(NamedTuple):
    name: str
    work: Work[Any]
    future: concurrent.futures.Future[Any]


class WriterThread:
    """Runs operations in order. Operations that wait at the same time share a transaction."""

    def __init__(self, path: Path, connection: sqlite3.Connection, observer: Observer) -> None:
        self._path = path
        self._connection = connection
        self._observer = observer
        # None wakes the thread without work.
        self._waiting: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._changed: Callable[[sqlite3.Connection], None] | None = None
        self._seen = self._data_version()
        self._closed = False
        self._failing = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, name="jobqueue-sqlite-writer", daemon=True
        )
        self._thread.start()

    def watch(self, changed: Callable[[sqlite3.Connection], None]) -> None:
        """Call ``changed`` after each commit of another process, in the writer's thread."""
        self._changed = changed
        self._waiting.put(None)  # until now the thread may sleep without a limit

    def post(self, name: str, work: Work[T]) -> concurrent.futures.Future[T]:
        """Queue an operation for the writer's thread.

        Return a future, which is done when the operation is committed. ``name`` is the operation's
        name in metrics.
        """
        operation = _Operation(name, work, concurrent.futures.Future())
        with self._lock:
            if self._closed:
                raise Unavailable(f"the store {self._path} is closed")
            self._waiting.put(operation)
        return operation.future

    def close(self) -> None:
        """Commit the queued operations, then end the thread."""
        with self._lock:
            self._closed = True
            self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not (self._closed and self._waiting.empty()):
            found: list[_Operation | None] = []
            with contextlib.suppress(queue.Empty):
                found.append(self._waiting.get(timeout=WATCH_INTERVAL if self._changed else None))
                while len(found) < GROUP_LIMIT:
                    found.append(self._waiting.get_nowait())
            self._notice_changes()
            group = [one for one in found if one and one.future.set_running_or_notify_cancel()]
            if group:
                self._commit(group)
        self._connection.close()

    def _notice_changes(self) -> None:
        seen = self._data_version()
        if seen != self._seen and self._changed is not None:
            self._changed(self._connection)
        self._seen = seen

    def _data_version(self) -> int:
        try:
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return -1  # the next write reports the error

    def _commit(self, group: list[_Operation]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            refused = self._failed(error, committing=False)
            for one in group:  # they have waited for the lock together and do not wait again
                one.future.set_exception(refused)
            return
        try:
            results = self._perform(group)
        except BaseException as error:
            if len(group) == 1:
                group[0].future.set_exception(error)
                return
            for one in group:  # an error of one caller must not fail the others
                self._commit([one])
            return
        if self._failing:
            self._failing = False
            _log.info("SQLite file %s can be written again", self._path)
        for one, result in zip(group, results, strict=True):
            one.future.set_result(result)

    def _perform(self, group: list[_Operation]) -> list[Any]:
        connection = self._connection
        committing = False
        try:
            results = []
            for one in group:
                began = time.perf_counter()
                results.append(one.work(connection))
                self._observer.queried(one.name, time.perf_counter() - began)
            began = time.perf_counter()
            committing = True
            connection.execute("COMMIT")
            self._observer.queried("commit", time.perf_counter() - began)
        except BaseException as error:
            if connection.in_transaction:
                try:
                    connection.execute("ROLLBACK")
                except sqlite3.Error:
                    _log.exception(
                        "cannot roll back a write to SQLite file %s; its callers get an error",
                        self._path,
                    )
            if isinstance(error, sqlite3.Error):
                raise self._failed(error, committing=committing) from error
            if not isinstance(error, JobQueueError):
                _log.exception(
                    "rolled back a failed write to SQLite file %s; its caller gets an error",
                    self._path,
                )
            raise
        return results

    def _failed(self, error: sqlite3.Error, *, committing: bool) -> JobQueueError:
        if not self._failing:  # once for an outage, not for each caller
            self._failing = True
            _log.error(
                "cannot write to SQLite file %s: %s; calls fail until a write succeeds",
                self._path,
                error,
            )
        return translate(error, committing=committing)


class SqliteDatabase:
    """Runs writes in one thread, and reads in two other threads with a connection each."""

    def __init__(self, path: str | Path, clock: Clock, observer: Observer) -> None:
        self.path = Path(path)
        self.clock = clock
        self._observer = observer
        self._writer: WriterThread | None = None
        self._readers: concurrent.futures.ThreadPoolExecutor | None = None
        self._reading = threading.local()
        self._connections: list[sqlite3.Connection] = []  # of readers

    async def open(self) -> None:
        """Create the file if it is missing, update its schema, and start the threads."""
        if self._writer is None:
            connection = await asyncio.to_thread(self._prepare)
            self._writer = WriterThread(self.path, connection, self._observer)
            self._readers = concurrent.futures.ThreadPoolExecutor(2, "jobqueue-sqlite-reader")

    def _prepare(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"cannot create the folder of {self.path}: {error}") from error
        connection = connect(self.path)
        try:
            prepare(self.path, connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def close(self) -> None:
        """Commit the queued operations, then end the threads and close the connections."""
        writer, readers = self._writer, self._readers
        self._writer = self._readers = None
        if readers is not None:
            await asyncio.to_thread(readers.shutdown)
            while self._connections:
                self._connections.pop().close()
        if writer is not None:
            await asyncio.to_thread(writer.close)

    def writer(self) -> WriterThread:
        """Return the thread that writes. Raise Unavailable if the file is not open."""
        if self._writer is None:
            raise Unavailable(f"the store {self.path} is not open")
        return self._writer

    async def write(self, name: str, work: Work[T]) -> T:
        """Run ``work`` in a transaction and return its result after the commit.

        Other operations may share the transaction. ``name`` is the operation's name in metrics.
        """
        future = asyncio.wrap_future(self.writer().post(name, work))
        # A caller that gives up must not cancel a transaction that others share.
        return await asyncio.shield(future)

    async def read(self, name: str, work: Work[T]) -> T:
        """Run ``work`` on a snapshot in a reader's thread. ``name`` is its name in metrics."""
        if self._readers is None:
            raise Unavailable(f"the store {self.path} is not open")
        return await asyncio.wrap_future(self._readers.submit(self._read, name, work))

    def _read(self, name: str, work: Work[T]) -> T:
        began = time.perf_counter()
        try:
            connection: sqlite3.Connection | None = getattr(self._reading, "connection", None)
            if connection is None:
                connection = self._reading.connection = connect(self.path, read_only=True)
                self._connections.append(connection)
            connection.execute("BEGIN")
            try:
                return work(connection)
            finally:
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise Unavailable(f"cannot read SQLite file {self.path}: {error}") from error
        finally:
            self._observer.queried(name, time.perf_counter() - began)


class SqlitePart:
    """Gives each part of the store the database, the clock and the rules of the store."""

    def __init__(self, database: SqliteDatabase, rules: Rules) -> None:
        self._database = database
        self._clock = database.clock
        self._rules = rules


Method = Callable[Concatenate[S, sqlite3.Connection, P], T]
Call = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


def reading(name: str) -> Callable[[Method[S, P, T]], Call[S, P, T]]:
    """Return a decorator that runs a method on a snapshot in a reader's thread.

    ``name`` is the method's name in metrics.
    """

    def decorate(work: Method[S, P, T]) -> Call[S, P, T]:
        @functools.wraps(work)
        async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._database.read(name, lambda db: work(self, db, *args, **kwargs))

        return call

    return decorate


def writing(name: str) -> Callable[[Method[S, P, T | Refused]], Call[S, P, T]]:
    """Return a decorator that runs a method in a transaction in the writer's thread.

    ``name`` is the method's name in metrics. A method returns a refusal as a value, because an
    exception would roll back the writes of other callers in the transaction. The decorated method
    raises this refusal after the commit.
    """

    def decorate(work: Method[S, P, T | Refused]) -> Call[S, P, T]:
        @functools.wraps(work)
        async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            run: Work[T | Refused] = lambda db: work(self, db, *args, **kwargs)  # noqa: E731
            return or_raise(await self._database.write(name, run))

        return call

    return decorate


def or_raise(answer: T | Refused) -> T:
    """Return the result of a transaction, or raise the refusal that it returned."""
    if isinstance(answer, JobQueueError | TermEnded):
        raise answer
    return answer
