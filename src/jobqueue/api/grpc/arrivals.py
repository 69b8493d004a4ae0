"""How long the one message of a call may take to come."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from jobqueue.access.budgets import MessageBytes
from jobqueue.core.errors import InvalidArgument, Unavailable

# Seconds. 16 MiB over a slow link take a while, but not where others wait for the room.
LONGEST = 120.0
LONGEST_IF_SCARCE = 10.0
# What everybody may send comes with its call's headers.
LONGEST_OPEN = 10.0
LONGEST_OPEN_IF_WANTED = 0.5
_LOOK = 5.0
_LOOK_IF_OPEN = 0.25


class Arrivals:
    """Reads messages, and ends the calls whose message does not come.

    One timer looks after all of them: nearly every message is there when it is asked for.
    """

    def __init__(self, room: MessageBytes, *, is_open: bool = False) -> None:
        """``is_open``: everybody may send these messages, and they are short."""
        self._room = room
        self._is_open = is_open
        self._since: dict[asyncio.Task[Any], float] = {}  # the oldest first
        self._late: dict[asyncio.Task[Any], float] = {}  # and how long they had
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, context: Any) -> Any:
        """The message: its bytes, unless gRPC parses it."""
        task = asyncio.current_task()
        assert task is not None
        loop = task.get_loop()
        self._since[task] = loop.time()
        if self._timer is None:
            self._look_later(loop)
        try:
            message = await context.read()
        except asyncio.CancelledError:
            if task not in self._late or task.uncancel():
                raise
            raise Unavailable(f"the message did not come within {self._late[task]:g} s") from None
        finally:
            del self._since[task]
            self._late.pop(task, None)
        if message is grpc.aio.EOF:
            raise InvalidArgument("request", "is missing")
        return message

    def _look(self) -> None:
        self._timer = None
        if not self._since:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        longest = self._longest()
        for task, since in self._since.items():
            if now - since < longest:
                break
            if task not in self._late:
                self._late[task] = longest
                task.cancel()
        self._look_later(loop)

    def _longest(self) -> float:
        if self._is_open:
            return LONGEST_OPEN_IF_WANTED if self._room.wanted else LONGEST_OPEN
        return LONGEST_IF_SCARCE if self._room.scarce else LONGEST

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        pause = _LOOK_IF_OPEN if self._is_open else _LOOK
        self._timer = loop.call_later(pause, self._look)
