"""Word of other processes: scripts publish what they changed, one connection listens.

Only a hint: what is missed is found by the next look, at the latest after the scheduling interval.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from jobqueue.core.store import Change
from jobqueue.stores.redis.deadline import within
from jobqueue.stores.redis.trouble import TROUBLE
from jobqueue.stores.redis.wire import Wire

_log = logging.getLogger("jobqueue.stores.redis")
_EVERYTHING = ~Change(0)
_KEEPALIVE = 5.0
_FIRST_RETRY, _LONGEST_RETRY = 0.05, 2.0


class Listener:
    """Comes back by itself."""

    def __init__(
        self, wire: Wire, channel: str, node: str, heard: Callable[[Change], None]
    ) -> None:
        self._wire = wire
        self._channel = channel
        self._node = node
        self._heard = heard
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._task = asyncio.create_task(self._run(), name="jobqueue-redis-listen")

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        pause = _FIRST_RETRY
        first = True
        while True:
            try:
                connection = await within(_KEEPALIVE, self._wire.dedicated())
                try:
                    await connection.send_command("SUBSCRIBE", self._channel)
                    await within(_KEEPALIVE, connection.read_response())
                    if not first:
                        _log.info("listening again for the word of other processes")
                    first = False
                    pause = _FIRST_RETRY
                    self._heard(_EVERYTHING)  # whatever was said while nobody listened
                    await self._stay(connection)
                finally:
                    await connection.disconnect(nowait=True)
            except TROUBLE as error:
                _log.debug("the listening connection was lost: %s", error)
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, _LONGEST_RETRY)

    async def _stay(self, connection: Any) -> None:
        """Until the connection is lost. A line that went dead without a word fails the question."""
        asked = False
        while True:
            try:
                word = await within(_KEEPALIVE, connection.read_response(disconnect_on_error=False))
            except TimeoutError:
                if asked or not connection.is_connected:
                    raise
                asked = True
                await connection.send_command("PING")
                continue
            asked = False
            if word[0] == b"message":
                self._hear(word[2])

    def _hear(self, word: bytes) -> None:
        node, _, change = word.decode(errors="replace").partition(" ")
        if node == self._node:
            return
        try:
            heard = Change(int(change))
        except ValueError:
            heard = _EVERYTHING  # somebody else's, or a newer version's
        self._heard(heard)
