"""Implement WorkerService, the gRPC service for workers.

A worker connects by a stream with credits, or fetches jobs by unary calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from jobqueue.access import audit
from jobqueue.access.callers import current_caller
from jobqueue.api.grpc.calls import Calls, end, server_stopping, unary
from jobqueue.api.grpc.channel import BATCH_BYTES, CLIENT_RECEIVE_BYTES
from jobqueue.api.grpc.client_servicer import check_wait
from jobqueue.api.grpc.codec import check_incarnation, new_info_from_pb
from jobqueue.api.grpc.messages import weight
from jobqueue.api.grpc.outgoing import Outgoing
from jobqueue.api.grpc.registrations import Heartbeats, Registration, Registrations
from jobqueue.api.grpc.work_codec import assignment_to_pb, pulse_to_pb, report_from_pb
from jobqueue.api.grpc.work_stream import Stream, WorkStream
from jobqueue.core.api import AttendanceApi, DispatchApi, Inbox
from jobqueue.core.errors import Conflict, InvalidArgument, NotFound
from jobqueue.core.job import Assignment, WorkerInfo, WorkerStatus
from jobqueue.core.texts import MAX_WORKER_ID_LENGTH, check_printable
from jobqueue.core.waiting import AnswerRoom, answer_room, is_set_within
from jobqueue.pb.jq.v1 import worker_pb2 as pb
from jobqueue.pb.jq.v1 import worker_pb2_grpc as rpc
from jobqueue.wire import WORKER_STATUSES

MAX_FETCH_WAIT = 30.0
HELLO_TIMEOUT = 10.0
_MOST_BYTES = weight(CLIENT_RECEIVE_BYTES)  # of the jobs in an answer with several jobs
# A worker without a stream counts as disconnected after two default heartbeat intervals of silence.
_SILENT_AFTER = 10.0
_FILL_UP = 0.05  # seconds that a fetch waits for the next claim if the last claim was incomplete


class WorkerBackend(DispatchApi, AttendanceApi, Protocol):
    """Combines the APIs of a backend that workers use."""


class WorkerServicer(rpc.WorkerServiceServicer):
    """Implements jq.v1.WorkerService; the proto file documents its methods."""

    def __init__(
        self,
        backend: WorkerBackend,
        calls: Calls,
        registrations: Registrations,
        welcome: pb.Welcome,
        job_room: int,
    ) -> None:
        """Serve workers of ``backend``.

        ``job_room`` is the number of bytes to count for a fetched job before its size is known.
        """
        self._backend = backend
        self._registrations = registrations
        self._welcome = welcome
        self._job_room = job_room
        self._heartbeats = Heartbeats(calls)
        self.calls = calls

    @unary
    async def Connect(self, stream: Stream) -> None:  # type: ignore[override]  # no generator
        await stream.open()
        with audit.change("worker.connect") as told:
            info = await self.calls.until_stopped(_hello(stream))
            told.object = info.id
            async with self._registrations.changing(info.id):
                outgoing = Outgoing()
                outgoing.welcome(self._welcome)
                registration = await self._register(info, outgoing)
                served = WorkStream(registration, outgoing, self.calls, self._heartbeats)
                self._registrations.put(registration, served)
        await served.serve(stream)

    @unary
    async def Register(self, request: pb.RegisterRequest) -> pb.RegisterResponse:
        info = new_info_from_pb(request.worker, current_caller().name)
        async with self._registrations.changing(info.id):
            buffer = FetchBuffer(self._job_room)
            registration = await self._register(info, buffer)
            self._registrations.put(registration, Fetcher(registration, buffer))
        return pb.RegisterResponse(server_version=self._welcome.server_version)

    async def _register(self, info: WorkerInfo, inbox: Inbox) -> Registration:
        """Register a worker with the backend, and end its earlier registration with this server.

        An earlier registration of another caller ends only after the store has accepted this
        caller as the owner of the worker's id.
        """
        own = self._registrations.allows(info.id, info.owner)
        if own:
            await self._registrations.vacate(info.id)
        link = await self._backend.connect(info, inbox)
        if not own:
            await self._registrations.vacate(info.id)
        return Registration(info, link)

    @unary
    async def Fetch(self, request: pb.FetchRequest) -> pb.FetchResponse:
        registration = await self._need(request)
        fetcher = registration.transport
        if not isinstance(fetcher, Fetcher):
            raise Conflict(f"worker {request.worker_id!r} has a stream and must not fetch")
        most = registration.info.concurrency
        if not 1 <= request.limit <= most:
            raise InvalidArgument("limit", f"must be from 1 to the worker's concurrency ({most})")
        wait = check_wait(request.wait_seconds, MAX_FETCH_WAIT)
        if self.calls.stopping:  # the worker does not stop, and looks for another server
            fetcher.buffer.moved()
            raise server_stopping()
        jobs: list[Assignment] | None = None
        try:
            room = answer_room.get()
            jobs = await self.calls.until_stopped(fetcher.fetch(request.limit, wait, room))
        finally:
            if jobs is None:  # the caller has left: hand back the jobs assigned to its fetch
                await asyncio.shield(self.calls.own(fetcher.retire()))
        return pb.FetchResponse(
            assignments=[assignment_to_pb(job) for job in jobs],
            status=WORKER_STATUSES.to_pb[fetcher.buffer.status],
        )

    @unary
    async def Report(self, request: pb.ReportRequest) -> pb.ReportResponse:
        registration = await self._need(request)
        reports = [report_from_pb(report) for report in request.reports]
        return pb.ReportResponse(accepted=await registration.link.report(reports))

    async def _need(self, request: pb.FetchRequest | pb.ReportRequest) -> Registration:
        worker_id, owner = request.worker_id, current_caller().name
        # Before an error shows the id.
        check_printable("worker_id", worker_id, MAX_WORKER_ID_LENGTH)
        incarnation = check_incarnation(request.incarnation)
        if not self._registrations.allows(worker_id, owner):
            # The registration may belong to an owner whose worker has left. An empty heartbeat
            # reads the store, which refuses the heartbeat to every caller but the owner.
            tell = partial(self._backend.pulse, worker_id, incarnation, owner=owner)
            await self._heartbeats.pulse(pb.Beat(incomplete=True), tell)
        return self._registrations.need(worker_id, incarnation, owner)

    @unary
    async def Heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        incarnation = check_incarnation(request.incarnation)
        owner = current_caller().name
        registration = self._registrations.find(request.worker_id, incarnation, owner)
        if registration is None:  # another server's worker
            tell = partial(self._backend.pulse, request.worker_id, incarnation, owner=owner)
            return pb.HeartbeatResponse(
                pulse=pulse_to_pb(await self._heartbeats.pulse(request, tell))
            )
        pulse = await self._heartbeats.pulse(request, registration.link.pulse)
        fetcher = registration.transport
        if isinstance(fetcher, Fetcher) and pulse.known:
            fetcher.buffer.set_status(pulse.status)
        return pb.HeartbeatResponse(pulse=pulse_to_pb(pulse))

    @unary
    async def Deregister(self, request: pb.DeregisterRequest) -> pb.DeregisterResponse:
        check_incarnation(request.incarnation)
        async with self._registrations.changing(request.worker_id):
            owner = current_caller().name
            registration = self._registrations.find(request.worker_id, request.incarnation, owner)
            if registration is None:  # another server's worker, or a worker that has left
                await self._backend.leave(request.worker_id, request.incarnation, owner=owner)
            else:
                await registration.transport.retire()
                await registration.link.close()
                self._registrations.remove(registration)
        return pb.DeregisterResponse()

    @unary
    async def MissingQueues(self, request: pb.MissingQueuesRequest) -> pb.MissingQueuesResponse:
        missing = await self._backend.missing_queues(list(request.names))
        return pb.MissingQueuesResponse(missing=missing)


async def _hello(stream: Stream) -> WorkerInfo:
    try:
        async with asyncio.timeout(HELLO_TIMEOUT):
            message = await stream.read()
    except TimeoutError:
        raise InvalidArgument("hello", f"did not arrive within {HELLO_TIMEOUT:g} s") from None
    if message is None or not message.HasField("hello"):
        raise InvalidArgument("hello", "must be the first message")
    if message.reports or message.slots or message.drain or message.HasField("beat"):
        raise InvalidArgument("hello", "must be alone in the first message")
    return new_info_from_pb(message.hello.worker, current_caller().name)


class FetchBuffer:
    """An inbox that stores jobs until the worker fetches them.

    Cancels reach the worker with the answers to its heartbeats. A job is claimed for a fetch only
    while the memory limit has room for the job, so every claimed job fits into the answer.
    """

    def __init__(self, job_room: int) -> None:
        """Create an empty buffer. ``job_room`` is the bytes to count for a job of unknown size."""
        self.status = WorkerStatus.ONLINE
        self.elsewhere = False
        self._job_room = job_room
        self._room: AnswerRoom | None = None  # of the answer to the fetch under way
        # Called when the memory limit refuses a job.
        self.lacks_room: Callable[[], None] = lambda: None
        self._jobs: list[Assignment] = []
        self._bytes = 0
        self._came = 0  # jobs that the claim under way has assigned
        self._cut = False  # the memory limit kept the claim below the free slots
        self._goes_on = False  # the next claim may assign more jobs
        self._changed = asyncio.Event()

    def begin(self, room: AnswerRoom | None) -> None:
        """Begin a fetch. ``room`` counts the bytes of its answer."""
        self._room = room
        self._bytes = 0
        self._goes_on = False

    def reserve(self, slots: int) -> int:
        given = 0
        while given < slots and self._has_room():
            given += 1
        self._cut = given < slots
        return given

    def _has_room(self) -> bool:
        room = self._room
        if room is None:
            return True
        if room.taken and room.taken + self._job_room > _MOST_BYTES:
            return False
        if room.add(self._job_room):
            return True
        self.lacks_room()
        return False

    def release(self, slots: int) -> None:
        if self._room is not None:
            self._room.change(self._room.taken - slots * self._job_room)
        self._goes_on = self._cut and self._came == slots
        self._came = 0
        if self._jobs:  # without jobs, a fetch continues to wait
            self._changed.set()

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        self._jobs.extend(assignments)
        self._came = len(assignments)
        size = sum([len(one.payload) for one in assignments])
        self._bytes += size
        if self._room is not None:
            self._room.change(self._room.taken + weight(size))
        self._changed.set()

    def cancel(self, leases: Sequence[int]) -> None:
        gone = set(leases)
        self._jobs = [job for job in self._jobs if job.lease not in gone]

    def set_status(self, status: WorkerStatus) -> None:
        self.status = status
        self._changed.set()  # ends a fetch that waits

    def holds(self) -> None:
        return  # only the worker's heartbeats list its leases

    def moved(self) -> None:
        self.elsewhere = True
        self._changed.set()

    def __len__(self) -> int:
        return len(self._jobs)

    def take(self) -> list[Assignment]:
        """Remove and return all jobs in the buffer."""
        jobs, self._jobs = self._jobs, []
        return jobs

    async def wait(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a job or a change of the worker's status."""
        self._changed.clear()
        if self._jobs or self.elsewhere or self.status is not WorkerStatus.ONLINE:
            return
        await is_set_within(self._changed, seconds)

    async def fill_up(self, limit: int) -> None:
        """Wait for further claims until ``limit`` jobs are here or no claim can assign more."""
        while self._goes_on and len(self) < limit and self._bytes < BATCH_BYTES:
            self._goes_on = False
            self._changed.clear()
            await is_set_within(self._changed, _FILL_UP)


class Fetcher:
    """The transport of a worker that fetches jobs by unary calls.

    Such a worker has free slots only while a fetch is under way.
    """

    def __init__(self, registration: Registration, buffer: FetchBuffer) -> None:
        self._registration = registration
        self._link = registration.link
        self.buffer = buffer
        self._one_at_a_time = asyncio.Lock()
        self._room: AnswerRoom | None = None
        self._offering: asyncio.Task[None] | None = None
        buffer.lacks_room = self._lacks_room

    @property
    def live(self) -> bool:
        return self._one_at_a_time.locked()

    def connected(self, silent_for: float) -> bool:
        return not self.buffer.elsewhere and silent_for < _SILENT_AFTER

    async def fetch(
        self, limit: int, wait: float, room: AnswerRoom | None = None
    ) -> list[Assignment]:
        """Wait up to ``wait`` seconds for jobs, and return at most ``limit`` jobs.

        ``room`` counts and limits the bytes of the answer.
        """
        async with self._one_at_a_time:
            self._room = room
            self.buffer.begin(room)
            try:
                if self.buffer.status is WorkerStatus.ONLINE and limit > len(self.buffer):
                    self._link.grant(limit - len(self.buffer))
                await self.buffer.wait(wait)
                await self.buffer.fill_up(limit)
            finally:
                self._room = None
                if self._offering is not None:
                    await end(self._offering)
                    self._offering = None
            await self._link.drain()
            if self.buffer.elsewhere:
                worker_id = self._registration.info.id
                raise NotFound(
                    f"worker {worker_id!r} is registered with another server; register it"
                )
            return self.buffer.take()

    def _lacks_room(self) -> None:
        if self._room is not None and self._offering is None:
            self._offering = asyncio.create_task(self._offer_again(self._room))

    async def _offer_again(self, room: AnswerRoom) -> None:
        await room.until_room()
        self._offering = None
        self._link.grant(0)

    async def retire(self) -> None:
        await self._registration.withdraw()
        await self._registration.hand_back(self.buffer.take())
