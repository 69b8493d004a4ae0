"""What every service does when it starts and ends: listen, say so, and say what is lost."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from jobqueue.access.hosts import is_loopback
from jobqueue.api.grpc.taskqueue.host import ServiceHost
from jobqueue.services import journal
from jobqueue.topology.taskqueue import catalogue
from jobqueue.topology.taskqueue.catalogue import Service
from jobqueue.topology.taskqueue.environment import Values

# Seconds that are kept for what follows the last call: protocols whose callers left, and jobs that
# are put back.
_CLOSING = 3.0
_NOT_DURABLE = "NOT DURABLE: what it holds is lost when this process ends"


@dataclass(frozen=True, slots=True)
class Running:
    """A service that is ready. ``address`` is empty where nobody calls."""

    service: str
    address: str = ""


class Grace:
    """The time that the end of a process may take. It runs from the first look at it."""

    def __init__(self, values: Values, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = values[catalogue.SHUTDOWN_TIMEOUT_MS] / 1000
        self._clock = clock
        self._began: float | None = None

    def left(self, *, keep: float = 0.0) -> float:
        """Seconds, without those that are kept for later: half of them at most."""
        now = self._clock()
        if self._began is None:
            self._began = now
        left = max(0.0, self._seconds - (now - self._began))
        return left - min(keep, left / 2)


@asynccontextmanager
async def listening(
    service: Service,
    values: Values,
    serve: Callable[[ServiceHost], None],
    grace: Grace,
    *,
    durable: bool,
) -> AsyncIterator[Running]:
    """Take calls; on the way out take no more, and let those under way end."""
    assert service.port is not None
    bind = values[catalogue.BIND_HOST]
    tls = catalogue.server_tls(values)
    host = ServiceHost(service.name, tls=tls)
    serve(host)
    port = await host.start(bind, values[service.port])
    journal.note(
        "ready",
        f"ready: {service.serves} on port {port}" + ("" if durable else f"; {_NOT_DURABLE}"),
        host=bind,
        port=port,
        tls=tls is not None,
    )
    if tls is None and not is_loopback(bind):
        journal.warn(
            "open_to_network",
            f"{bind} is open to the network without TLS: everybody who can connect may do"
            " everything, and read what others send; set TLS_CERT, TLS_KEY and TLS_CA, or"
            " BIND_HOST=127.0.0.1",
            host=bind,
            port=port,
        )
    try:
        yield Running(service.name, f"[{bind}]:{port}" if ":" in bind else f"{bind}:{port}")
    finally:
        began = time.monotonic()
        await host.stop(grace.left(keep=_CLOSING))
        journal.note("stopped", "takes no more calls", seconds=round(time.monotonic() - began, 3))


def worker_name(values: Values) -> str:
    """Of the worker in this process."""
    return values[catalogue.WORKER_ID] or socket.gethostname()


def tell_lost(**counts: int) -> None:
    """Say what ends with this process, if there is anything."""
    if any(counts.values()):
        held = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in counts.items())
        journal.warn(journal.STATE_LOST, f"lost with this process: {held}", **counts)
