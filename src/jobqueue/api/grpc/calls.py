"""Behaviour that all calls share: how they fail, are counted, and end when the server stops."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import grpc

from jobqueue.access import audit
from jobqueue.access.rules import GRPC, BudgetKind, grpc_rule
from jobqueue.api.grpc.channel import Metadata
from jobqueue.api.grpc.errors import abort, to_status
from jobqueue.core.errors import Internal, JobQueueError, Unavailable, without_trace

log = logging.getLogger("jobqueue.grpc")

OnCall = Callable[[str, str, float], None]
"""Called when a call has ended, with its full method name, gRPC status name and seconds."""

LAST_WORDS = 0.5  # seconds that a call has to answer after ``cut`` has cancelled it

T = TypeVar("T")
Request = TypeVar("Request")
Response = TypeVar("Response")


class Calls:
    """The calls under way on one server. Its servicers share one instance."""

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
        """True once ``begin_stop`` was called."""
        return self._stopped is not None and self._stopped.done()

    def stop_signal(self) -> asyncio.Future[None]:
        """Return a future that is done once the server stops. Do not cancel it."""
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_future()
        return self._stopped

    def begin_stop(self) -> None:
        """End waits at once. Reports of workers are still accepted."""
        signal = self.stop_signal()
        if not signal.done():
            signal.set_result(None)

    def end_readers(self) -> None:
        """Stop reading workers' streams. Messages that were read are still processed."""
        self._reading = False
        for reader in self._readers:
            reader.cancel()

    def cut(self) -> None:
        """Cancel the calls under way. They answer that the server stops; gRPC itself would not."""
        self.was_cut = True
        for task in self.under_way:
            task.cancel()

    async def settle(self) -> None:
        """Wait until all work that was given to ``own`` has ended."""
        while self._owned:
            await asyncio.wait(self._owned)

    def own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work to its end even if the call that began it is cancelled."""
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

    async def until_stopped(self, work: Awaitable[T]) -> T:
        """Await work; raise Unavailable if the server stops before it is done."""
        task = asyncio.ensure_future(work)
        try:
            either: set[asyncio.Future[Any]] = {task, self.stop_signal()}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise server_stopping()
            return task.result()
        finally:
            await end(task)

    def ended(self, method: str, status: str, started: float) -> None:
        if self._on_call is not None:
            self._on_call(method, status, time.perf_counter() - started)


def server_stopping() -> Unavailable:
    """Make the error of a call that the server's stop ends: it had no effect, or was answered."""
    return Unavailable("the server is stopping")


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Servicer(Protocol):
    calls: Calls


S = TypeVar("S", bound=_Servicer)


def handled(
    method: Callable[[S, Request, Any], Awaitable[Response]],
) -> Callable[[S, Request, Any], Coroutine[Any, Any, Response]]:
    """Make a servicer's method count its call, and answer an exception with a status."""
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
            log.exception(
                "the call failed unexpectedly; answering INTERNAL", extra={"method": name}
            )
            failure = Internal("internal error; the server's log has the details")
        else:
            self.calls.ended(name, grpc.StatusCode.OK.name, started)
            return response
        if self.calls.stopping and isinstance(failure, Unavailable):
            failure = server_stopping()
        code, text, metadata = to_status(failure)
        self.calls.ended(name, code.name, started)
        await abort(context, code, text, metadata)

    return call


def unary(
    method: Callable[[S, Request], Awaitable[Response]],
) -> Callable[[S, Request, Any], Coroutine[Any, Any, Response]]:
    """Do as ``handled`` for a method that does not need the call's context."""

    @functools.wraps(method)
    def without_context(self: S, request: Request, context: Any) -> Awaitable[Response]:
        return method(self, request)

    return handled(without_context)


def _audited(
    name: str, method: Callable[[S, Request, Any], Awaitable[Response]]
) -> Callable[[S, Request, Any], Awaitable[Response]]:
    """Give a method that changes something its line in the audit log.

    A stream writes its line itself, because its changes come long before its end.
    """
    rule = grpc_rule(name)
    if not rule.changes or rule.kind is BudgetKind.STREAM:
        return method

    async def call(self: S, request: Request, context: Any) -> Response:
        with audit.change(GRPC[name], object_of(request)):
            return await method(self, request, context)

    return call


def object_of(request: Any) -> str:
    """Return the id or name of the job, worker or queue that a request is about."""
    for field in ("job_id", "worker_id", "name", "queue", "worker"):
        found = getattr(request, field, "")
        if found:
            return (
                found if isinstance(found, str) else found.id if field == "worker" else found.name
            )
    return ""
