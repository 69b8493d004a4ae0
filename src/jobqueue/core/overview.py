"""The system at a glance, also while a part of it is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from jobqueue.core.api import OperatorApi
from jobqueue.core.errors import DeadlineExceeded, OutcomeUnknown, Unavailable
from jobqueue.core.job import Health, Worker
from jobqueue.core.queue import QueueStats

T = TypeVar("T")
_FROM_A_FAILING_STORE = 0.3  # it may still be read (a full disk), or hang


@dataclass(slots=True)
class Overview:
    """Health, and what else could be read."""

    health: Health
    queues: list[QueueStats] | None = None
    workers: list[Worker] | None = None
    missing: dict[str, str] = field(default_factory=dict)  # what could not be read, and why


async def overview(api: OperatorApi, timeout: float) -> Overview:
    """Ask for the health first; the lists are bounded by ``timeout``, and may be missing."""
    found = Overview(await api.health())
    timeout = timeout if found.health.ok else min(timeout, _FROM_A_FAILING_STORE)

    async def read(name: str, reading: Awaitable[T]) -> T | None:
        try:
            async with asyncio.timeout(timeout):
                return await reading
        except TimeoutError:
            found.missing[name] = f"no answer within {timeout:g} s"
        except (Unavailable, OutcomeUnknown, DeadlineExceeded) as error:
            found.missing[name] = error.message
        return None

    found.queues, found.workers = await asyncio.gather(
        read("queues", api.list_queues()), read("workers", api.list_workers())
    )
    return found
