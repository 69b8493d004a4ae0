"""Waiting that obeys a cancel, and long work that lets others go on.

An event loop does one thing after the other. Of long work, each account does only a little between
two rounds of the loop, however many of its calls are under way, and only a few accounts do any.

``asyncio.wait_for`` is not used in this package. On Python 3.11 it swallows a cancel that comes
when its inner wait has ended (https://github.com/python/cpython/issues/86296), and a loop around
it then runs for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from heapq import heappop, heappush
from itertools import count, islice
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
R = TypeVar("R")

TURN = 500  # items: a few milliseconds of conversion
JOB = 4  # items that a job with its labels counts for, or a queue with its figures
WORKER = 50  # and a worker with the types that it names
LONG = 16 * 1024  # bytes: as many items may be in a message, and to build them takes a while
_FEW = 50  # items that take no longer than the call that brings them
_SIDE_BY_SIDE = 4  # accounts that do long work in one round of the loop
_LONG_ROUND = 0.1  # seconds

account: ContextVar[str] = ContextVar("jobqueue_account", default="")
"""Whose work a task does; a face sets it for each call."""


class AnswerRoom(Protocol):
    """Room in memory for what a call answers with."""

    taken: int

    async def take(self) -> None:
        """Wait until the largest answer has room, and hold that; at once if it is held already."""

    async def until_room(self) -> None:
        """Wait until another message has room, and hold no more than before."""

    def add(self, amount: int) -> bool:
        """Hold this much more if there is room for it."""

    def change(self, amount: int) -> None:
        """Hold this much from now on."""

    def give_back(self) -> None:
        """Hold nothing any more."""


answer_room: ContextVar[AnswerRoom | None] = ContextVar("jobqueue_answer_room", default=None)
"""Of the call that a task serves. A face sets it where an answer may be large."""

_number: ContextVar[int] = ContextVar("jobqueue_turns", default=0)  # of a task that takes turns
_numbers = count(1)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set; False if that takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def take_answer_room() -> None:
    """Wait until what is read now may be answered with. To be called before it is read."""
    room = answer_room.get()
    if room is not None:
        await room.take()


def give_answer_room_back() -> None:
    """What was read is not answered with."""
    room = answer_room.get()
    if room is not None:
        room.give_back()


def cancel_requested() -> bool:
    """Whether a CancelledError here is meant for the task that runs.

    Otherwise only something that the task waited for was cancelled.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def in_turns(work: Callable[[T], R], items: Sequence[T], weight: int = 1) -> list[R]:
    """``[work(item) for item in items]``, during which the loop's other tasks have their turns.

    An item counts ``weight`` times.
    """
    if len(items) * weight <= _FEW:
        return [work(item) for item in items]
    done: list[R] = []
    left = iter(items)
    while len(done) < len(items):
        size = min(TURN // weight, len(items) - len(done))
        await turn(size * weight)
        done += [work(item) for item in islice(left, size)]
    return done


async def turn(size: int = TURN) -> None:
    """Wait until the task's account may do as much work as ``size`` items are; often at once."""
    loop = asyncio.get_running_loop()
    turns = _TURNS.get(loop)
    if turns is None:
        turns = _TURNS[loop] = _Turns()
    await turns.take(account.get(), size)


class _Turns:
    """Who does long work in this round of a loop, and who waits for one of the next."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}  # in this round, by account
        self._began = 0.0  # the round
        # By account, the oldest of its tasks first: what is begun ends, and takes no more memory.
        self._waiting: dict[str, list[tuple[int, int, int, asyncio.Future[None]]]] = {}

    async def take(self, whose: str, size: int) -> None:
        """Wait until there is room for this much."""
        number = _number.get()
        if not number:
            number = next(_numbers)
            _number.set(number)
        loop = asyncio.get_running_loop()
        if whose not in self._waiting and self._fits(whose, size):
            if not self._done:
                self._begin(loop)
            self._done[whose] = self._done.get(whose, 0) + size
            return
        future = loop.create_future()
        # A task that another one has begun after its first turn has the same number.
        heappush(self._waiting.setdefault(whose, []), (number, next(_numbers), size, future))
        await future

    def _fits(self, whose: str, size: int) -> bool:
        done = self._done.get(whose)
        return len(self._done) < _SIDE_BY_SIDE if done is None else done + size <= TURN

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._began = time.thread_time()  # not the time that other programs took from this one
        loop.call_soon(self._end)

    def _end(self) -> None:
        """Let others have as long as the round was, if it was long: one call takes many rounds."""
        took = time.thread_time() - self._began
        if took > _LONG_ROUND:
            asyncio.get_running_loop().call_later(took, self._next_round)
        else:
            self._next_round()

    def _next_round(self) -> None:
        self._done.clear()
        for whose in list(self._waiting):
            if len(self._done) == _SIDE_BY_SIDE:
                break
            line = self._waiting.pop(whose)
            while line:
                _, _, size, future = line[0]
                if not future.done():  # else its task was cancelled
                    if not self._fits(whose, size):
                        break
                    self._done[whose] = self._done.get(whose, 0) + size
                    future.set_result(None)
                heappop(line)
            if line:
                self._waiting[whose] = line  # behind the other accounts
        if self._done:
            # Behind the tasks that were let in just now: they do their work first.
            self._begin(asyncio.get_running_loop())


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()
