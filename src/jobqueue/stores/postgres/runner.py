"""Run statements, measure their time, and repeat them when this is safe.

A write whose answer was lost may have been committed, or its backend may still run it. So the
backend is terminated first. Then the function ``again`` of the write finds out what happened, or
repeats the write if its fence makes this safe. A write without ``again`` raises OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import asyncpg

from jobqueue.core.errors import Internal, JobQueueError, OutcomeUnknown, Unavailable
from jobqueue.core.observer import Observer
from jobqueue.core.waiting import to_its_end
from jobqueue.stores.postgres.connections import (
    Connection,
    Connections,
    Db,
    PostgresBackend,
    dispel,
)
from jobqueue.stores.postgres.trouble import LOST, REFUSED, UNDONE, said, unavailable

_log = logging.getLogger("jobqueue.stores.postgres")
_CLASHES = 10
# Seconds that a repeatable call waits for its answer before its connection is closed, and seconds
# in which an answer that has already arrived may be read, because this process was busy before.
_ANSWER, _READ_IT = 3.5, 0.5
_PAUSE = 0.05  # before the next try to terminate a lost backend

T = TypeVar("T")
Work = Callable[[Db], Coroutine[Any, Any, T]]
"""A function that runs statements on a connection and returns their result."""


class Runner:
    """Runs reads and writes on the connections of one pool."""

    def __init__(
        self,
        connections: Connections,
        observer: Observer,
        patience: float,
        silent: Callable[[], None] | None = None,
        undone: Callable[[], None] = lambda: None,
    ) -> None:
        self.connections = connections
        self._undone = undone  # called before the repeat of a write that the server rolled back
        self._observer = observer
        self._patience = patience
        # Called when a connection was cut off silently: other connections probably were, too.
        self._silent = silent or connections.distrust

    async def read(self, name: str, work: Work[T], patience: float | None = None) -> T:
        """Run a read and return its result. Repeat it after errors within ``patience`` seconds.

        ``name`` is its name in metrics.
        """
        try:
            return await self.write(name, work, again=work, patience=patience)
        except OutcomeUnknown as error:
            raise Unavailable(error.message) from error

    async def write(
        self,
        name: str,
        work: Work[T],
        again: Work[T] | None = None,
        patience: float | None = None,
    ) -> T:
        """Run a write and return its result. ``name`` is its name in metrics.

        If its answer is lost, later tries run ``again``, not ``work``, within ``patience`` seconds.
        Without ``again``, a lost answer raises OutcomeUnknown.
        """
        began = time.perf_counter()
        try:
            return await self._write(work, again, patience)
        finally:
            self._observer.queried(name, time.perf_counter() - began)

    async def _write(
        self, work: Work[T], again: Work[T] | None, patience: float | None = None
    ) -> T:
        deadline = time.monotonic() + (self._patience if patience is None else patience)
        where = self.connections.location
        clashes = 0
        lost: PostgresBackend | None = None  # may still run the statement
        doubt: BaseException | None = None  # an answer was lost: the write may be committed
        hurried = again is not None  # a statement may take no longer than ``_ANSWER``
        while True:
            try:
                if lost is not None:
                    hurried = not await dispel(self.connections, lost) and hurried
                    lost = None
                async with self.connections.use(max(0.0, deadline - time.monotonic())) as borrowed:
                    limit = _Limit(borrowed, _ANSWER if hurried else None)
                    try:
                        with limit:
                            chosen = work if doubt is None else again or work
                            answer, given_up = await to_its_end(chosen(borrowed.raw))
                    except LOST as error:
                        if isinstance(error, asyncpg.InterfaceError):
                            _check_lost(error, borrowed)
                        lost, doubt = borrowed.backend, limit.over or error
                        if isinstance(doubt, TimeoutError):
                            self._silent()
                        if again is None or time.monotonic() >= deadline:
                            raise _unknown(doubt, where) from error
                        continue
                if given_up:
                    raise asyncio.CancelledError
                return answer
            except LOST as error:
                # Raised by dispel(): the server is still stopping or starting.
                if time.monotonic() >= deadline:
                    raise _verdict(doubt, error, where) from error
                await asyncio.sleep(_PAUSE)
            except UNDONE as error:
                clashes += 1
                self._undone()
                if clashes >= _CLASHES:
                    raise _verdict(doubt, error, where) from error
                await asyncio.sleep(random.uniform(0, 0.002 * 2**clashes))
            except Unavailable as error:
                raise _verdict(doubt, error, where) from error
            except REFUSED as error:
                raise _verdict(doubt, error, where) from error


class _Limit:
    """Closes a connection whose answer does not arrive, so that the waiting call fails.

    The waiting call is not cancelled, because asyncpg would then send a cancel request to the
    server on another connection, without a time limit.
    """

    def __init__(self, connection: Connection, seconds: float | None) -> None:
        self._connection = connection
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self.over: TimeoutError | None = None

    def __enter__(self) -> None:
        if self._seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._look, loop, self._seconds)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        left = self._connection.raw.asked + seconds - time.monotonic()
        if left > _READ_IT:  # the first statements were answered
            self._timer = loop.call_later(left, self._look, loop, seconds)
        else:
            self._timer = loop.call_later(_READ_IT, self._give_up)

    def _give_up(self) -> None:
        self.over = TimeoutError(f"no answer within {_ANSWER + _READ_IT:g} s")
        self._connection.raw.terminate()


def _check_lost(error: BaseException, borrowed: Connection) -> None:
    # asyncpg raises InterfaceError for a wrong use of the library, too.
    if not borrowed.raw.is_closed():
        raise Internal(f"PostgreSQL: {error}") from error


def _verdict(doubt: BaseException | None, error: BaseException, where: str) -> JobQueueError:
    if doubt is not None:
        return _unknown(doubt, where)
    return error if isinstance(error, Unavailable) else unavailable(error, where)


def _unknown(error: BaseException, where: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"{where}: the connection was lost during a write: {said(error)}")
