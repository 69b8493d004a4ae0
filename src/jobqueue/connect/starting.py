"""Start a process while its store may be unreachable, and stop the process on signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from jobqueue.core.store import StoreAway
from jobqueue.core.waiting import GrowingPause

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
STOPPED_EARLY = "stopped before it was ready"


async def when_reached(
    start: Callable[[], Awaitable[None]], timeout: float, log: logging.Logger
) -> None:
    """Call ``start``, and retry while the store is unreachable, until ``timeout`` seconds passed.

    The last try begins within the timeout. A permanent failure, like a wrong password, is raised at
    once.
    """
    deadline = time.monotonic() + timeout
    pause = GrowingPause(_FIRST_PAUSE, _LONGEST_PAUSE, draw=None)
    while True:
        try:
            await start()
        except StoreAway as error:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            seconds = min(pause.next(), left)
            log.warning("cannot reach %s; trying again in %.1f s", error.message, seconds)
        else:
            return
        await asyncio.sleep(seconds)


async def started(start: Coroutine[Any, Any, object], stop: asyncio.Event) -> bool:
    """Run the coroutine ``start`` to its end, and return True.

    If ``stop`` is set before the end, cancel the coroutine and return False.
    """
    starting = asyncio.create_task(start)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            return True
        return False
    finally:
        stopping.cancel()
        if not starting.cancelling():
            # A second cancel would break off what the first one cleans up; ``asyncio.run`` cancels
            # this task and ``starting`` at the same time.
            starting.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def drains(seconds: float) -> str:
    """Return the log message of a worker that starts to drain at the first signal.

    ``seconds`` is the longest time that the drain may take.
    """
    return (
        f"draining: this worker starts no more jobs, and waits up to {seconds:g} s for its running"
        " jobs; a second Ctrl-C or SIGTERM ends it at once, and its jobs are run again"
    )


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event, log: logging.Logger, told: str = "") -> Iterator[None]:
    """Handle SIGTERM and SIGINT while the block runs.

    The first signal sets ``stop`` and logs ``told``. The second signal ends the process at once.
    """
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()
        if told:
            log.info("%s: %s", number.name, told)

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
