"""Wait with deadlines and growing pauses, and divide long work fairly between callers.

To convert many jobs or workers to messages at once would block the event loop, so this work is
divided into rounds. In each round only a few accounts (callers) have a turn: each converts at most
``TURN`` items, regardless of the number of its calls.

This package does not use ``asyncio.wait_for``. On Python 3.11 it swallows a cancellation that
arrives when its inner wait has just ended (https://github.com/python/cpython/issues/86296), and a
loop around it then runs for ever.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
R = TypeVar("R")

# Work is counted in items. An item is a field or a name that is converted.
TURN = 500  # items that an account may convert in one round: a few milliseconds
JOB = 4  # items in a job with its labels, or in a queue with its counters
WORKER = 50  # items in a worker with its list of types
LONG = 16 * 1024  # bytes; a longer message has so many items that its conversion takes turns
_FEW = 50  # items that are converted at once, without waiting for a turn
_ITEM_BYTES = 10 * 1024  # bytes of a large item that count as one item
_SIDE_BY_SIDE = 4  # accounts that may convert items in one round
_LONG_ROUND = 0.1  # seconds
_LAST_ANSWER = 1.0  # seconds in which the work of a caller that has left may end

account: ContextVar[str] = ContextVar("jobqueue_account", default="")
"""The account (the caller) for which the current task works; a face sets it for each call."""


class AnswerRoom(Protocol):
    """Reserves memory for the answer to one call. ``taken`` is the number of bytes reserved."""

    taken: int

    async def take(self) -> None:
        """Wait until the memory for the largest answer can be reserved, and reserve it.

        Return at once if the call has reserved memory already.
        """

    async def until_room(self) -> None:
        """Wait until memory for the largest answer is available, without reserving it."""

    def add(self, amount: int) -> bool:
        """Reserve ``amount`` more bytes; return False, without effect, if memory is short."""

    def change(self, amount: int) -> None:
        """Change the reserved memory to exactly ``amount`` bytes."""

    def give_back(self) -> None:
        """Release all reserved memory."""


answer_room: ContextVar[AnswerRoom | None] = ContextVar("jobqueue_answer_room", default=None)
"""The memory of the call that the current task serves; a face sets it if answers may be large."""

_number: ContextVar[int] = ContextVar("jobqueue_turns", default=0)  # of a task that takes turns
_numbers = count(1)
_DEADLINE: ContextVar[float | None] = ContextVar("jobqueue_deadline", default=None)


@contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Set a deadline, ``seconds`` from now, for the work in the block; None removes the deadline.

    Calls in the block read the deadline with ``remaining``; nothing else enforces it.
    """
    token = _DEADLINE.set(None if seconds is None else time.monotonic() + seconds)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def remaining(most: float) -> float:
    """Return the seconds until the deadline, from 0 to ``most``; ``most`` without a deadline."""
    ends = _DEADLINE.get()
    return most if ends is None else max(0.0, min(most, ends - time.monotonic()))


class Background:
    """A base class for a part that runs one background task until ``stop`` is called."""

    _task: asyncio.Task[None] | None = None

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._task = asyncio.create_task(work, name=f"jobqueue-{name}")

    async def stop(self) -> None:
        """Cancel the task and wait for its end.

        The call may be repeated, or made before the start.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


RECENT = 1.0
"""The seconds for which an answer that is shown to people is cached."""


class Recent(Generic[T]):
    """Caches an answer for a short time. Concurrent callers share one read."""

    def __init__(self, ask: Callable[[], Awaitable[T]], fresh: float | None = None) -> None:
        """Set the function that reads the answer, and the seconds for which it is cached."""
        self._ask = ask
        self._fresh = fresh
        self._asking = asyncio.Lock()
        self._known: tuple[float, T] | None = None

    async def read(self) -> T:
        async with self._asking:
            known = self._known
            fresh = RECENT if self._fresh is None else self._fresh
            if known is None or time.monotonic() - known[0] > fresh:
                answer = await self._ask()
                # From the end of the read: callers that waited for a slow one share its answer.
                known = self._known = (time.monotonic(), answer)
            return known[1]

    def forget(self) -> None:
        """Discard the cached answer."""
        self._known = None


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, at most ``seconds``. Return True if the event was set in time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def jittered(seconds: float, draw: Callable[[], float] = random.random) -> float:
    """Return a random duration between half of ``seconds`` and ``seconds``.

    Random pauses prevent several processes from acting at the same moments.
    """
    return seconds * (1.0 - 0.5 * draw())


class LatestWrite(Background, Generic[T]):
    """Writes a value in the background: only the latest one, one write at a time.

    ``write`` returns False if it must be repeated, and raises no error.
    """

    def __init__(self, write: Callable[[T], Awaitable[bool]]) -> None:
        self._write = write
        self._waiting: list[T] = []  # the value to write, if any

    def put(self, value: T) -> None:
        """Write this value soon, in place of a value that is not written yet."""
        self._waiting = [value]
        if self._task is None or self._task.done():
            self._begin(self._run(), "latest-write")

    async def _run(self) -> None:
        pause = GrowingPause(0.1, 5.0)
        while self._waiting:
            value = self._waiting[0]
            self._waiting = []
            if not await self._write(value):
                self._waiting = self._waiting or [value]
                await pause.wait()


class GrowingPause:
    """Computes the pauses between tries: ``first`` seconds, then each twice as long as the last.

    No pause is longer than ``longest`` seconds. ``draw`` returns the random number that shortens a
    pause (see ``jittered``); if it is None, pauses are not shortened.
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
        self.most = first  # the largest length of the next pause, in seconds

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
        """Return the length of this pause in seconds, and make the next pause longer."""
        seconds = self.most if self._draw is None else jittered(self.most, self._draw)
        self.grow()
        return seconds

    async def wait(self) -> None:
        """Sleep for this pause, and make the next pause longer."""
        await self._sleep(self.next())


async def take_answer_room() -> None:
    """Wait until memory for the largest answer of the current call is reserved.

    Call this function before reading an answer that may be large.
    """
    room = answer_room.get()
    if room is not None:
        await room.take()


def give_answer_room_back() -> None:
    """Release the memory reserved for the current call's answer.

    Call this function if the job that was read is not part of the answer.
    """
    room = answer_room.get()
    if room is not None:
        room.give_back()


def cancel_requested() -> bool:
    """Return True if the running task itself is being cancelled.

    After a CancelledError, False means that only a task that this task waited for was cancelled.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def to_its_end(work: Coroutine[Any, Any, T]) -> tuple[T, bool]:
    """Return the result of ``work``, and True if the caller was cancelled meanwhile.

    Work on a connection that has begun is not interrupted, unless it takes long. An interrupted
    statement costs its connection, and callers begin and give up calls as fast as they like.
    """
    if not account.get():  # the process itself gives up only when it stops
        return await work, False
    task = asyncio.create_task(work)
    task.add_done_callback(_note_end)
    try:
        return await asyncio.shield(task), False
    except asyncio.CancelledError:
        done, _ = await asyncio.wait([task], timeout=_LAST_ANSWER)
        if not done:
            task.cancel()
            raise
        if task.cancelled() or task.exception() is not None:
            raise
        return task.result(), True


def _note_end(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # its caller may have left


class FairSemaphore:
    """Limits concurrent work as ``asyncio.Semaphore`` does, but accounts (callers) take turns.

    However many tasks of one account wait, a task of another account waits for one of them at most.
    Work of the process itself, which belongs to no account, has every second turn.
    """

    def __init__(self, places: int = 1) -> None:
        self._free = places
        self._last = ""  # the account that had the last turn
        # The waiting tasks of each account; the account whose turn is next comes first.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self) -> None:
        """Wait for a place and take it."""
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(account.get(), deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it got the place when it was cancelled
                self.release()
            raise

    def release(self) -> None:
        """Give a place back."""
        while self._waiting:
            whose = "" if self._last and "" in self._waiting else next(iter(self._waiting))
            line = self._waiting.pop(whose)
            while line:
                turn = line.popleft()
                if not turn.done():  # else its task has given up
                    self._last = whose
                    if line:
                        self._waiting[whose] = line  # behind the other accounts
                    turn.set_result(None)
                    return
        self._free += 1

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


async def in_turns(work: Callable[[T], R], items: Sequence[T], weight: int = 1) -> list[R]:
    """Return ``[work(item) for item in items]``, and let the loop's other tasks run in between.

    Each element of ``items`` counts as ``weight`` items of a turn.
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


def items_of(size: int) -> int:
    """Return how many items of a turn a text of ``size`` bytes counts as."""
    return min(TURN, 1 + size // _ITEM_BYTES)


async def in_turns_by_size(
    work: Callable[[T], R], items: Sequence[T], size: Callable[[T], int]
) -> list[R]:
    """Return the results as ``in_turns`` does, for items that may be very large.

    ``size`` returns the bytes of an item. A large item counts as many items of a turn.
    """
    done: list[R] = []
    part: list[T] = []
    taken = 0
    for item in items:
        more = items_of(size(item))
        if taken + more > TURN:
            await turn(taken)
            done += map(work, part)
            part, taken = [], 0
        part.append(item)
        taken += more
    if taken > _FEW:
        await turn(taken)
    return [*done, *map(work, part)]


async def turn(size: int = TURN) -> None:
    """Wait until the account (the caller) of the current task may convert ``size`` more items."""
    loop = asyncio.get_running_loop()
    turns = _TURNS.get(loop)
    if turns is None:
        turns = _TURNS[loop] = _Turns()
    await turns.take(account.get(), size)


class _Turns:
    """Decides which accounts may convert items in each round of an event loop."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}  # items in this round, by account
        self._began = 0.0  # processor time at the beginning of the round
        # By account. The oldest task of an account is first, so that work that has begun ends and
        # frees its memory.
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
        # A task has the same number as the task that created it, if that task had a number.
        heappush(self._waiting.setdefault(whose, []), (number, next(_numbers), size, future))
        await future

    def _fits(self, whose: str, size: int) -> bool:
        done = self._done.get(whose)
        return len(self._done) < _SIDE_BY_SIDE if done is None else done + size <= TURN

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._began = time.thread_time()  # excludes the time used by other programs
        loop.call_soon(self._end)

    def _end(self) -> None:
        # After a long round, all other work gets as much time as the round took.
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
            # The end of the round runs after the tasks whose futures were just set.
            self._begin(asyncio.get_running_loop())


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()
