"""Return earlier answers to repeated calls, and finish sequences of calls whose caller left."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from jobqueue.core.errors import JobQueueError
from jobqueue.taskqueue.components import journal

T = TypeVar("T")

# A caller retries within seconds. A busy part gives fewer answers than this in that time.
REMEMBERED = 50_000


class Repeats:
    """Keeps the latest answers by request id, so that a repeated call has no second effect.

    An error is not kept: the repeated call is carried out. In each method, ``what`` names the
    called method and its arguments, so that two callers that chose the same request id by accident
    do not get each other's answers.
    """

    def __init__(self, bound: int = REMEMBERED) -> None:
        self._bound = bound
        self._answers: OrderedDict[tuple[Hashable, str], Any] = OrderedDict()

    def answer(self, what: Hashable, request_id: str, call: Callable[[], T]) -> T:
        """Return the kept answer for this request id, or make the call and keep its answer.

        With an empty request id the call is always made, and its answer is not kept.
        """
        if not request_id:
            return call()
        known: tuple[T] | None = self.known(what, request_id)
        return self.keep(what, request_id, call()) if known is None else known[0]

    def known(self, what: Hashable, request_id: str) -> tuple[Any] | None:
        """Return the kept answer in a tuple of one; None if no answer is kept."""
        asked = (what, request_id)
        return (self._answers[asked],) if asked in self._answers else None

    def keep(self, what: Hashable, request_id: str, made: T) -> T:
        """Keep an answer and return it. Forget the oldest answer if there are too many."""
        self._answers[what, request_id] = made
        if len(self._answers) > self._bound:
            self._answers.popitem(last=False)
        return made


class Protocols:
    """Runs protocols, which are sequences of calls, to their end even if their caller leaves."""

    def __init__(self, bound: int = REMEMBERED) -> None:
        self._repeats = Repeats(bound)
        self._under_way: dict[tuple[Hashable, str], asyncio.Task[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, protocol: Coroutine[Any, Any, T]) -> T:
        """Run the protocol and return its result. It goes on even if its caller is cancelled."""
        return await asyncio.shield(self._own(protocol))

    async def once(
        self, what: Hashable, request_id: str, call: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """Run the protocol that ``call`` starts once per request id, and return its result.

        If a protocol with this request id is running, wait for it. If it has ended, return the kept
        answer.
        """
        if not request_id:
            return await self.run(call())
        asked = (what, request_id)
        task = self._under_way.get(asked)
        if task is None:
            task = self._own(self._first(what, request_id, call))
            self._under_way[asked] = task
            task.add_done_callback(lambda _: self._under_way.pop(asked, None))
        joined: T = await asyncio.shield(task)
        return joined

    async def _first(self, what: Hashable, request_id: str, call: Callable[[], Awaitable[T]]) -> T:
        known: tuple[T] | None = self._repeats.known(what, request_id)
        return self._repeats.keep(what, request_id, await call()) if known is None else known[0]

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
        # The caller got the error. If the caller left, a JobQueueError was logged where it arose.
        if error is not None and not isinstance(error, JobQueueError):
            method = journal.METHOD.get()
            journal.log.error(
                f"{method or 'a call'} failed with an unexpected error, which is a defect; its"
                " caller got the error, unless the caller had left",
                exc_info=error,
                extra={"event": "protocol_failed", "method": method},
            )

    async def settle(self, seconds: float) -> None:
        """Wait ``seconds`` for the running protocols to end, then cancel the others."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextmanager
def in_hand(what: str, job_id: str) -> Iterator[None]:
    """Log the job as possibly inconsistent if the stop of the process cancels the block.

    ``what`` says what may be wrong with the job.
    """
    try:
        yield
    except asyncio.CancelledError:
        journal.anomaly(f"the stop of this process interrupted a call: {what}", job_id=job_id)
        raise
