"""WorkerService: the stream with credits, and the unary set on top of the same links."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Protocol

from jobqueue.access import audit
from jobqueue.access.callers import current_caller
from jobqueue.api.grpc.beats import Beats
from jobqueue.api.grpc.calls import Calls, handled, server_stopping
from jobqueue.api.grpc.client_servicer import check_wait
from jobqueue.api.grpc.codec.operations import check_incarnation, new_info_from_pb
from jobqueue.api.grpc.codec.values import STATUS_TO_PB
from jobqueue.api.grpc.codec.work import assignment_to_pb, pulse_to_pb, report_from_pb
from jobqueue.api.grpc.desk import Desk
from jobqueue.api.grpc.outgoing import Outgoing
from jobqueue.api.grpc.seats import Seat, Seats
from jobqueue.api.grpc.work_fetch import Buffer, Fetcher
from jobqueue.api.grpc.work_stream import Stream, WorkStream
from jobqueue.core.api import AttendanceApi, DispatchApi, Inbox
from jobqueue.core.errors import Conflict, InvalidArgument
from jobqueue.core.job import Assignment, WorkerInfo
from jobqueue.core.waiting import answer_room
from jobqueue.pb.jq.v1 import worker_pb2 as pb
from jobqueue.pb.jq.v1 import worker_pb2_grpc as rpc

MAX_FETCH_WAIT = 30.0
HELLO_TIMEOUT = 10.0


class Workplace(DispatchApi, AttendanceApi, Protocol):
    """What this servicer needs of a backend."""


class WorkerServicer(rpc.WorkerServiceServicer):
    """What workers call."""

    def __init__(
        self, backend: Workplace, calls: Calls, welcome: pb.Welcome, job_room: int
    ) -> None:
        """``job_room``: what is taken for a job that is to be fetched, before its size is known."""
        self._backend = backend
        self._welcome = welcome
        self._job_room = job_room
        self._seats = Seats()
        self._beats = Beats(calls)
        self.calls = calls

    @handled
    async def Connect(  # type: ignore[override]  # writes by itself, does not yield
        self, stream: Stream, context: Any
    ) -> None:
        """A worker's stream."""
        await stream.open()
        with audit.change("worker.connect") as told:
            info = await self.calls.until_stopped(_hello(stream))
            told.object = info.id
            async with self._seats.taking(info.id):
                outgoing = Outgoing()
                outgoing.welcome(self._welcome)
                desk = await self._open(info, outgoing)
                line = WorkStream(desk, outgoing, self.calls, self._beats)
                self._seats.put(desk, line)
        await line.serve(stream)

    @handled
    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterResponse:
        """Register a worker that fetches."""
        info = new_info_from_pb(request.worker, current_caller().name)
        async with self._seats.taking(info.id):
            buffer = Buffer(self._job_room)
            desk = await self._open(info, buffer)
            self._seats.put(desk, Fetcher(desk, buffer))
        return pb.RegisterResponse(server_version=self._welcome.server_version)

    def connected(self, worker_id: str) -> bool:
        """Whether a worker is connected: its stream is there, or it has called a moment ago."""
        return self._seats.connected(worker_id)

    def count(self) -> int:
        """How many workers are connected."""
        return self._seats.count()

    async def _open(self, info: WorkerInfo, inbox: Inbox) -> Desk:
        """Register a worker, and end what holds its seat.

        Another caller's link is ended only after the store has let this one take the id.
        """
        own = self._seats.allows(info.id, info.owner)
        if own:
            await self._seats.vacate(info.id)
        desk = await Desk.open(self._backend, info, inbox)
        if not own:
            await self._seats.vacate(info.id)
        return desk

    @handled
    async def Fetch(self, request: pb.FetchRequest, context: Any) -> pb.FetchResponse:
        """Wait for jobs; if the caller goes away, what came goes back."""
        seat = await self._need(request)
        if not isinstance(seat.line, Fetcher):
            raise Conflict(f"worker {request.worker_id!r} gets its jobs on its stream")
        if not 1 <= request.limit <= seat.desk.info.concurrency:
            raise InvalidArgument(
                "limit",
                f"must be from 1 to the worker's concurrency ({seat.desk.info.concurrency})",
            )
        wait = check_wait(request.wait_seconds, MAX_FETCH_WAIT)
        fetcher = seat.line
        if self.calls.stopping:  # it does not stop with the server, and looks for another one
            fetcher.buffer.moved()
            raise server_stopping()
        jobs: list[Assignment] | None = None
        try:
            room = answer_room.get()
            jobs = await self.calls.until_stopped(fetcher.fetch(request.limit, wait, room))
        finally:
            if jobs is None:
                await asyncio.shield(self.calls.own(fetcher.retire()))
        return pb.FetchResponse(
            assignments=[assignment_to_pb(job) for job in jobs],
            status=STATUS_TO_PB[fetcher.buffer.status],
        )

    @handled
    async def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportResponse:
        """Write reports."""
        seat = await self._need(request)
        reports = [report_from_pb(report) for report in request.reports]
        return pb.ReportResponse(accepted=await seat.desk.report(reports))

    async def _need(self, request: pb.FetchRequest | pb.ReportRequest) -> Seat:
        worker_id, owner = request.worker_id, current_caller().name
        incarnation = check_incarnation(request.incarnation)
        if not self._seats.allows(worker_id, owner):
            # The seat may be left over from an owner whose worker is gone. A heartbeat of nothing
            # asks the store whose it is, and is refused to all but its owner.
            tell = partial(self._backend.pulse, worker_id, incarnation, owner=owner)
            await self._beats.pulse(pb.Beat(incomplete=True), tell)
        return self._seats.need(worker_id, incarnation, owner)

    @handled
    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        """Keep leases alive, of workers on a stream as well, and of those of another server."""
        incarnation = check_incarnation(request.incarnation)
        owner = current_caller().name
        seat = self._seats.find(request.worker_id, incarnation, owner)
        if seat is None:
            tell = partial(self._backend.pulse, request.worker_id, incarnation, owner=owner)
            return pb.HeartbeatResponse(pulse=pulse_to_pb(await self._beats.pulse(request, tell)))
        pulse = await self._beats.pulse(request, seat.desk.pulse)
        if isinstance(seat.line, Fetcher) and pulse.known:
            seat.line.buffer.set_status(pulse.status)
        return pb.HeartbeatResponse(pulse=pulse_to_pb(pulse))

    @handled
    async def Deregister(
        self, request: pb.DeregisterRequest, context: Any
    ) -> pb.DeregisterResponse:
        """End a registration; one that is gone already is no error."""
        check_incarnation(request.incarnation)
        async with self._seats.taking(request.worker_id):
            owner = current_caller().name
            seat = self._seats.find(request.worker_id, request.incarnation, owner)
            if seat is None:  # connected to another server, if at all
                await self._backend.leave(request.worker_id, request.incarnation, owner=owner)
            else:
                await seat.line.retire()
                await seat.desk.close()
                self._seats.remove(seat)
        return pb.DeregisterResponse()

    @handled
    async def MissingQueues(
        self, request: pb.MissingQueuesRequest, context: Any
    ) -> pb.MissingQueuesResponse:
        """Which of these queues do not exist."""
        return pb.MissingQueuesResponse(
            missing=await self._backend.missing_queues(list(request.names))
        )


async def _hello(stream: Stream) -> WorkerInfo:
    try:
        async with asyncio.timeout(HELLO_TIMEOUT):
            message = await stream.read()
    except TimeoutError:
        raise InvalidArgument("hello", f"did not come within {HELLO_TIMEOUT:g} s") from None
    if message is None or not message.HasField("hello"):
        raise InvalidArgument("hello", "must be the first message")
    if message.reports or message.slots or message.drain or message.HasField("beat"):
        raise InvalidArgument("hello", "must be alone in the first message")
    return new_info_from_pb(message.hello.worker, current_caller().name)
