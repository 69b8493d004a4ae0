"""Implement a worker's link by the gRPC stream Connect, with automatic reconnects."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import grpc.aio

from jobqueue.api.grpc.calls import end
from jobqueue.api.grpc.channel import BATCH_BYTES, MIN_RECEIVE_BYTES
from jobqueue.api.grpc.codec import info_to_pb
from jobqueue.api.grpc.errors import error_from_pb, from_rpc_error
from jobqueue.api.grpc.remote.credits import Credits
from jobqueue.api.grpc.remote.server import ServerConnection
from jobqueue.api.grpc.remote.servers import Servers
from jobqueue.api.grpc.work_codec import (
    assignment_from_pb,
    breakers_to_pb,
    heartbeat_to_pb,
    report_to_pb,
)
from jobqueue.core.api import Inbox
from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.errors import (
    Conflict,
    InvalidArgument,
    JobQueueError,
    OutcomeUnknown,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from jobqueue.core.job import Pulse, Transition, WorkerInfo, WorkerStatus
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.waiting import cancel_requested, jittered
from jobqueue.pb.jq.v1 import worker_pb2 as pb
from jobqueue.wire import WORKER_STATUSES

log = logging.getLogger("jobqueue.grpc")

# A refused connection is cheap, so the link finds a server that returns within a second.
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 1.0
_MESSAGE_ROOM = 64 * 1024  # bytes of a message that are not reports
_Stream = grpc.aio.StreamStreamCall[pb.ConnectRequest, pb.ConnectResponse]


@dataclass(slots=True, eq=False)
class _PendingReport:
    """Holds a batch of reports that waits to be sent or answered."""

    batch: pb.ReportBatch
    freed: int
    future: asyncio.Future[list[bool]]
    sent: bool = False
    later: bool = False  # sent during a drain: its freed slots are sent after the drain

    def fail(self, error: JobQueueError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class RemoteLink:
    """A worker's link to a server. The link has one task, and one stream at a time."""

    def __init__(
        self,
        servers: Servers,
        info: WorkerInfo,
        inbox: Inbox,
        closed: Callable[[RemoteLink], None],
    ) -> None:
        self.info = info
        self._servers = servers
        self._server = servers.pick()  # the server of the stream, or the server to try next
        self._hello = pb.ConnectRequest(hello=pb.Hello(worker=info_to_pb(info)))
        self._inbox = inbox
        self._on_closed = closed
        self._loop = asyncio.get_running_loop()
        self._credits = Credits()
        self._queue: deque[_PendingReport] = deque()
        self._unanswered: dict[int, _PendingReport] = {}
        self._drain: tuple[int, asyncio.Future[None]] | None = None
        self._drain_sent = False
        self._number = 0
        self._wake = asyncio.Event()
        self._stream: _Stream | None = None
        self._connected = False
        self._listed = False  # True if the worker's leases were sent on this stream
        self._breakers: Sequence[OpenBreaker] = ()
        self._breakers_sent = True  # False if this stream must still send them
        self._moving = False  # to another server: the stream ends when its reports are answered
        self._closed = False
        self._limit = MIN_RECEIVE_BYTES
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and register the worker. Raise the error if no server accepts the worker."""
        self._begin()
        try:
            await self._opened
        except BaseException:
            await self.abandon()
            raise

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._run(), name=f"link-{self.info.id}")

    # -- calls of the worker -------------------------------------------------------------------

    def move(self) -> None:
        """Reconnect to the process's current server after the reports under way are answered."""
        if self._connected and self._server is not self._servers.pick():
            self._moving = True
            self._wake.set()

    def grant(self, slots: int) -> None:
        self._credits.grant(slots)
        self._wake.set()

    def set_breakers(self, breakers: Sequence[OpenBreaker]) -> None:
        self._breakers, self._breakers_sent = breakers, False
        self._wake.set()

    async def report(self, reports: Sequence[Transition], freed: int = 0) -> list[bool]:
        # A report waits for a connection up to the timeout.
        self._number += 1
        batch = pb.ReportBatch(
            number=self._number, reports=[report_to_pb(report) for report in reports]
        )
        if batch.ByteSize() + _MESSAGE_ROOM > self._limit:
            raise InvalidArgument(
                "reports", f"are too large; the server accepts {self._limit} bytes in one message"
            )
        if self._closed:
            raise Unavailable(f"the link of worker {self.info.id!r} is closed")
        if self._task is not None and self._task.cancelled():
            # ``asyncio.run`` cancels every task at its end. A worker that stops then must report.
            self._begin()
        entry = _PendingReport(batch, freed, self._loop.create_future())
        self._queue.append(entry)
        self._wake.set()
        try:
            async with asyncio.timeout(self._server.timeout):
                return await entry.future
        except TimeoutError:
            if not entry.sent:
                raise Unavailable("the report could not be sent in time") from None
            # The server may have counted the freed slots or not: a new stream begins from zero.
            self._cut()
            raise OutcomeUnknown("the server did not answer the report in time") from None
        finally:
            if not entry.sent and entry in self._queue:
                self._queue.remove(entry)

    def pulse(
        self,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        complete: bool = True,
        fresh: bool = False,
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
    ) -> Pulse:
        # The stream sends the fresh list of leases instead (``_compose``).
        if self._closed:
            raise Unavailable(f"the link of worker {self.info.id!r} is closed")
        request = heartbeat_to_pb(
            self.info.id, self.info.incarnation, leases, begun, complete, progress, overrun
        )
        pulse = self._servers.heartbeat(request, self._server)
        if not pulse.known and not self._connected:
            raise Unavailable(f"worker {self.info.id!r} is not registered; its link reconnects")
        return pulse

    async def drain(self, *, pause: bool = False) -> None:
        self._credits.drain()
        for entry in self._queue:
            entry.freed = 0
        if not self._connected:  # the end of the stream has withdrawn the slots
            self._credits.drained()
            return
        if self._drain is None:
            self._number += 1
            self._drain = (self._number, self._loop.create_future())
            self._drain_sent = False
            self._wake.set()
        try:
            async with asyncio.timeout(self._server.timeout):
                await asyncio.shield(self._drain[1])
        except TimeoutError:
            self._cut()
            self._end_drain()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._servers.call(
                lambda server: server.worker.Deregister,
                pb.DeregisterRequest(worker_id=self.info.id, incarnation=self.info.incarnation),
                first=self._server,
            )
        except JobQueueError as error:
            log.warning(
                "cannot deregister worker %s: %s; the server removes it when its heartbeats stop",
                self.info.id,
                error,
                extra={"worker_id": self.info.id},
            )
        await self.abandon()

    async def abandon(self) -> None:
        """Close the link without deregistering the worker."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            await end(task)
        self._broken()
        while self._queue:
            self._queue.popleft().fail(
                Unavailable(f"the link of worker {self.info.id!r} is closed")
            )
        if not self._opened.done():
            self._opened.cancel()
        self._on_closed(self)

    # -- the stream ----------------------------------------------------------------------------

    async def _run(self) -> None:
        search = self._servers.search(_FIRST_DELAY, _LONGEST_DELAY)
        more = False
        while not self._closed:
            self._server = search.pick()
            try:
                with self._server.lasting() as connection:
                    await self._serve(connection)
            except asyncio.CancelledError:
                # ``asyncio.run`` cancels every task at its end. The worker's stop, which runs then,
                # must not wait for an answer on the stream that ended with this task.
                self._broken()
                raise
            except JobQueueError as error:
                if self._moving and isinstance(error, Unavailable):
                    self._broken()
                    continue
                if self._connected:
                    search.answered()
                more = search.failed(self._server)
                if not self._opened.done():
                    if more and isinstance(error, Unavailable):
                        continue
                    self._opened.set_exception(error)
                    return
                refused = isinstance(error, Conflict | Unauthenticated | PermissionDenied)
                if refused and not self._closed:
                    log.error(  # noqa: TRY400
                        "the server at %s refused worker %s: %s; the worker stops",
                        self._server.target,
                        self.info.id,
                        error,
                        extra={"worker_id": self.info.id},
                    )
                    self._broken()
                    self._inbox.set_status(WorkerStatus.STOPPING)
                    return
                if self._connected and not self._closed:
                    log.warning(
                        "the stream of worker %s to %s broke: %s; reconnecting",
                        self.info.id,
                        self._server.target,
                        error,
                        extra={"worker_id": self.info.id},
                    )
            self._broken()
            # The pause is random so that the workers of a lost server do not reconnect all at once.
            await asyncio.sleep(jittered(search.pause.most))
            if not more:
                search.pause.grow()

    async def _serve(self, connection: ServerConnection) -> None:
        """Open and run one stream until it ends. A stream always ends with an error."""
        tasks: list[asyncio.Task[None]] = []
        try:
            stream = self._stream = connection.worker.Connect(metadata=self._server.metadata)
            await self._greet(stream)
            reader = self._loop.create_task(self._read(stream))
            writer = self._loop.create_task(self._write(stream, reader))
            tasks = [reader, writer]
            # Wait for the reader, too: if the server reads nothing, a write ends long after its
            # stream was cancelled.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
            if self._moving:
                await asyncio.wait({reader}, timeout=self._server.timeout)
                if not reader.done():
                    raise Unavailable("the server did not end the stream in time")
            await reader
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        except grpc.aio.UsageError:
            raise Unavailable(f"the connection to {self._server.target} is closed") from None
        except asyncio.CancelledError:
            if cancel_requested():
                raise
            # gRPC raises this after ``_cut``, if the server has not answered yet.
            raise Unavailable("the stream was cancelled") from None
        finally:
            await end(*tasks)
            self._cut()

    async def _greet(self, stream: _Stream) -> None:
        await self._server.opened(stream)
        try:
            async with asyncio.timeout(self._server.timeout):
                await stream.write(self._hello)
                first = await stream.read()
        except TimeoutError:
            raise Unavailable(
                f"the server at {self._server.target} could not be reached in time"
            ) from None
        except asyncio.InvalidStateError:
            raise Unavailable("the stream broke when it began") from None
        if not isinstance(first, pb.ConnectResponse) or not first.HasField("welcome"):
            raise Unavailable("the server's first message was not a welcome")
        if first.welcome.max_message_bytes:
            self._limit = first.welcome.max_message_bytes
        self._server.met = True
        self._credits.reconnect()
        self._listed = False
        self._breakers_sent = not self._breakers
        self._connected = True
        if not self._opened.done():
            self._opened.set_result(None)
        else:
            log.info(
                "worker %s is connected again, to %s",
                self.info.id,
                self._server.target,
                extra={"worker_id": self.info.id},
            )
        self._take(first)

    async def _write(self, stream: _Stream, reader: asyncio.Task[None]) -> None:
        try:
            while not reader.done():
                if self._moving:
                    await stream.done_writing()
                    return
                request = self._compose()
                if request is not None:
                    await stream.write(request)
                    continue
                self._wake.clear()
                await self._wake.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader has the error
        except asyncio.CancelledError:
            if cancel_requested():
                raise
            return  # ``_cut`` has cancelled the stream

    def _compose(self) -> pb.ConnectRequest | None:
        """Return the next message with all that waits to be sent, or None if nothing waits.

        The first message of a stream has the worker's leases.
        """
        if not self._listed:
            self._listed = True
            leases = self._inbox.holds()
            if leases is not None:
                return pb.ConnectRequest(beat=pb.Beat(leases=leases))
        if not self._breakers_sent:
            self._breakers_sent = True
            return pb.ConnectRequest(breakers=breakers_to_pb(self._breakers))
        if not (self._queue or self._credits.waiting or (self._drain and not self._drain_sent)):
            return None
        request = pb.ConnectRequest()
        size = 0
        while self._queue and (not size or size + self._queue[0].batch.ByteSize() <= BATCH_BYTES):
            entry = self._queue.popleft()
            entry.sent = True
            size += entry.batch.ByteSize()
            if self._credits.draining:
                entry.later = True
            else:
                entry.batch.freed = self._credits.send_freed(entry.freed)
            self._unanswered[entry.batch.number] = entry
            request.reports.append(entry.batch)
        if self._queue:
            return request
        request.slots = self._credits.send()
        if self._drain is not None and not self._drain_sent:
            request.drain = self._drain[0]
            self._drain_sent = True
        return request

    async def _read(self, stream: _Stream) -> None:
        """Process the server's messages. Raise an error when the stream has ended."""
        try:
            while True:
                message = await stream.read()
                if not isinstance(message, pb.ConnectResponse):
                    raise Unavailable("the server ended the stream")
                self._take(message)
        except asyncio.CancelledError:
            if cancel_requested():
                raise
            # gRPC raises this after ``_cut`` has cancelled the stream.
            raise Unavailable("the stream was cancelled") from None

    def _take(self, message: pb.ConnectResponse) -> None:
        for ack in message.acks:
            self._answered(ack)
        if message.assignments:
            worker_id = self.info.id
            jobs = [assignment_from_pb(given, worker_id) for given in message.assignments]
            self._credits.assigned(len(jobs))
            self._inbox.assigned(jobs)
        if message.cancelled:
            self._inbox.cancel(list(message.cancelled))
        if message.status:
            self._inbox.set_status(WORKER_STATUSES.from_pb(message.status))
        if message.drained and self._drain is not None and message.drained == self._drain[0]:
            self._end_drain()

    def _answered(self, ack: pb.ReportAck) -> None:
        entry = self._unanswered.pop(ack.number, None)
        if entry is None:
            return
        if ack.HasField("error"):
            if not entry.later:
                self._credits.not_freed(entry.freed)
            entry.fail(error_from_pb(ack.error))
            return
        if entry.later:
            self.grant(entry.freed)
        if not entry.future.done():
            entry.future.set_result(list(ack.accepted))

    def _end_drain(self) -> None:
        drain, self._drain = self._drain, None
        if drain is not None:
            self._credits.drained()
            if not drain[1].done():
                drain[1].set_result(None)
            self._wake.set()

    def _cut(self) -> None:
        """Cancel the stream. The server then withdraws the worker's slots."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    def _broken(self) -> None:
        """Fail the reports and end the drain that were under way when the stream ended."""
        self._connected = self._moving = False
        unanswered, self._unanswered = self._unanswered, {}
        for entry in unanswered.values():
            if not entry.later:
                self._credits.not_freed(entry.freed)
            entry.fail(OutcomeUnknown("the stream broke before the server answered the report"))
        self._end_drain()
