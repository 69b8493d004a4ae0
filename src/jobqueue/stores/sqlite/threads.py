"""The threads that run SQL, so that the event loop never does.

One writer, because SQLite has one write lock: operations that wait while a transaction commits
share the next one (group commit), each still answered on its own. Readers work on snapshots
beside it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.core.observer import Observer
from jobqueue.stores.sqlite.connection import translate

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
_log = logging.getLogger("jobqueue.stores.sqlite")

# Operations that one transaction takes in: bounds how long the first waits for the last.
GROUP_LIMIT = 64
# How often an idle writer looks whether another process has committed.
WATCH_INTERVAL = 0.02


class _Operation:
    __slots__ = ("future", "name", "work")

    def __init__(self, name: str, work: Work[Any]) -> None:
        self.name = name
        self.work = work
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()


class _NotBegun(Exception):
    """The write lock could not be had."""

    def __init__(self, why: JobQueueError) -> None:
        super().__init__(str(why))
        self.why = why


_LOOK = _Operation("look", lambda _: None)
"""Only wakes the writer's thread."""


class Writer:
    """Runs operations in order, in as few transactions as their arrival allows."""

    def __init__(self, connection: sqlite3.Connection, observer: Observer) -> None:
        self._connection = connection
        self._observer = observer
        self._waiting: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._changed: Callable[[sqlite3.Connection], None] | None = None
        self._closed = False
        self._failing = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, name="jobqueue-sqlite-writer", daemon=True
        )
        self._thread.start()

    def watch(self, changed: Callable[[sqlite3.Connection], None]) -> None:
        """Call ``changed``, on the writer's thread, after another process's commit."""
        self._changed = changed
        self._waiting.put(_LOOK)  # the thread may sleep without a limit until now

    def post(self, name: str, work: Work[T]) -> concurrent.futures.Future[T]:
        """Queue an operation; its future is done once it is committed."""
        operation = _Operation(name, work)
        with self._lock:
            if self._closed:
                raise Unavailable("the store is closed")
            self._waiting.put(operation)
        return operation.future

    def close(self) -> None:
        """Finish what was posted, then end the thread."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        seen = self._data_version()
        ending = False
        while not ending:
            try:
                first = self._waiting.get(timeout=WATCH_INTERVAL if self._changed else None)
            except queue.Empty:
                first = None
            else:
                ending = first is None
            now_seen = self._data_version()
            if now_seen != seen and self._changed is not None:
                self._changed(self._connection)
            seen = now_seen
            if first is None or first is _LOOK:
                continue
            group = [first]
            while len(group) < GROUP_LIMIT:
                try:
                    more = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    ending = True
                    break
                if more is not _LOOK:
                    group.append(more)
            self._commit(group)
        self._connection.close()

    def _data_version(self) -> int:
        try:
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return -1  # the next write will say what is wrong

    def _commit(self, group: list[_Operation]) -> None:
        group = [one for one in group if one.future.set_running_or_notify_cancel()]
        if not group:
            return
        try:
            results = self._transaction(group)
        except _NotBegun as error:
            for one in group:  # the lock was waited for once; that is enough for all of them
                one.future.set_exception(error.why)
            return
        except BaseException as error:
            if len(group) == 1:
                group[0].future.set_exception(error)
                return
            for one in group:  # one caller's trouble is not another's: each on its own
                try:
                    one.future.set_result(self._transaction([one])[0])
                except _NotBegun as own:
                    one.future.set_exception(own.why)
                except BaseException as own:
                    one.future.set_exception(own)
            return
        for one, result in zip(group, results, strict=True):
            one.future.set_result(result)

    def _transaction(self, group: list[_Operation]) -> list[Any]:
        connection = self._connection
        committing = False
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._say_failing(error)
            raise _NotBegun(translate(error, committing=False)) from error
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
                    _log.exception("rollback failed")
            if isinstance(error, sqlite3.Error):
                self._say_failing(error)
                raise translate(error, committing=committing) from error
            if not isinstance(error, JobQueueError):
                _log.exception("an operation of the store failed")
            raise
        if self._failing:
            self._failing = False
            _log.info("the store can be written again")
        return results

    def _say_failing(self, error: sqlite3.Error) -> None:
        if not self._failing:  # once for an outage, not for each caller
            self._failing = True
            _log.error("the store cannot be written: %s", error)


class Readers:
    """A few threads with a connection each, for reads that must not wait for writes."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], observer: Observer) -> None:
        self._connect = connect
        self._observer = observer
        self._local = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._pool = concurrent.futures.ThreadPoolExecutor(2, "jobqueue-sqlite-reader")

    async def run(self, name: str, work: Work[T]) -> T:
        """Run a read in one snapshot."""
        return await asyncio.wrap_future(self._pool.submit(self._read, name, work))

    def _read(self, name: str, work: Work[T]) -> T:
        began = time.perf_counter()
        try:
            connection = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = self._connect()
                self._open.append(connection)
            connection.execute("BEGIN")
            try:
                return work(connection)
            finally:
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise Unavailable(f"the SQLite store cannot read: {error}") from error
        finally:
            self._observer.queried(name, time.perf_counter() - began)

    def close(self) -> None:
        """End the threads and their connections."""
        self._pool.shutdown(wait=True)
        for connection in self._open:
            connection.close()
        self._open.clear()
