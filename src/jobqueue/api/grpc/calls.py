"""Count gRPC calls, convert their errors, and end them when the server stops."""

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
"""The server calls this function when a call has ended.

Its arguments are the full method name, the gRPC status name and the duration in seconds.
"""

# Lines about failed calls of one address: in a second, and at once after a pause.
_LINES, _LINES_AT_ONCE = 2.0, 200
LAST_WORDS = 0.5  # seconds in which a call must answer after ``cut`` has cancelled it

T = TypeVar("T")
Request = TypeVar("Request")
Response = TypeVar("Response")


class Calls:
    """Tracks the calls under way on one server. All servicers of a server share one instance."""

    def __init__(self, on_call: OnCall | None = None, *, metadata: Metadata = ()) -> None:
        self._on_call = on_call
        self.metadata = metadata  # some servicers send it with every answer
        self._stopped: asyncio.Future[None] | None = None
        self._reading = True
        self._readers: set[asyncio.Task[Any]] = set()
        self._owned: set[asyncio.Task[Any]] = set()
        self.under_way: set[asyncio.Task[Any]] = set()  # calls that ``cut`` may end
        # Of servicers that log failed calls: a caller must not fill the disk with them.
        self.failure_lines = audit.LineLimit(_LINES, _LINES_AT_ONCE)
        self.was_cut = False

    @property
    def stopping(self) -> bool:
        """Return True after ``begin_stop`` was called."""
        return self._stopped is not None and self._stopped.done()

    def stop_signal(self) -> asyncio.Future[None]:
        """Return a future that is done when the server begins to stop. Do not cancel the future."""
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_future()
        return self._stopped

    def begin_stop(self) -> None:
        """End long polls and other waits at once. The server still accepts workers' reports."""
        signal = self.stop_signal()
        if not signal.done():
            signal.set_result(None)

    def end_readers(self) -> None:
        """Stop reading workers' streams. Messages that were read already are still processed."""
        self._reading = False
        for reader in self._readers:
            reader.cancel()

    def cut(self) -> None:
        """Cancel the calls under way, so that they answer that the server is stopping.

        gRPC itself would end the calls without that answer.
        """
        self.was_cut = True
        for task in self.under_way:
            task.cancel()

    async def settle(self) -> None:
        """Wait until all tasks that ``own`` started have ended."""
        while self._owned:
            await asyncio.wait(self._owned)

    def own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` in a task that goes on if the call that started it is cancelled."""
        task = asyncio.create_task(work)
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)
        return task

    def reader(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run the reader of a worker's stream in a task, which ``end_readers`` cancels."""
        task = asyncio.create_task(work)
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)
        if not self._reading:
            task.cancel()
        return task

    async def until_stopped(self, work: Awaitable[T]) -> T:
        """Return the result of ``work``. Raise Unavailable if the server stops earlier."""
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
    """Return the error for a call that ends because the server stops.

    Only the parts of the call that the server has answered before this error had an effect.
    """
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
    """Wrap a servicer's method: count its calls, and convert exceptions to a gRPC status."""
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
                "the call of %s failed unexpectedly; answering INTERNAL",
                name,
                extra={"method": name},
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
    """Wrap a servicer's method like ``handled``, for a method without the call's context."""

    @functools.wraps(method)
    def without_context(self: S, request: Request, context: Any) -> Awaitable[Response]:
        return method(self, request)

    return handled(without_context)


def _audited(
    name: str, method: Callable[[S, Request, Any], Awaitable[Response]]
) -> Callable[[S, Request, Any], Awaitable[Response]]:
    """Wrap a method that changes something: write an audit line for each call.

    A method with a stream writes its own audit line, because its changes come long before its end.
    """
    rule = grpc_rule(name)
    if not rule.changes or rule.kind is BudgetKind.STREAM:
        return method

    async def call(self: S, request: Request, context: Any) -> Response:
        with audit.change(GRPC[name], object_of(request)):
            return await method(self, request, context)

    return call


def object_of(request: Any) -> str:
    """Return the id or name of the job, worker, queue or schedule that a request is about."""
    for field in ("job_id", "worker_id", "name", "queue", "worker", "schedule"):
        found = getattr(request, field, "")
        if found:
            return (
                found if isinstance(found, str) else found.id if field == "worker" else found.name
            )
    return ", ".join(one.name for one in getattr(request, "schedules", ()))
