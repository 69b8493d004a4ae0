"""The servers of one client: a connection to each, opened when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from jobqueue.access.tls import Credentials
from jobqueue.core.errors import Conflict
from jobqueue.services.model import Canceled, Envelope, Listing, Page, Record, Spec, Submitted


class Transport(Protocol):
    """One attempt of each call at one server. Errors are those of ``core.errors``."""

    async def submit(self, spec: Spec, key: str, *, timeout: float) -> Submitted:
        """Accept a job."""
        ...

    async def status(self, job_id: str, *, timeout: float) -> Record:
        """What is known of a job."""
        ...

    async def result(self, job_id: str, *, timeout: float) -> Envelope | None:
        """How a job ended; None while it has not."""
        ...

    async def cancel(self, job_id: str, reason: str, *, timeout: float) -> Canceled:
        """Cancel a job, or ask for it."""
        ...

    async def list(self, listing: Listing, *, timeout: float) -> Page:
        """One page."""
        ...

    async def close(self) -> None:
        """Let the connection go."""
        ...


Connect = Callable[[str, Credentials | None], Transport]


def connect(target: str, credentials: Credentials | None) -> Transport:
    """By gRPC, which is loaded only now."""
    from jobqueue.api.grpc.taskqueue.remote_public import RemoteTaskQueue

    return RemoteTaskQueue(target, credentials)


class Transports:
    """By target. They belong to the event loop that opened them, and end with it at the latest."""

    def __init__(self, connect: Connect, credentials: Credentials | None) -> None:
        self._connect = connect
        self._credentials = credentials
        self._open: dict[str, Transport] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._life: AsyncGenerator[None, None] | None = None

    async def to(self, target: str) -> Transport:
        """The connection to a server."""
        here = asyncio.get_running_loop()
        if self._loop is not here:
            await self._settle(here)
        transport = self._open.get(target)
        if transport is None:
            transport = self._open[target] = self._connect(target, self._credentials)
        return transport

    async def _settle(self, here: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and not self._loop.is_closed():
            raise Conflict(
                "the client is open on another event loop: call `await client.close()` there,"
                " or use one client for each loop"
            )
        self._loop, self._open = here, {}
        self._life = self._lifetime(self._open)
        await anext(self._life)

    async def _lifetime(self, opened: dict[str, Transport]) -> AsyncGenerator[None, None]:
        # A loop closes its asynchronous generators before it ends: that closes the connections of
        # a client that was never closed.
        try:
            yield
        finally:
            self._loop, self._life, self._open = None, None, {}
            await asyncio.gather(*(transport.close() for transport in opened.values()))

    async def close(self) -> None:
        """All of them; the next call opens its own again."""
        if self._life is not None and self._loop is asyncio.get_running_loop():
            await self._life.aclose()
