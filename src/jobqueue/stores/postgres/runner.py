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
from typing import Any, TypeVar

import asyncpg

from jobqueue.core.errors import Internal, JobQueueError, OutcomeUnknown, Unavailable
from jobqueue.core.observer import Observer
from jobqueue.stores.postgres.connections import Backend, Connection, Connections, dispel
from jobqueue.stores.postgres.trouble import LOST, REFUSED, UNDONE, said, unavailable

_log = logging.getLogger("jobqueue.stores.postgres")
_CLASHES = 10
_PAUSE = 0.05  # before another look for a backend that was lost

T = TypeVar("T")
Work = Callable[[Any], Awaitable[T]]
"""What to do with an asyncpg connection."""


class Runner:
    """Runs on one set of connections."""

    def __init__(self, connections: Connections, observer: Observer, patience: float) -> None:
        self.connections = connections
        self._observer = observer
        self._patience = patience

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
        lost: Backend | None = None  # may still be at work
        doubt: BaseException | None = None  # an answer was lost, and nothing has settled it yet
        while True:
            try:
                if lost is not None:
                    await dispel(self.connections, lost)
                    lost = None
                async with self.connections.use(max(0.0, deadline - time.monotonic())) as borrowed:
                    try:
                        return await (work if doubt is None else again or work)(borrowed.raw)
                    except LOST as error:
                        if isinstance(error, asyncpg.InterfaceError):
                            _check_lost(error, borrowed)
                        lost, doubt = borrowed.backend, error
                        if again is None or time.monotonic() >= deadline:
                            raise _unknown(error, where) from error
            except LOST as error:
                # While the lost backend was looked for: the server is still going or coming.
                if time.monotonic() >= deadline:
                    raise _verdict(doubt, error, where) from error
                await asyncio.sleep(_PAUSE)
            except UNDONE as error:
                clashes += 1
                if clashes >= _CLASHES:
                    raise _verdict(doubt, error, where) from error
                await asyncio.sleep(random.uniform(0, 0.002 * 2**clashes))
            except Unavailable as error:
                raise _verdict(doubt, error, where) from error
            except REFUSED as error:
                raise _verdict(doubt, error, where) from error


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
