"""How busy this server is, for those who choose between several."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jobqueue.core.api import OperatorApi
from jobqueue.core.errors import JobQueueError
from jobqueue.pb.jq.v1 import client_pb2 as pb

# However many ask, the store is asked once in this time.
_FRESH = 1.0


class Load:
    """Counts clients, and knows how fast the store answers."""

    def __init__(self, backend: OperatorApi, workers: Callable[[], int]) -> None:
        self._backend = backend
        self._workers = workers
        self._clients = 0
        self._asked = 0.0
        self._seconds = 0.0
        self._ready = True

    @contextmanager
    def client(self) -> Iterator[None]:
        """A client has its submit stream open."""
        self._clients += 1
        try:
            yield
        finally:
            self._clients -= 1

    async def tell(self) -> pb.GetLoadResponse:
        """What is known; at most so old as one test of the store."""
        began = time.monotonic()
        if began - self._asked > _FRESH:
            self._asked = began
            try:
                self._ready = (await self._backend.health()).ok
            except JobQueueError:
                self._ready = False
            self._seconds = time.monotonic() - began
        return pb.GetLoadResponse(
            workers=self._workers(),
            clients=self._clients,
            store_seconds=self._seconds,
            ready=self._ready,
        )
