"""Combine concurrent calls into batches.

Calls that arrive while a batch is written form the next batch. No timer delays a call: if no batch
is in progress, a call is written at once. If the waiting calls do not fit into one batch, accounts
(callers) take turns.
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
    """Combines concurrent calls into batches and passes each batch to ``flush``.

    ``flush`` returns one answer for each call of a batch. Calls of one account keep their order. If
    ``flush`` raises, each call of the batch gets the error. A call is never split, and never
    dropped after its flush began. The weights of a batch's calls add up to about ``limit``. Up to
    ``lanes`` flushes run at the same time, but a further flush starts beside a running one only
    when the waiting calls weigh at least ``worth``.
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
        # The calls of each account; the account whose turn is next comes first.
        self._waiting: dict[str, deque[tuple[Call, asyncio.Future[Answer]]]] = {}
        self._weight = 0  # of the waiting calls
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def add(self, call: Call) -> Answer:
        """Add a call to the next batch, wait for the call's answer and return it."""
        if self._closed:
            raise Unavailable("the engine is shutting down")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(account.get(), deque()).append((call, future))
        self._weight += self._weigh(call)
        busy = len(self._tasks)
        if not busy or (busy < self._lanes and self._weight >= self._worth):
            task = asyncio.create_task(self._run())
            self._tasks.add(task)
        return await future

    async def close(self) -> None:
        """Refuse new calls, and wait until the calls that were already added have ended."""
        self._closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self) -> None:
        account.set("")  # the batches of this task have calls of all accounts
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
            # Not in a callback, which runs later: a call that arrives now needs a new task.
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
