"""Waiting that obeys a cancel.

``asyncio.wait_for`` is not used in this package. On Python 3.11 it swallows a cancel that comes
when its inner wait has ended (https://github.com/python/cpython/issues/86296), and a loop around
it then runs for ever.
"""

from __future__ import annotations

import asyncio


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
