"""Idempotent answers by request id, and protocols that end even if their caller left."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from jobqueue.core.errors import JobQueueError
from jobqueue.taskqueue.components import journal

T = TypeVar("T")

# An answer is asked for again within seconds; this is more than a busy owner gives in that time.
REMEMBERED = 50_000


class Repeats:
    """The latest answers, by request id. An error is not kept: the call is made again.

    ``what`` names the method and its subject, so that two callers that chose the same id by
    accident do not get each other's answers.
    """

    def __init__(self, bound: int = REMEMBERED) -> None:
        self._bound = bound
        self._answers: OrderedDict[tuple[Hashable, str], Any] = OrderedDict()

    def answer(self, what: Hashable, request_id: str, call: Callable[[], T]) -> T:
        """Return the first answer of ``call``. A call with an empty id is never repeated."""
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
        """Return the first answer in a tuple, if there was one."""
        asked = (what, request_id)
        return (self._answers[asked],) if asked in self._answers else None

    def _keep(self, asked: tuple[Hashable, str], made: object) -> None:
        self._answers[asked] = made
        if len(self._answers) > self._bound:
            self._answers.popitem(last=False)


class Protocols:
    """Runs protocols of several calls to their end, even if their caller leaves."""

    def __init__(self, bound: int = REMEMBERED) -> None:
        self._repeats = Repeats(bound)
        self._under_way: dict[tuple[Hashable, str], asyncio.Task[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, protocol: Coroutine[Any, Any, T]) -> T:
        """Wait for the protocol. If the caller is cancelled, the protocol goes on."""
        return await asyncio.shield(self._own(protocol))

    async def once(self, what: Hashable, request_id: str, call: Callable[[], Awaitable[T]]) -> T:
        """Run the protocol, join it if it is under way, or repeat its answer."""
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
        # The caller has it. If that has left, a foreseen error was logged where it arose.
        if error is not None and not isinstance(error, JobQueueError):
            journal.log.error(
                "a protocol ended with a defect",
                exc_info=error,
                extra={"event": "protocol_failed", "method": journal.METHOD.get()},
            )

    async def settle(self, seconds: float) -> None:
        """Let the protocols under way end; cancel those that take longer."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextmanager
def in_hand(what: str, job_id: str) -> Iterator[None]:
    """Log the job that is left half-way if the stop of the process interrupts the block."""
    try:
        yield
    except asyncio.CancelledError:
        journal.anomaly(f"interrupted by the stop of this process: {what}", job_id=job_id)
        raise


async def _awaited(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
