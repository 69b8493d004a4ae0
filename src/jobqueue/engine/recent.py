"""Cache the answers of a store for a short time, for what is only shown to people."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_FRESH = 1.0  # seconds


class Recent(Generic[T]):
    """Caches an answer of the store for a second. Concurrent callers share one read."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking = asyncio.Lock()
        self._known: tuple[float, T] | None = None

    async def read(self) -> T:
        async with self._asking:
            known = self._known
            if known is None or time.monotonic() - known[0] > _FRESH:
                asked = time.monotonic()
                known = self._known = (asked, await self._ask())
            return known[1]

    def forget(self) -> None:
        self._known = None
