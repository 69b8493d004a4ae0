"""What every call has in common: how it fails, how it is counted, how it ends with the server."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import grpc

from jobqueue.access import audit
from jobqueue.access.rules import GRPC, Kind, grpc_rule
from jobqueue.api.grpc.channel import Metadata
from jobqueue.api.grpc.errors import to_status
from jobqueue.core.errors import Internal, JobQueueError, Unavailable, without_trace

log = logging.getLogger("jobqueue.grpc")

OnCall = Callable[[str, str, float], None]
"""Told of every call that ended: full method name, gRPC status name, seconds."""

LAST_WORDS = 0.5  # seconds that calls which ``cut`` ends have for their answer

T = TypeVar("T")
Request = TypeVar("Request")
Response = TypeVar("Response")


class Calls:
    """Shared by the servicers of one server."""

    def __init__(self, on_call: OnCall | None = None, *, metadata: Metadata = ()) -> None:
        self._on_call = on_call
        self.metadata = metadata  # sent with every answer, by the servicers that do so
        self._stopped: asyncio.Future[None] | None = None
        self._reading = True
        self._readers: set[asyncio.Task[Any]] = set()
        self._owned: set[asyncio.Task[Any]] = set()
        self.under_way: set[asyncio.Task[Any]] = set()  # calls that ``cut`` may end
        self.was_cut = False

    @property
    def stopping(self) -> bool:
        """Whether the server is going away."""
        return self._stopped is not None and self._stopped.done()

    def stop_signal(self) -> asyncio.Future[None]:
        """Done when the server is going away. Not to be cancelled."""
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_future()
        return self._stopped

    def begin_stop(self) -> None:
        """End waits at once; what workers have to say is still taken."""
        signal = self.stop_signal()
        if not signal.done():
            signal.set_result(None)

    def end_readers(self) -> None:
        """Let workers' streams finish what they have read."""
        self._reading = False
        for reader in self._readers:
            reader.cancel()

    def cut(self) -> None:
        """Cancel the calls under way. They say themselves that the server stops: gRPC would not."""
        self.was_cut = True
        for task in self.under_way:
            task.cancel()

    async def settle(self) -> None:
        """Wait for the work that outlives its calls."""
        while self._owned:
            await asyncio.wait(self._owned)

    def own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something to its end even if the call that began it is cancelled."""
        task = asyncio.create_task(work)
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)
        return task

    def reader(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run the reader of a worker's stream; ``end_readers`` cancels it."""
        task = asyncio.create_task(work)
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)
        if not self._reading:
            task.cancel()
        return task

    async def until_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something, but not beyond the server's end."""
        task = asyncio.create_task(work)
        try:
            either: set[asyncio.Future[Any]] = {task, self.stop_signal()}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise server_stopping()
            return task.result()
        finally:
            await end(task)

    def ended(self, method: str, status: str, started: float) -> None:
        """Count a call."""
        if self._on_call is not None:
            self._on_call(method, status, time.perf_counter() - started)


def server_stopping() -> Unavailable:
    """What every call that is cut short gets: it did not happen, or its answer came before."""
    return Unavailable("the server is stopping")


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and see them off."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Servicer(Protocol):
    calls: Calls


S = TypeVar("S", bound=_Servicer)


def handled(
    method: Callable[[S, Request, Any], Awaitable[Response]],
) -> Callable[[S, Request, Any], Coroutine[Any, Any, Response]]:
    """Turn a servicer's method into one that never leaks an exception."""
    servicer, _, short = method.__qualname__.rpartition(".")
    name = f"/jq.v1.{servicer.removesuffix('Servicer')}Service/{short}"
    answer = _audited(name, method)

    @functools.wraps(method)
    async def call(self: S, request: Request, context: Any) -> Response:
        started = time.perf_counter()
        try:
            made = answer(self, request, context)
            del request  # gRPC keeps this frame with the error of a call that is refused
            response = await made
        except asyncio.CancelledError:
            self.calls.ended(name, grpc.StatusCode.CANCELLED.name, started)
            raise
        except JobQueueError as error:
            failure = without_trace(error)
        except Exception:
            log.exception("a call failed unexpectedly", extra={"method": name})
            failure = Internal("internal error; the server's log has the details")
        else:
            self.calls.ended(name, grpc.StatusCode.OK.name, started)
            return response
        if self.calls.stopping and isinstance(failure, Unavailable):
            failure = server_stopping()
        code, text, metadata = to_status(failure)
        self.calls.ended(name, code.name, started)
        return await context.abort(code, text, metadata)  # type: ignore[no-any-return]

    return call


def _audited(
    name: str, method: Callable[[S, Request, Any], Awaitable[Response]]
) -> Callable[[S, Request, Any], Awaitable[Response]]:
    """A method with its line in the audit log, if it changes something.

    A stream writes its own line: what it changes, it does long before its end.
    """
    rule = grpc_rule(name)
    if not rule.changes or rule.kind is Kind.STREAM:
        return method

    async def call(self: S, request: Request, context: Any) -> Response:
        with audit.change(GRPC[name], object_of(request)):
            return await method(self, request, context)

    return call


def object_of(request: Any) -> str:
    """The id or name of what a request is about."""
    for field in ("job_id", "worker_id", "name", "queue", "worker"):
        found = getattr(request, field, "")
        if found:
            return (
                found if isinstance(found, str) else found.id if field == "worker" else found.name
            )
    return ""
