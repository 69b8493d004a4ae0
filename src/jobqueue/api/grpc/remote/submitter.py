"""Submit the jobs of one process, in batches on one stream.

Submits that arrive while the server works on batches form the next batch. On an idle stream, a
submit is sent at once. A stream that breaks is opened again, and sends the specs that were not
sent. Specs that were sent but not answered are sent again if all of them have idempotency keys;
otherwise their submit raises OutcomeUnknown. A server that has announced its stop answers every
batch that had an effect, so the other batches are sent again.

A server limits the streams of one caller. If the server refuses the stream, the batches are sent by
unary calls for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio

from jobqueue.api.grpc.calls import end
from jobqueue.api.grpc.channel import BATCH_BYTES, BATCH_ITEMS
from jobqueue.api.grpc.codec import result_from_pb, spec_to_pb
from jobqueue.api.grpc.errors import error_from_pb, error_to_pb, from_rpc_error
from jobqueue.api.grpc.remote.server import RemoteServer
from jobqueue.api.grpc.remote.servers import Effect, Servers
from jobqueue.core.errors import (
    InvalidArgument,
    JobQueueError,
    OutcomeUnknown,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from jobqueue.core.job import JobSpec, SubmitResult
from jobqueue.core.waiting import GrowingPause, cancel_requested
from jobqueue.pb.jq.v1 import client_pb2 as pb
from jobqueue.pb.jq.v1 import types_pb2

MAX_IN_FLIGHT = 3
# A larger spec is sent by its own call: if the server refuses its size, other specs do not fail.
LARGE = BATCH_BYTES // 2
_FIRST_DELAY, _LONGEST_DELAY = 0.05, 1.0
BY_CALLS = 30.0  # seconds of unary calls after which a stream is tried again
_Stream = grpc.aio.StreamStreamCall[pb.SubmitStreamRequest, pb.SubmitStreamResponse]


@dataclass(slots=True, eq=False)
class _Chunk:
    """Holds specs of one submit that are sent in one message."""

    specs: list[types_pb2.JobSpec]
    size: int
    keyed: bool
    deadline: float
    future: asyncio.Future[list[SubmitResult]]
    sent: bool = False  # on the open stream
    unsure: bool = False  # sent on a stream that broke, so the jobs may exist

    def fail(self, error: JobQueueError) -> None:
        if self.future.done():
            return
        if self.unsure and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(
                "the connection broke before an answer arrived; the repetition failed:"
                f" {error.message}"
            )
        self.future.set_exception(error)

    def give_up(self) -> None:
        """Fail the submit at its deadline."""
        if self.sent:
            self.fail(OutcomeUnknown("the connection broke before the answer arrived"))
        else:
            self.fail(Unavailable("the server could not be reached in time"))


class Submitter:
    """Submits the specs of all callers in a process.

    The first submit starts its task and stream.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._search = servers.search(_FIRST_DELAY, _LONGEST_DELAY)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Chunk] = deque()
        self._in_flight: dict[int, list[_Chunk]] = {}
        self._number = 0
        self._wake = asyncio.Event()
        self._stream: _Stream | None = None
        self._server: RemoteServer | None = None  # the server of the stream
        self._watchdog: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False  # send no more on this stream, because of the server or ``move``
        self._moving = False  # to another server
        self._refused = False  # the server has refused the stream
        self._by_calls_until = 0.0
        self._stopped = False

    @property
    def connected(self) -> bool:
        """Return True while the stream is open."""
        return self._stream is not None

    def move(self) -> None:
        """Move the stream to the current server when the batches under way are answered."""
        if self._stream is not None and self._server is not self._servers.pick():
            self._moving = self._closing = True
            self._wake.set()

    # -- callers -------------------------------------------------------------------------------

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        """Submit specs, and return one result for each spec in the same order."""
        if len(specs) == 1:
            spec = specs[0]
            try:
                wire = spec_to_pb(spec)
            except InvalidArgument as error:
                return [SubmitResult.refused(error)]
            size = wire.ByteSize()
            if size <= LARGE:
                return await self._enqueue([wire], size, spec.key is not None)
            return await self._submit_large(wire)
        return await self._submit_many(specs)

    async def _submit_many(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        results: list[SubmitResult | None] = [None] * len(specs)
        places: list[list[int]] = []
        parts: list[asyncio.Future[list[SubmitResult]] | asyncio.Task[list[SubmitResult]]] = []
        chunk: list[types_pb2.JobSpec] = []
        where: list[int] = []
        size, keyed = 0, True

        def close() -> None:
            nonlocal chunk, where, size, keyed
            if chunk:
                parts.append(self._enqueue(chunk, size, keyed))
                places.append(where)
            chunk, where, size, keyed = [], [], 0, True

        for place, spec in enumerate(specs):
            try:
                wire = spec_to_pb(spec)
            except InvalidArgument as error:
                results[place] = SubmitResult.refused(error)
                continue
            length = wire.ByteSize()
            if length > LARGE:
                parts.append(self._loop.create_task(self._submit_large(wire)))
                places.append([place])
                continue
            if len(chunk) == BATCH_ITEMS or (chunk and size + length > BATCH_BYTES):
                close()
            chunk.append(wire)
            where.append(place)
            size += length
            keyed = keyed and spec.key is not None
        close()
        answers = await asyncio.gather(*parts, return_exceptions=True)
        for spots, answer in zip(places, answers, strict=True):
            if isinstance(answer, BaseException):
                raise _of_all(answers)
            for place, result in zip(spots, answer, strict=True):
                results[place] = result
        return [result for result in results if result is not None]

    async def _submit_large(self, wire: types_pb2.JobSpec) -> list[SubmitResult]:
        request = pb.SubmitBatchRequest(specs=[wire])
        keyed = wire.HasField("idempotency_key")
        deadline = self._loop.time() + self._servers.timeout
        pause = GrowingPause(_FIRST_DELAY, _LONGEST_DELAY)
        unsure: OutcomeUnknown | None = None
        while True:
            remaining = max(deadline - self._loop.time(), 0.001)
            try:
                response = await self._servers.call(
                    lambda server: server.client.SubmitBatch,
                    request,
                    Effect.REPEATABLE if keyed else Effect.ONCE,
                    timeout=remaining,
                )
                return [result_from_pb(response.results[0])]
            except InvalidArgument as error:
                if error.field != "request":
                    raise
                return [SubmitResult.refused(InvalidArgument("payload", error.message))]
            except Unavailable:
                if unsure is not None:  # no effect this time, but perhaps of an earlier call
                    raise unsure from None
                raise
            except OutcomeUnknown as error:
                if not keyed or self._loop.time() + pause.most > deadline:
                    raise
                unsure = error
            await pause.wait()

    def _enqueue(
        self, specs: list[types_pb2.JobSpec], size: int, keyed: bool
    ) -> asyncio.Future[list[SubmitResult]]:
        future: asyncio.Future[list[SubmitResult]] = self._loop.create_future()
        deadline = self._loop.time() + self._servers.timeout
        chunk = _Chunk(specs, size, keyed, deadline, future)
        if self._stopped:
            chunk.fail(Unavailable("the client is stopped"))
            return future
        self._waiting.append(chunk)
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="submitter")
        self._wake.set()
        return future

    async def stop(self) -> None:
        """Cancel the stream, and fail all submits that wait for an answer."""
        self._stopped = True
        task, self._task = self._task, None
        if task is not None:
            await end(task)
        self._broken(exact=False)
        while self._waiting:
            chunk = self._waiting.popleft()
            if chunk.sent:
                chunk.fail(OutcomeUnknown("the client was stopped before the answer arrived"))
            else:
                chunk.fail(Unavailable("the client is stopped"))

    # -- the stream ----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            server = self._server = self._search.pick()
            self._refused = False
            try:
                if self._loop.time() < self._by_calls_until:
                    await self._serve_by_calls(server)
                    continue
                await self._open(server)
                server.met = True
                self._search.answered()
                await self._serve()
            except JobQueueError as error:
                passing = isinstance(error, Unavailable | OutcomeUnknown)
                if passing and self._moving:
                    self._failed(error, more=True)
                    continue
                more = passing and self._search.failed(server)
                self._failed(error, more=more or self._refused)
                if more:
                    continue  # another server may accept the stream at once
                if self._refused:
                    self._by_calls_until = self._loop.time() + BY_CALLS
                    continue
                if passing and self._waiting:
                    await self._search.pause.wait()
                    self._expire()
            finally:
                self._moving = False
                self._close()

    async def _open(self, server: RemoteServer) -> None:
        try:
            self._stream = server.client.SubmitStream(metadata=server.metadata)
        except grpc.aio.UsageError:
            raise Unreachable("the server could not be reached in time") from None
        try:
            await server.opened(self._stream)
        except Unavailable as error:
            self._refused = not isinstance(error, Unreachable)
            raise

    def _close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    def _failed(self, error: JobQueueError, *, more: bool) -> None:
        """Handle a stream that broke or was not opened.

        With ``more`` another server is tried next.
        """
        passing = isinstance(error, Unavailable | OutcomeUnknown)
        # With such an error the server ended the stream after it announced its stop, or never
        # accepted the stream. Then batches without an answer had no effect.
        self._broken(exact=isinstance(error, Unavailable | Unauthenticated | PermissionDenied))
        if more or (passing and self._servers.met):
            self._expire()
            return
        while self._waiting:
            self._waiting.popleft().fail(_again(error))

    def _broken(self, *, exact: bool, number: int | None = None) -> None:
        """Repeat or fail batches in flight whose answers are lost.

        ``number`` selects one batch; None means all. With ``exact`` the batches had no effect.
        """
        numbers = list(self._in_flight) if number is None else [number]
        again: list[_Chunk] = []
        for lost in numbers:
            for chunk in self._in_flight.pop(lost):
                if exact:
                    chunk.sent = False
                if exact or (chunk.keyed and not self._stopped):
                    chunk.unsure = chunk.unsure or not exact
                    again.append(chunk)
                else:
                    chunk.fail(OutcomeUnknown("the connection broke before the answer arrived"))
        self._waiting.extendleft(reversed(again))

    def _expire(self) -> None:
        now = self._loop.time()
        for chunk in self._waiting:
            if chunk.deadline <= now:
                chunk.give_up()
        self._waiting = deque(chunk for chunk in self._waiting if not chunk.future.done())

    async def _serve(self) -> None:
        stream = self._stream
        assert stream is not None
        self._closing = self._moving
        reader = self._loop.create_task(self._read(stream))
        writer = self._loop.create_task(self._write(stream, reader))
        try:
            # Wait for the reader, too: if the server reads nothing, a write ends long after its
            # stream was cancelled.
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                await asyncio.wait({reader}, timeout=1.0)  # it has the error
        finally:
            await end(reader, writer)
        if not writer.cancelled():
            writer.result()
        if reader.cancelled():
            raise OutcomeUnknown("the connection broke before the answer arrived")
        reader.result()

    async def _serve_by_calls(self, server: RemoteServer) -> None:
        """Send the waiting batches by unary calls, and return when all batches are answered."""
        calls: set[asyncio.Task[None]] = set()
        try:
            while self._waiting or calls:
                while self._waiting and len(calls) < MAX_IN_FLIGHT:
                    request = self._fill()
                    if request is not None:
                        call = self._loop.create_task(self._call(server, request))
                        call.add_done_callback(lambda _: self._wake.set())
                        calls.add(call)
                self._wake.clear()
                if calls:
                    await self._wake.wait()
                failed = [call for call in calls if call.done() and call.exception()]
                if failed:
                    await asyncio.wait(calls)  # each batch has its own outcome
                    failed[0].result()
                calls = {call for call in calls if not call.done()}
        finally:
            await end(*calls)

    async def _call(self, server: RemoteServer, request: pb.SubmitStreamRequest) -> None:
        batch = pb.SubmitBatchRequest(specs=request.specs)
        answer = pb.SubmitStreamResponse(number=request.number)
        try:
            response = await server.call(server.client.SubmitBatch, batch, changes=True)
            answer.results.extend(response.results)
        except (Unavailable, OutcomeUnknown, Unauthenticated, PermissionDenied) as error:
            self._broken(exact=not isinstance(error, OutcomeUnknown), number=request.number)
            raise
        except JobQueueError as error:
            answer.error.CopyFrom(error_to_pb(error))
        self._answered(answer)

    async def _write(self, stream: _Stream, reader: asyncio.Task[None]) -> None:
        """Send batches on the stream until it has ended."""
        try:
            while not reader.done():
                if self._closing:
                    await stream.done_writing()
                    await asyncio.wait({reader}, timeout=self._servers.timeout)
                    return
                if self._waiting and len(self._in_flight) < MAX_IN_FLIGHT:
                    request = self._fill()
                    if request is not None:
                        await stream.write(request)
                    continue
                self._wake.clear()
                await self._wake.wait()
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            return  # the reader has the error
        except asyncio.CancelledError:
            if cancel_requested():
                raise
            return  # gRPC raises this after the watchdog has cancelled the stream

    def _fill(self) -> pb.SubmitStreamRequest | None:
        waiting = self._waiting
        batch: list[_Chunk] = []
        items, size = 0, 0
        while waiting:
            chunk = waiting[0]
            if items and (
                items + len(chunk.specs) > BATCH_ITEMS or size + chunk.size > BATCH_BYTES
            ):
                break
            waiting.popleft()
            if chunk.future.done():  # its caller has stopped waiting
                continue
            items += len(chunk.specs)
            size += chunk.size
            chunk.sent = True
            batch.append(chunk)
        if not batch:
            return None
        self._number += 1
        request = pb.SubmitStreamRequest(number=self._number)
        for chunk in batch:
            request.specs.extend(chunk.specs)
        self._in_flight[self._number] = batch
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._servers.timeout, self._watch, self._number)
        return request

    def _watch(self, number: int) -> None:
        """Cancel the stream if batch ``number`` was not answered in time; else watch the oldest."""
        self._watchdog = None
        if number in self._in_flight:
            if self._stream is not None:
                self._stream.cancel()
        elif self._in_flight:
            oldest = next(iter(self._in_flight))
            self._watchdog = self._loop.call_later(self._servers.timeout, self._watch, oldest)

    async def _read(self, stream: _Stream) -> None:
        """Process the server's answers. Raise an error when the stream has ended."""
        try:
            while True:
                response = await stream.read()
                if not isinstance(response, pb.SubmitStreamResponse):  # EOF
                    if self._closing:
                        raise Unavailable("the server is stopping")
                    raise OutcomeUnknown("the server ended the stream")
                if response.closing:
                    self._closing = True
                    self._wake.set()
                else:
                    self._answered(response)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, sent=True) from None
        except asyncio.CancelledError:
            if cancel_requested():
                raise
            # gRPC raises this after the watchdog has cancelled the stream.
            raise OutcomeUnknown("the server did not answer in time") from None

    def _answered(self, response: pb.SubmitStreamResponse) -> None:
        batch = self._in_flight.pop(response.number, None)
        if batch is None:
            return
        if self._waiting:
            self._wake.set()
        if response.HasField("error"):
            for chunk in batch:
                chunk.fail(error_from_pb(response.error))
            return
        results = [result_from_pb(result) for result in response.results]
        start = 0
        for chunk in batch:
            stop = start + len(chunk.specs)
            if stop > len(results):
                chunk.fail(OutcomeUnknown("the server's answer is incomplete"))
            elif not chunk.future.done():
                chunk.future.set_result(results[start:stop])
            start = stop


def _again(error: JobQueueError) -> JobQueueError:
    """Return a copy of an error for another caller, because an exception should be raised once."""
    return error_from_pb(error_to_pb(error))


def _of_all(answers: Sequence[list[SubmitResult] | BaseException]) -> BaseException:
    """Return the error to raise when some parts of one caller's batch failed."""
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    if len(errors) < len(answers) and isinstance(errors[0], Unavailable):
        return OutcomeUnknown("a part of the batch was submitted, another part was not")
    for error in errors:
        if isinstance(error, OutcomeUnknown):
            return error
    return errors[0]
