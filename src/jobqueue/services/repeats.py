"""First answers, repeated to whoever asks again; protocols that end though their caller left."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from jobqueue.core.errors import JobQueueError
from jobqueue.services import journal

T = TypeVar("T")

# An answer is asked for again within seconds; this is more than a busy owner gives in that time.
REMEMBERED = 50_000


class Repeats:
    """Answers by request id, the latest ones. An error is no answer: the call is made again.

    ``what`` is the method and what it is about: two callers that choose the same id by accident
    are not told each other's answers.
    """

    def __init__(self, bound: int = REMEMBERED) -> None:
        self._bound = bound
        self._answers: OrderedDict[tuple[Hashable, str], Any] = OrderedDict()

    def answer(self, what: Hashable, request_id: str, call: Callable[[], T]) -> T:
        """What ``call`` returned the first time. An empty id is never repeated."""
        if not request_id:
            return call()
        asked = (what, request_id)
        if asked in self._answers:
            found: T = self._answers[asked]
            return found
        made = call()
        self._keep(asked, made)
        return made

    def known(self, what: Hashable, request_id: str) -> tuple[Any] | None:
        """The first answer, if there was one."""
        asked = (what, request_id)
        return (self._answers[asked],) if asked in self._answers else None

    def _keep(self, asked: tuple[Hashable, str], made: object) -> None:
        self._answers[asked] = made
        if len(self._answers) > self._bound:
            self._answers.popitem(last=False)


class Protocols:
    """Runs protocols of several calls to their end, whatever becomes of who asked for them."""

    def __init__(self, bound: int = REMEMBERED) -> None:
        self._repeats = Repeats(bound)
        self._under_way: dict[tuple[Hashable, str], asyncio.Task[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, protocol: Coroutine[Any, Any, T]) -> T:
        """Wait for it; a caller that is cancelled leaves, the protocol goes on."""
        return await asyncio.shield(self._own(protocol))

    async def once(self, what: Hashable, request_id: str, call: Callable[[], Awaitable[T]]) -> T:
        """Run it, or join it, or repeat its answer."""
        if not request_id:
            return await self.run(_awaited(call))
        asked = (what, request_id)
        task = self._under_way.get(asked)
        if task is None:
            task = self._own(self._first(what, request_id, call))
            self._under_way[asked] = task
            task.add_done_callback(lambda _: self._under_way.pop(asked, None))
        joined: T = await asyncio.shield(task)
        return joined

    async def _first(self, what: Hashable, request_id: str, call: Callable[[], Awaitable[T]]) -> T:
        known = self._repeats.known(what, request_id)
        if known is not None:
            found: T = known[0]
            return found
        made = await call()
        return self._repeats.answer(what, request_id, lambda: made)

    def _own(self, protocol: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(protocol)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        # Whoever asked has it. If they left, what was foreseen is in the log from where it arose.
        if error is not None and not isinstance(error, JobQueueError):
            journal.log.error(
                "a protocol ended with a defect",
                exc_info=error,
                extra={"event": "protocol_failed", "method": journal.METHOD.get()},
            )

    async def settle(self, seconds: float) -> None:
        """Let what is under way end; cut off what takes longer."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextmanager
def in_hand(what: str, job_id: str) -> Iterator[None]:
    """If the stop of the process cuts off what is inside, say which job is left half-way."""
    try:
        yield
    except asyncio.CancelledError:
        journal.anomaly(f"cut off by the stop: {what}", job_id=job_id)
        raise


async def _awaited(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
