"""SIGTERM and SIGINT: the first asks to stop, the second ends the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def drains(seconds: float) -> str:
    """What a worker says at the first signal."""
    return (
        f"draining: it takes no more jobs, and waits up to {seconds:g} s for those that run; a"
        " second Ctrl-C or SIGTERM ends it at once, and its jobs are run again"
    )


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event, log: logging.Logger, told: str = "") -> Iterator[None]:
    """Set ``stop`` at the first signal and log ``told``; the second one ends the process."""
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
