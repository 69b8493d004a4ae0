"""Word between replicas: NOTIFY, debounced, and one connection that listens.

Only a hint: what is missed is found by the next full look, at the latest after the scheduling
interval. So words are sent outside the writes that they are about, and may be lost.
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
from jobqueue.stores.postgres.trouble import LOST

_log = logging.getLogger("jobqueue.stores.postgres")
CHANNEL = "jobqueue"
_PAUSE = 0.02  # between two words
_MOST_HEADS = 100  # a word has to fit into 8,000 bytes
_KEEPALIVE = 5.0
_FIRST_RETRY, _LONGEST_RETRY = 0.05, 2.0

Heard = Callable[[Change, "dict[Head, int] | None"], None]


class Speaker:
    """Sends at once, then not again before a pause; what comes meanwhile goes together."""

    def __init__(self, name: int, send: Callable[[str], Awaitable[None]]) -> None:
        self._name = name
        self._send = send
        self._what = Change(0)
        self._heads: dict[Head, int] | None = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = True

    def start(self) -> None:
        """Begin to send."""
        self._closed = False

    def say(self, what: Change, heads: dict[Head, int] | None = None) -> None:
        """Tell the others. WORK says where, or (None) that they must look."""
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
        """Send what is left, and end."""
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
        with contextlib.suppress(JobQueueError):  # they look by themselves before long
            await self._send(word)


class Listener:
    """One connection of its own that comes back by itself."""

    def __init__(self, dsn: str, name: int, heard: Heard) -> None:
        self._dsn = dsn
        self._name = name
        self._heard = heard
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._task = asyncio.create_task(self._run(), name="jobqueue-listen")

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        pause = GrowingPause(_FIRST_RETRY, _LONGEST_RETRY)
        first = True
        while True:
            try:
                connection = await connect(self._dsn, READING)
                try:
                    await connection.raw.add_listener(CHANNEL, self._hear)
                    if not first:
                        _log.info("listening again for the word of other replicas")
                    first = False
                    pause.reset()
                    # Words may have been missed meanwhile.
                    self._heard(Change.WORK | Change.ENDED | Change.CONTROL, None)
                    await _stay(connection.raw)
                finally:
                    connection.raw.terminate()
            except (*LOST, asyncpg.PostgresError) as error:
                _log.debug("the listening connection was lost: %s", error)
            await pause.wait()

    def _hear(self, connection: Any, pid: int, channel: str, word: str) -> None:
        try:
            name, what, said = json.loads(word)
            change = Change(what)
            heads = None if said is None else _heads(said)
        except (ValueError, TypeError):
            # From another program, or a newer version: look at everything.
            self._heard(Change.WORK | Change.ENDED | Change.CONTROL, None)
            return
        if name != self._name:
            self._heard(change, heads)


async def _stay(raw: Any) -> None:
    """Until the connection is lost. A line that went dead without a word fails the question."""
    lost = asyncio.Event()
    raw.add_termination_listener(lambda _: lost.set())
    while not raw.is_closed():
        if not await is_set_within(lost, _KEEPALIVE):
            await raw.fetchval("SELECT 1", timeout=_KEEPALIVE)


def _heads(said: list[list[int]]) -> dict[Head, int] | None:
    """Read the heads that have work; None where a server of an older version names no types."""
    if any(len(one) == 3 for one in said):
        return None
    return {(int(queue), int(rank), int(kind)): int(seq) for queue, rank, kind, seq in said}


def returned(heads: set[Head]) -> dict[Head, int]:
    """Heads where jobs came back: no new number, but something to read."""
    return dict.fromkeys(heads, NOTHING_NEW)
