"""Waiting that obeys cancellation, deadlines, pauses, and long work that takes turns.

An event loop does one thing after the other. Long work is done in rounds: in each, an account does
only a little, however many of its calls are under way, and only a few accounts do any.

``asyncio.wait_for`` is not used in this package. On Python 3.11 it swallows a cancellation that
comes when its inner wait has ended (https://github.com/python/cpython/issues/86296), and a loop
around it then runs for ever.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
R = TypeVar("R")

# Work is counted in items; an item is a field or a name that is converted.
TURN = 500  # items of an account in one round: a few milliseconds
JOB = 4  # items in a job with its labels, or in a queue with its figures
WORKER = 50  # items in a worker with the types that it names
LONG = 16 * 1024  # bytes of a message; a longer one holds so many items that it takes turns
_FEW = 50  # items that are converted at once, without a turn
_SIDE_BY_SIDE = 4  # accounts that do long work in one round
_LONG_ROUND = 0.1  # seconds

account: ContextVar[str] = ContextVar("jobqueue_account", default="")
"""The account that a task works for; a face sets it for each call."""


class AnswerRoom(Protocol):
    """The share of memory that the answer to one call may take."""

    taken: int

    async def take(self) -> None:
        """Wait for the room that the largest answer needs, and hold it, unless any is held."""

    async def until_room(self) -> None:
        """Wait until there is room for one more message, without holding it."""

    def add(self, amount: int) -> bool:
        """Hold this much more; False, without effect, if there is no room for it."""

    def change(self, amount: int) -> None:
        """Hold exactly this much from now on."""

    def give_back(self) -> None:
        """Hold nothing."""


answer_room: ContextVar[AnswerRoom | None] = ContextVar("jobqueue_answer_room", default=None)
"""The room of the call that a task serves; a face sets it where answers may be large."""

_number: ContextVar[int] = ContextVar("jobqueue_turns", default=0)  # of a task that takes turns
_numbers = count(1)
_DEADLINE: ContextVar[float | None] = ContextVar("jobqueue_deadline", default=None)


@contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Give the work inside so many seconds; None, also for an undo: as long as it takes."""
    token = _DEADLINE.set(None if seconds is None else time.monotonic() + seconds)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def remaining(most: float) -> float:
    """Return the seconds left until the deadline, at most ``most``, at least 0."""
    ends = _DEADLINE.get()
    return most if ends is None else max(0.0, min(most, ends - time.monotonic()))


class Background:
    """Runs one task from its start until it is stopped."""

    _task: asyncio.Task[None] | None = None

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._task = asyncio.create_task(work, name=f"jobqueue-{name}")

    async def stop(self) -> None:
        """Cancel the task and wait for its end. May be called twice, or before the start."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set; False if that takes longer than so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def jittered(seconds: float, draw: Callable[[], float] = random.random) -> float:
    """Return a random part of a pause, at least half, so that processes do not act in step."""
    return seconds * (1.0 - 0.5 * draw())


class GrowingPause:
    """The pauses between tries: ``first`` seconds, then each twice as long, up to ``longest``.

    ``draw`` gives the random number that shortens a pause (``jittered``); None: full pauses.
    """

    def __init__(
        self,
        first: float,
        longest: float,
        *,
        draw: Callable[[], float] | None = random.random,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._first = first
        self._longest = longest
        self._draw = draw
        self._sleep = sleep
        self.most = first  # seconds that the next pause lasts at most

    @property
    def grown(self) -> bool:
        return self.most > self._first

    def reset(self) -> None:
        """Begin with the first pause again, after a success."""
        self.most = self._first

    def grow(self) -> None:
        """Make the next pause twice as long."""
        self.most = min(2 * self.most, self._longest)

    def next(self) -> float:
        """Return the seconds of this pause; the next one is longer."""
        seconds = self.most if self._draw is None else jittered(self.most, self._draw)
        self.grow()
        return seconds

    async def wait(self) -> None:
        await self._sleep(self.next())


async def take_answer_room() -> None:
    """Wait for room in memory. Call it before reading an answer that may be large."""
    room = answer_room.get()
    if room is not None:
        await room.take()


def give_answer_room_back() -> None:
    """Give the room back: the job that was read is not part of the answer."""
    room = answer_room.get()
    if room is not None:
        room.give_back()


def cancel_requested() -> bool:
    """True if a CancelledError here is meant for the running task, not for one it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def in_turns(work: Callable[[T], R], items: Sequence[T], weight: int = 1) -> list[R]:
    """Return ``[work(item) for item in items]`` and let the loop's other tasks run in between.

    One of these counts as ``weight`` items of a turn.
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
    """Wait until the task's account may convert ``size`` items; often at once."""
    loop = asyncio.get_running_loop()
    turns = _TURNS.get(loop)
    if turns is None:
        turns = _TURNS[loop] = _Turns()
    await turns.take(account.get(), size)


class _Turns:
    """The accounts that do long work in this round of a loop, and those that wait for the next."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}  # items in this round, by account
        self._began = 0.0  # processor time at the beginning of the round
        # By account, its oldest task first: work that has begun ends, and frees its memory.
        self._waiting: dict[str, list[tuple[int, int, int, asyncio.Future[None]]]] = {}

    async def take(self, whose: str, size: int) -> None:
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
        """End the round; after a long one, leave the loop to others for as long as it took."""
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
