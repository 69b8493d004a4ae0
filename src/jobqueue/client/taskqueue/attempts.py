"""One call, tried again where that is safe and may help."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from jobqueue.core.errors import JobQueueError

T = TypeVar("T")

Sleep = Callable[[float], Awaitable[object]]


class Attempts:
    """Four at most, with full jitter between them: 100 ms, doubled, 1 s at most."""

    def __init__(self, rng: random.Random | None = None, sleep: Sleep = asyncio.sleep) -> None:
        self._rng = rng or random.Random()
        self._sleep = sleep

    async def once(self, call: Callable[[], Awaitable[T]]) -> T:
        """For what must not happen twice."""
        return await call()

    async def several(self, call: Callable[[], Awaitable[T]]) -> T:
        """For what may happen twice. The last error is the one that is raised."""
        # With the first call, like the transport: importing the package loads no gRPC.
        from jobqueue.api.grpc.taskqueue.retrying import delays, is_retryable

        for delay in delays(self._rng):
            try:
                return await call()
            except JobQueueError as error:
                if not is_retryable(error.code):
                    raise
            await self._sleep(delay)
        return await call()
