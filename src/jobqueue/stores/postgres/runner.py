"""Runs statements: measured, tried again when that is safe, and never in doubt about a write.

A write whose answer was lost may have happened. Before anything else the backend that had it is
made sure to be gone; then the write's own ``again`` finds out, or repeats what its fence makes
safe to repeat. A write without one is answered with OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from jobqueue.core.errors import Internal, JobQueueError, OutcomeUnknown, Unavailable
from jobqueue.core.observer import Observer
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
# How long a call that can be repeated waits for its answer before its connection is given up, and
# how long it is left for an answer that has come while this process was busy with something else.
_ANSWER, _READ_IT = 3.5, 0.5
_PAUSE = 0.05  # before another look for a backend that was lost

T = TypeVar("T")
Work = Callable[[Db], Awaitable[T]]
"""A piece of work on a connection."""


class Runner:
    """Runs on one set of connections."""

    def __init__(
        self,
        connections: Connections,
        observer: Observer,
        patience: float,
        silent: Callable[[], None] | None = None,
        undone: Callable[[], None] = lambda: None,
    ) -> None:
        self.connections = connections
        self._undone = undone  # called before a write is repeated that the server has undone
        self._observer = observer
        self._patience = patience
        # Called when a line went dead without a word: others may have, too.
        self._silent = silent or connections.distrust

    async def read(self, name: str, work: Work[T], patience: float | None = None) -> T:
        """Run what changes nothing; repeated as long as there is patience."""
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
        """Run a write. ``again`` takes over once an answer was lost."""
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
        lost: PostgresBackend | None = None  # may still be at work
        doubt: BaseException | None = None  # an answer was lost, and nothing has settled it yet
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
                            return await (work if doubt is None else again or work)(borrowed.raw)
                    except LOST as error:
                        if isinstance(error, asyncpg.InterfaceError):
                            _check_lost(error, borrowed)
                        lost, doubt = borrowed.backend, limit.over or error
                        if isinstance(doubt, TimeoutError):
                            self._silent()
                        if again is None or time.monotonic() >= deadline:
                            raise _unknown(doubt, where) from error
            except LOST as error:
                # While the lost backend was looked for: the server is still going or coming.
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
    """Ends a connection whose answer does not come, so that what waits for the answer fails.

    Waiting for it is not cancelled: the client library would then tell the server so, on another
    connection and without a limit of its own.
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
    """The client library also speaks of our own mistakes by this name."""
    if not borrowed.raw.is_closed():
        raise Internal(f"PostgreSQL: {error}") from error


def _verdict(doubt: BaseException | None, error: BaseException, where: str) -> JobQueueError:
    if doubt is not None:
        return _unknown(doubt, where)
    return error if isinstance(error, Unavailable) else unavailable(error, where)


def _unknown(error: BaseException, where: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"{where}: the connection was lost during a write: {said(error)}")
