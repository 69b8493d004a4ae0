"""The life of a supervisor: up, until a signal; the second signal kills."""

from __future__ import annotations

import asyncio
import enum
import signal
from collections.abc import Callable

from jobqueue.topology.supervisor.supervisor import Supervisor


class Ending(enum.Enum):
    """How it ended."""

    STOPPED = "stopped"
    INTERRUPTED = "interrupted"  # before all was up
    KILLED = "killed"  # by a second signal


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def supervise(
    supervisor: Supervisor, on_up: Callable[[], None], on_stopping: Callable[[], None]
) -> Ending:
    """Bring it up, keep it, and stop it when told to; raises what kept it from coming up."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    life = asyncio.create_task(_live(supervisor, stop, on_up, on_stopping), name="supervise")

    def on_signal() -> None:
        if stop.is_set():
            supervisor.kill()
            life.cancel()
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        return await life
    except asyncio.CancelledError:
        if not stop.is_set():
            raise  # somebody else's wish
        return Ending.KILLED
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _live(
    supervisor: Supervisor,
    stop: asyncio.Event,
    on_up: Callable[[], None],
    on_stopping: Callable[[], None],
) -> Ending:
    starting = asyncio.create_task(supervisor.start(), name="start")
    told = asyncio.create_task(stop.wait(), name="told-to-stop")
    try:
        await asyncio.wait({starting, told}, return_when=asyncio.FIRST_COMPLETED)
        was_up = starting.done()
        if was_up:
            await starting
            on_up()
            await supervisor.run(stop)
        on_stopping()
        return Ending.STOPPED if was_up else Ending.INTERRUPTED
    finally:
        told.cancel()
        starting.cancel()  # it stops what it has started
        await asyncio.gather(starting, told, return_exceptions=True)
        await supervisor.stop()
