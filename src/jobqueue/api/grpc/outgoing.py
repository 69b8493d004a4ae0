"""Collect assignments, answers and other content until they are sent to a worker.

The class ``Outgoing`` is the inbox of a worker that is connected by a stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jobqueue.api.grpc.channel import BATCH_BYTES
from jobqueue.api.grpc.messages import weight
from jobqueue.api.grpc.work_codec import assignment_to_pb
from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.core.job import Assignment, WorkerStatus
from jobqueue.pb.jq.v1 import worker_pb2 as pb
from jobqueue.wire import WORKER_STATUSES

MAX_UNSENT = 64  # most unsent answers; each takes a place
_JOB_BYTES = 512  # bytes of an assignment without its payload


@dataclass(slots=True, eq=False)
class _PendingMessage:
    """Collects content for one message to a worker, which reads the fields in a fixed order."""

    message: pb.ConnectResponse = field(default_factory=pb.ConnectResponse)
    assignments: list[Assignment] = field(default_factory=list)
    # A dict, so that the server sends a repeated cancel only once.
    cancelled: dict[int, None] = field(default_factory=dict)
    places: int = 0  # places that this message's answers have taken
    # Not in ``message``, which would keep the memory of a pulse that a newer pulse replaces.
    pulse: pb.Pulse | None = None


class Outgoing:
    """Collects content for a worker while the writer is busy, and sends few large messages.

    ``free`` is the number of slots that the worker has granted, minus its assigned jobs. The
    worker must receive the answer to a drain before any job that is assigned later. A message does
    not keep the order of its contents, so later jobs go into the next message.

    A request that needs an answer takes a place until the answer is sent. Without a free place the
    server reads no further requests of the worker until the worker reads its answers.
    """

    def __init__(self) -> None:
        self.free = 0
        self._places = asyncio.Semaphore(MAX_UNSENT)
        self._places_sending = 0
        self._pending: deque[_PendingMessage] = deque()
        self._wake = asyncio.Event()
        self._sending: list[Assignment] = []
        self._bytes_sending = 0
        self._pulse_bytes = 0  # counted bytes of the unsent answer to a heartbeat
        self._count: Callable[[int], None] | None = None
        self._finished = False
        self._failure: JobQueueError | None = None

    def counted_by(self, count: Callable[[int], None]) -> None:
        """Call ``count`` with each change of the number of bytes that wait to be sent."""
        self._count = count

    # -- the inbox, called by the backend ------------------------------------------------------

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        self.free -= len(assignments)
        self._last().assignments.extend(assignments)
        self._wake.set()
        if self._count is not None:
            self._count(sum([_JOB_BYTES + len(one.payload) for one in assignments]))

    def cancel(self, leases: Sequence[int]) -> None:
        self._last().cancelled.update(dict.fromkeys(leases))
        self._wake.set()

    def set_status(self, status: WorkerStatus) -> None:
        self._last().message.status = WORKER_STATUSES.to_pb[status]
        self._wake.set()

    def holds(self) -> None:
        return  # only the worker's heartbeats list its leases

    def moved(self) -> None:
        self.end(Unavailable("the worker is registered with another server; connect again"))

    # -- answers, added by the stream ----------------------------------------------------------

    def end(self, error: JobQueueError) -> None:
        """Make ``next`` raise ``error``, which ends the stream."""
        self._failure = error
        self._wake.set()

    def welcome(self, welcome: pb.Welcome) -> None:
        self._last().message.welcome.CopyFrom(welcome)
        self._wake.set()

    async def take_places(self, count: int = 1) -> None:
        """Wait until ``count`` places for answers are free, and take them."""
        for _ in range(count):
            await self._places.acquire()

    def ack(self, ack: pb.ReportAck, places: int = 1) -> None:
        """Add the answer to reports to the last message. Sending it frees ``places`` places."""
        pending = self._last()
        pending.message.acks.append(ack)
        pending.places += places
        self._wake.set()

    def drained(self, number: int) -> None:
        """Add the answer to drain ``number`` to the last message. Sending it frees a place."""
        pending = self._last()
        pending.message.drained = number
        pending.places += 1
        self._wake.set()

    def pulse(self, pulse: pb.Pulse) -> None:
        """Add the answer to a heartbeat to the last message, and drop an older unsent answer."""
        for pending in self._pending:
            pending.pulse = None
        self._last().pulse = pulse
        self._wake.set()
        before, self._pulse_bytes = self._pulse_bytes, weight(pulse.ByteSize())
        if self._count is not None and self._pulse_bytes != before:
            self._count(self._pulse_bytes - before)

    def _last(self) -> _PendingMessage:
        if not self._pending or self._pending[-1].message.drained:
            self._pending.append(_PendingMessage())
        return self._pending[-1]

    # -- the writer ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Let ``next`` return None when all content is sent, because no more content comes."""
        self._finished = True
        self._wake.set()

    async def next(self) -> pb.ConnectResponse | None:
        """Return the next message to send, or None after ``finish`` when all content is sent.

        Call this method when the previous message was sent. Raise the error given to ``end``.
        """
        if self._bytes_sending and self._count is not None:
            self._count(-self._bytes_sending)
        self._bytes_sending = 0
        self._sending = []
        for _ in range(self._places_sending):
            self._places.release()
        self._places_sending = 0
        if self._failure is not None:
            raise self._failure
        while not self._pending:
            if self._finished:
                return None
            self._wake.clear()
            await self._wake.wait()
            if self._failure is not None:
                raise self._failure
        pending = self._pending[0]
        count, size = 0, 0
        for assignment in pending.assignments:
            if count and size + len(assignment.payload) > BATCH_BYTES:
                break
            count, size = count + 1, size + len(assignment.payload)
        self._sending, pending.assignments = (
            pending.assignments[:count],
            pending.assignments[count:],
        )
        self._bytes_sending = size + count * _JOB_BYTES
        self._places_sending, pending.places = pending.places, 0
        wire = [assignment_to_pb(assignment) for assignment in self._sending]
        if pending.assignments:  # send these assignments first, and the remaining content later
            first = pb.ConnectResponse(acks=pending.message.acks, assignments=wire)
            if pending.message.HasField("welcome"):
                first.welcome.CopyFrom(pending.message.welcome)
            pending.message.ClearField("acks")
            pending.message.ClearField("welcome")
            return first
        self._pending.popleft()
        if pending.pulse is not None:
            pending.message.pulse.CopyFrom(pending.pulse)
            self._bytes_sending += self._pulse_bytes
            self._pulse_bytes = 0
        if wire:
            pending.message.assignments.extend(wire)
        if pending.cancelled:
            pending.message.cancelled.extend(pending.cancelled)
        return pending.message

    def undelivered(self) -> list[Assignment]:
        """Remove and return the assignments that were not sent.

        Call it after the writer has ended.
        """
        left = self._sending
        for pending in self._pending:
            left += pending.assignments
        self._sending = []
        self._pending.clear()
        return left
