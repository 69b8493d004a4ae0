"""What waits to be sent to a worker: the server's end of a link's inbox."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from jobqueue.api.grpc.channel import BATCH_BYTES
from jobqueue.api.grpc.codec.values import STATUS_TO_PB
from jobqueue.api.grpc.codec.work import assignment_to_pb
from jobqueue.api.grpc.duplex import weight
from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.core.job import Assignment, WorkerStatus
from jobqueue.pb.jq.v1 import worker_pb2 as pb

MAX_UNSENT = 64  # places of answers
_JOB_BYTES = 512  # what an assignment takes beside its payload


class _Part:
    """What may travel in one message: its fields count in a fixed order."""

    __slots__ = ("assignments", "cancelled", "message", "places", "pulse")

    def __init__(self) -> None:
        self.message = pb.ConnectResponse()
        self.assignments: list[Assignment] = []
        # Each once: a client may ask for the same cancel as often as it likes.
        self.cancelled: dict[int, None] = {}
        self.places = 0  # that its answers take
        # Beside the message, which would keep the memory of one that is replaced.
        self.pulse: pb.Pulse | None = None


class Outgoing:
    """Collects while the writer is busy, so that it sends as few messages as possible.

    ``free`` is what the worker has granted minus what it was assigned. Nothing assigned after a
    drain was answered may overtake that answer, so the answer closes its part.

    What asks for an answer takes a place, and keeps it until the answer is sent: a worker that does
    not take its answers is not read any further.
    """

    def __init__(self) -> None:
        self.free = 0
        self._places = asyncio.Semaphore(MAX_UNSENT)
        self._places_sending = 0
        self._parts: deque[_Part] = deque()
        self._wake = asyncio.Event()
        self._sending: list[Assignment] = []
        self._bytes_sending = 0
        self._pulse_bytes = 0  # that count, of the answer to a heartbeat that waits
        self._count: Callable[[int], None] | None = None
        self._finished = False
        self._failure: JobQueueError | None = None

    def counted_by(self, count: Callable[[int], None]) -> None:
        """Tell ``count`` how many bytes are to be sent, and (below 0) how many were."""
        self._count = count

    # -- the inbox, called by the backend ------------------------------------------------------

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Jobs for the worker."""
        self.free -= len(assignments)
        self._last().assignments.extend(assignments)
        self._wake.set()
        if self._count is not None:
            self._count(sum([_JOB_BYTES + len(one.payload) for one in assignments]))

    def cancel(self, leases: Sequence[int]) -> None:
        """Attempts to stop."""
        self._last().cancelled.update(dict.fromkeys(leases))
        self._wake.set()

    def set_status(self, status: WorkerStatus) -> None:
        """What the operator wants."""
        self._last().message.status = STATUS_TO_PB[status]
        self._wake.set()

    def holds(self) -> None:
        """Only the worker's heartbeats tell."""
        return

    def moved(self) -> None:
        """End the stream: the worker is connected elsewhere, or must connect again."""
        self.end(Unavailable("the worker is registered with another server: connect again"))

    # -- the session's answers -----------------------------------------------------------------

    def end(self, error: JobQueueError) -> None:
        """End the stream with an error."""
        self._failure = error
        self._wake.set()

    def welcome(self, welcome: pb.Welcome) -> None:
        """The first answer."""
        self._last().message.welcome.CopyFrom(welcome)
        self._wake.set()

    async def take_places(self, count: int = 1) -> None:
        """Wait until the worker has taken enough of its answers for another one."""
        for _ in range(count):
            await self._places.acquire()

    def ack(self, ack: pb.ReportAck, places: int = 1) -> None:
        """Reports were written, or not; gives the places back when it is sent."""
        part = self._last()
        part.message.acks.append(ack)
        part.places += places
        self._wake.set()

    def drained(self, number: int) -> None:
        """No slot is left that was granted before; gives a place back when it is sent."""
        part = self._last()
        part.message.drained = number
        part.places += 1
        self._wake.set()

    def pulse(self, pulse: pb.Pulse) -> None:
        """The answer to a heartbeat, in place of one that was not sent yet."""
        for part in self._parts:
            part.pulse = None
        self._last().pulse = pulse
        self._wake.set()
        before, self._pulse_bytes = self._pulse_bytes, weight(pulse.ByteSize())
        if self._count is not None and self._pulse_bytes != before:
            self._count(self._pulse_bytes - before)

    def _last(self) -> _Part:
        if not self._parts or self._parts[-1].message.drained:
            self._parts.append(_Part())
        return self._parts[-1]

    # -- the writer ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Nothing more will come: the writer ends when all is sent."""
        self._finished = True
        self._wake.set()

    async def next(self) -> pb.ConnectResponse | None:
        """The next message; None after ``finish``. The one before counts as sent now.

        Raises the error that the stream is to end with.
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
        while not self._parts:
            if self._finished:
                return None
            self._wake.clear()
            await self._wake.wait()
            if self._failure is not None:
                raise self._failure
        part = self._parts[0]
        count, size = 0, 0
        for assignment in part.assignments:
            if count and size + len(assignment.payload) > BATCH_BYTES:
                break
            count, size = count + 1, size + len(assignment.payload)
        self._sending, part.assignments = part.assignments[:count], part.assignments[count:]
        self._bytes_sending = size + count * _JOB_BYTES
        self._places_sending, part.places = part.places, 0
        wire = [assignment_to_pb(assignment) for assignment in self._sending]
        if part.assignments:  # the rest of the part follows what it must not overtake
            first = pb.ConnectResponse(acks=part.message.acks, assignments=wire)
            if part.message.HasField("welcome"):
                first.welcome.CopyFrom(part.message.welcome)
            part.message.ClearField("acks")
            part.message.ClearField("welcome")
            return first
        self._parts.popleft()
        if part.pulse is not None:
            part.message.pulse.CopyFrom(part.pulse)
            self._bytes_sending += self._pulse_bytes
            self._pulse_bytes = 0
        if wire:
            part.message.assignments.extend(wire)
        if part.cancelled:
            part.message.cancelled.extend(part.cancelled)
        return part.message

    def undelivered(self) -> list[Assignment]:
        """Assignments that did not get onto the wire, once; the writer must have ended."""
        left = self._sending
        for part in self._parts:
            left += part.assignments
        self._sending = []
        self._parts.clear()
        return left
