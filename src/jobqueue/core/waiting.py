"""Waiting that obeys a cancel, and long work that lets others go on.

``asyncio.wait_for`` is not used in this package. On Python 3.11 it swallows a cancel that comes
when its inner wait has ended (https://github.com/python/cpython/issues/86296), and a loop around
it then runs for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

TURN = 500  # items: a few milliseconds of conversion, and one turn in a usual batch of 1,000


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set; False if that takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def cancel_requested() -> bool:
    """Whether a CancelledError here is meant for the task that runs.

    Otherwise only something that the task waited for was cancelled.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def in_turns(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """``[work(item) for item in items]``, during which the loop's other tasks have their turns."""
    if len(items) <= TURN:
        return [work(item) for item in items]
    done: list[R] = []
    left = iter(items)
    while len(done) < len(items):
        if done:
            await asyncio.sleep(0)
        done += [work(item) for item in islice(left, TURN)]
    return done
