"""Listen for hints of other processes: scripts publish changes on a Redis channel.

Hints may be lost. Then the next scheduled read of the store finds the change, at the latest after
the scheduling interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from jobqueue.core.store import Change
from jobqueue.core.waiting import GrowingPause
from jobqueue.stores.redis.connections import TROUBLE, RedisConnections, within

_log = logging.getLogger("jobqueue.stores.redis")
_EVERYTHING = ~Change(0)
_KEEPALIVE = 5.0
_FIRST_RETRY, _LONGEST_RETRY = 0.05, 2.0


class RedisListener:
    """Listens for hints on a connection of its own, and reconnects when the connection is lost."""

    def __init__(
        self,
        connections: RedisConnections,
        channel: str,
        node: str,
        heard: Callable[[Change], None],
    ) -> None:
        self._connections = connections
        self._channel = channel
        self._node = node
        self._heard = heard
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task that listens for hints."""
        self._task = asyncio.create_task(self._run(), name="jobqueue-redis-listen")

    async def close(self) -> None:
        """Stop listening for hints, and close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        pause = GrowingPause(_FIRST_RETRY, _LONGEST_RETRY)
        where = f"Redis at {self._connections.address}"
        first = True
        while True:
            try:
                connection = await within(_KEEPALIVE, self._connections.connected())
                try:
                    await connection.send_command("SUBSCRIBE", self._channel)
                    await within(_KEEPALIVE, connection.read_response())
                    if not first:
                        _log.info("listening again on %s for hints of other processes", where)
                    first = False
                    pause.reset()
                    self._heard(_EVERYTHING)  # hints may have been missed
                    await self._stay(connection)
                finally:
                    await connection.disconnect(nowait=True)
            except TROUBLE as error:
                _log.debug("cannot listen for hints on %s: %s; trying again", where, error)
            await pause.wait()

    async def _stay(self, connection: Any) -> None:
        """Read hints until the connection is lost. Check a silent connection with a PING."""
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
            heard = _EVERYTHING  # from a newer version
        self._heard(heard)
