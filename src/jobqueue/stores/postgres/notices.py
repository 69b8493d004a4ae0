"""Send hints about changes to other servers with NOTIFY, and listen for their hints.

Hints may be lost, because they are sent outside the transactions that made the changes. Then the
next scheduled read of the store finds the change, at the latest after the scheduling interval.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from jobqueue.core.errors import JobQueueError
from jobqueue.core.store import Change
from jobqueue.core.waiting import GrowingPause, is_set_within
from jobqueue.stores.postgres.connections import READING, connect
from jobqueue.stores.postgres.heads import NOTHING_NEW, Head
from jobqueue.stores.postgres.trouble import LOST, location

_log = logging.getLogger("jobqueue.stores.postgres")
CHANNEL = "jobqueue"
_EVERYTHING = Change.WORK | Change.ENDED | Change.CONTROL | Change.SCHEDULES
_PAUSE = 0.02  # between two messages
_MOST_HEADS = 100  # PostgreSQL limits a message to 8,000 bytes
_BITS = (31, 15, 63, 63)  # of a head's queue, rank and type, and of a job's number
_KEEPALIVE = 5.0
_FIRST_RETRY, _LONGEST_RETRY = 0.05, 2.0

Heard = Callable[[Change, "dict[Head, int] | None"], None]


class Speaker:
    """Sends hints to other servers, with a short pause between two messages.

    The first hint is sent at once. Hints that arrive during a pause are sent in one message.
    """

    def __init__(self, name: int, send: Callable[[str], Awaitable[None]]) -> None:
        self._name = name
        self._send = send
        self._what = Change(0)
        self._heads: dict[Head, int] | None = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = True

    def start(self) -> None:
        """Allow hints to be sent."""
        self._closed = False

    def say(self, what: Change, heads: dict[Head, int] | None = None) -> None:
        """Send a hint that ``what`` has changed.

        With ``Change.WORK``, ``heads`` has the lowest new job number of each queue, priority and
        type. None means that other servers must search for claimable jobs everywhere.
        """
        if self._closed:
            return
        self._what |= what
        if Change.WORK in what:
            if heads is None or self._heads is None:
                self._heads = None
            else:
                for head, seq in heads.items():
                    self._heads[head] = min(seq, self._heads.get(head, seq))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="jobqueue-notify")

    async def close(self) -> None:
        """Send the hints that wait, and send no more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._what:
            await self._flush()

    async def _run(self) -> None:
        try:
            while self._what:
                await self._flush()
                await asyncio.sleep(_PAUSE)
        finally:
            self._task = None

    async def _flush(self) -> None:
        what, heads = self._what, self._heads
        self._what, self._heads = Change(0), {}
        if heads is not None and len(heads) > _MOST_HEADS:
            heads = None
        said = None if heads is None else [[*head, seq] for head, seq in heads.items()]
        word = json.dumps([self._name, what.value, said], separators=(",", ":"))
        with contextlib.suppress(JobQueueError):  # other servers find the changes without hints
            await self._send(word)


class Listener:
    """Listens for hints on a connection of its own, and reconnects when the connection is lost."""

    def __init__(self, dsn: str, name: int, heard: Heard) -> None:
        self._dsn = dsn
        self._name = name
        self._heard = heard
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task that listens for hints."""
        self._task = asyncio.create_task(self._run(), name="jobqueue-listen")

    async def close(self) -> None:
        """Stop listening for hints, and close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        pause = GrowingPause(_FIRST_RETRY, _LONGEST_RETRY)
        where = location(self._dsn)
        first = True
        while True:
            try:
                connection = await connect(self._dsn, READING)
                try:
                    await connection.raw.add_listener(CHANNEL, self._hear)
                    if not first:
                        _log.info("listening again on %s for hints of other servers", where)
                    first = False
                    pause.reset()
                    # Hints may have been missed meanwhile.
                    self._heard(_EVERYTHING, None)
                    await _stay(connection.raw)
                finally:
                    connection.raw.terminate()
            except (*LOST, asyncpg.PostgresError) as error:
                _log.debug("cannot listen for hints on %s: %s; trying again", where, error)
            await pause.wait()

    def _hear(self, connection: Any, pid: int, channel: str, word: str) -> None:
        try:
            name, what, said = json.loads(word)
            change = Change(what)
            heads = None if said is None else _heads(said)
        except (ValueError, TypeError, OverflowError, RecursionError):
            # A message of another program or of a newer version: anything may have changed.
            self._heard(_EVERYTHING, None)
            return
        if name != self._name:
            self._heard(change, heads)


async def _stay(raw: Any) -> None:
    """Wait until the connection is lost. Regular queries detect a loss that is not reported."""
    lost = asyncio.Event()
    raw.add_termination_listener(lambda _: lost.set())
    while not raw.is_closed():
        if not await is_set_within(lost, _KEEPALIVE):
            await raw.fetchval("SELECT 1", timeout=_KEEPALIVE)


def _heads(said: list[list[int]]) -> dict[Head, int] | None:
    """Return the heads in a hint (queue, rank and type) with their lowest new job numbers.

    Return None if a server of an older version sent the hint, which names no types.
    """
    if any(len(one) == 3 for one in said):
        return None
    heads: dict[Head, int] = {}
    for one in said:
        # Anybody who may connect may send hints. A number that has no column would fail each claim.
        if any(int(n).bit_length() > bits for n, bits in zip(one, _BITS, strict=True)):
            raise ValueError(f"a head has a number that is too large: {one}")
        queue, rank, kind, seq = map(int, one)
        heads[queue, rank, kind] = seq
    return heads


def returned(heads: set[Head]) -> dict[Head, int]:
    """Return heads in the form for a hint about jobs that became claimable again.

    The hint needs no job numbers, because such jobs are read whatever their numbers are.
    """
    return dict.fromkeys(heads, NOTHING_NEW)
