"""Natural batching: while one batch is in flight the next one fills.

There are no timers and no added latency when idle: a call that finds no batch in flight goes at
once. Where more calls wait than fit into a batch, accounts take turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from jobqueue.core.errors import Unavailable
from jobqueue.core.waiting import account

Call = TypeVar("Call")
Answer = TypeVar("Answer")


class Batcher(Generic[Call, Answer]):
    """Coalesces concurrent calls into one flush at a time, or a few where that helps.

    ``flush`` gets the calls, those of one account in their order, and returns one answer each; if
    it raises, every call of that batch gets the error. A call is never split, and never dropped
    once its flush began. With more than one of the ``lanes``, a second flush begins beside one in
    flight once as much as ``worth`` waits for it.
    """

    def __init__(
        self,
        flush: Callable[[Sequence[Call]], Awaitable[Sequence[Answer]]],
        *,
        limit: int,
        weigh: Callable[[Call], int],
        lanes: int = 1,
        worth: int = 200,
    ) -> None:
        self._flush = flush
        self._limit = limit
        self._weigh = weigh
        self._lanes = lanes
        self._worth = worth
        # By account, the next account first.
        self._waiting: dict[str, deque[tuple[Call, asyncio.Future[Answer]]]] = {}
        self._weight = 0  # of the waiting calls
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def add(self, call: Call) -> Answer:
        """Join the next batch and wait for the answer."""
        if self._closed:
            raise Unavailable("shutting down")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(account.get(), deque()).append((call, future))
        self._weight += self._weigh(call)
        busy = len(self._tasks)
        if not busy or (busy < self._lanes and self._weight >= self._worth):
            task = asyncio.create_task(self._run())
            self._tasks.add(task)
        return await future

    async def close(self) -> None:
        """Refuse new calls and wait for the others."""
        self._closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self) -> None:
        try:
            while batch := self._take():
                try:
                    answers = await self._flush([call for call, _ in batch])
                except Exception as error:
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for (_, future), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
        finally:
            # At once, not in a callback: a call that comes now must not rely on this task.
            self._tasks.discard(asyncio.current_task())

    def _take(self) -> list[tuple[Call, asyncio.Future[Answer]]]:
        batch: list[tuple[Call, asyncio.Future[Answer]]] = []
        weight = 0
        while self._waiting and weight < self._limit:
            whose = next(iter(self._waiting))
            line = self._waiting.pop(whose)
            call, future = line.popleft()
            if line:
                self._waiting[whose] = line  # behind the other accounts
            own = self._weigh(call)
            self._weight -= own
            if future.cancelled():  # the caller gave up before anything happened
                continue
            weight += own
            batch.append((call, future))
        return batch
