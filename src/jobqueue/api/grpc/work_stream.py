"""Implement the server's side of a worker's stream."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from jobqueue.api.grpc.calls import Calls, end, server_stopping
from jobqueue.api.grpc.channel import BATCH_ITEMS
from jobqueue.api.grpc.errors import error_to_pb
from jobqueue.api.grpc.messages import Duplex
from jobqueue.api.grpc.outgoing import Outgoing
from jobqueue.api.grpc.registrations import Heartbeats, Registration
from jobqueue.api.grpc.work_codec import breakers_from_pb, pulse_to_pb, report_from_pb
from jobqueue.core.errors import Conflict, Internal, InvalidArgument, JobQueueError
from jobqueue.core.job import Transition
from jobqueue.pb.jq.v1 import worker_pb2 as pb

log = logging.getLogger("jobqueue.grpc")

_FEW_LEASES = 200  # the bytes of an answer with at most this many leases are not counted

Stream = Duplex[pb.ConnectRequest, pb.ConnectResponse]


class WorkStream:
    """Serves one worker's stream from the welcome until the stream ends.

    The end of the stream does not deregister the worker. The worker keeps its leases until its
    heartbeats stop, and may connect again. The server withdraws the worker's free slots, and hands
    back jobs that were not sent.

    The bytes of jobs that wait to be sent count against the caller's limit. Above the limit the
    server offers no slots of the caller's workers to the scheduler.
    """

    def __init__(
        self, registration: Registration, outgoing: Outgoing, calls: Calls, heartbeats: Heartbeats
    ) -> None:
        self._registration = registration
        self._info = registration.info
        self._link = registration.link
        self._outgoing = outgoing
        self._calls = calls
        self._heartbeats = heartbeats
        self._reports: set[asyncio.Task[None]] = set()
        self._beat: asyncio.Task[None] | None = None
        self._holding_back: asyncio.Task[None] | None = None
        self._draining = False
        self._runner: asyncio.Task[None] | None = None
        self._retirement: asyncio.Task[None] | None = None

    @property
    def live(self) -> bool:
        return self._runner is not None and not self._runner.done()

    def connected(self, silent_for: float) -> bool:
        return self.live

    async def serve(self, stream: Stream) -> None:
        """Serve the stream until the worker or server ends it, or another stream replaces it."""
        self._stream = stream
        self._outgoing.counted_by(self._count)
        self._runner = asyncio.create_task(self._run(stream))
        try:
            await asyncio.wait({self._runner})
            if self._runner.cancelled():
                raise Conflict(f"worker {self._info.id!r} was deregistered, or has connected again")
            self._runner.result()
        finally:
            await self.retire()

    async def retire(self) -> None:
        if self._retirement is None:
            self._retirement = self._calls.own(self._retire())
        await asyncio.shield(self._retirement)

    async def _retire(self) -> None:
        if self._runner is not None:
            await end(self._runner)
        await self._settle_reports()
        if self._beat is not None:
            await end(self._beat)
        self._draining = True  # until the end
        await self._end_hold_back()
        await self._registration.withdraw()
        await self._registration.hand_back(self._outgoing.undelivered())

    async def _run(self, stream: Stream) -> None:
        reader = self._calls.reader(self._read(stream))
        writer = asyncio.create_task(self._write(stream))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and not writer.done():
                if not reader.cancelled():
                    reader.result()
                await self._drain()
                self._outgoing.finish()
            await writer
            if self._calls.stopping:
                raise server_stopping()
        finally:
            await end(reader, writer)

    async def _write(self, stream: Stream) -> None:
        while (message := await self._outgoing.next()) is not None:
            await stream.write(message)

    async def _read(self, stream: Stream) -> None:
        while (message := await stream.read()) is not None:
            await self._take(message, stream)
            del message  # free its memory during the wait for the next message

    async def _take(self, message: pb.ConnectRequest, stream: Stream) -> None:
        if message.HasField("hello"):
            raise InvalidArgument("hello", "is allowed in the first message only")
        if message.HasField("breakers"):
            self._link.set_breakers(breakers_from_pb(message.breakers))
        for batch in message.reports:
            await self._begin_report(batch)
        if self._reports and (kept := stream.keep()):
            written = asyncio.gather(*self._reports, return_exceptions=True)
            written.add_done_callback(partial(_forget, stream, kept))
        if message.slots:
            self._count_free(message.slots, "slots")
            if self._may_have_more():
                self._link.grant(message.slots)
        if message.drain:
            await self._outgoing.take_places()
            await self._drain()
            self._outgoing.free = 0
            self._outgoing.drained(message.drain)
        if message.HasField("beat"):
            if self._beat is not None:  # one heartbeat at a time, because each needs a thread
                await asyncio.wait({self._beat})
            self._beat = asyncio.create_task(self._pulse(message.beat))
            if kept := stream.keep():
                self._beat.add_done_callback(partial(_forget, stream, kept))

    def _count_free(self, slots: int, field: str) -> None:
        if self._outgoing.free + slots > self._info.concurrency:
            raise InvalidArgument(
                field,
                f"free slots would exceed the worker's concurrency of {self._info.concurrency}",
            )
        self._outgoing.free += slots

    def _count(self, amount: int) -> None:
        """Add ``amount``, which may be negative, to the counted bytes that wait to be sent."""
        self._stream.count_unsent(amount)
        if amount > 0:
            self._may_have_more()

    def _may_have_more(self) -> bool:
        """Return True if free slots may be offered to the scheduler now.

        Otherwise start a task that offers them when the caller's limit allows more jobs.
        """
        if self._holding_back is None and not self._draining:
            if self._stream.has_room:
                return True
            self._holding_back = asyncio.create_task(self._hold_back())
        return False

    async def _hold_back(self) -> None:
        await self._registration.withdraw()
        await self._settle_reports()
        await self._registration.withdraw()  # slots that a report has freed meanwhile
        await self._stream.until_room()
        self._holding_back = None
        if self._outgoing.free > 0:
            self._link.grant(self._outgoing.free)

    async def _end_hold_back(self) -> None:
        task, self._holding_back = self._holding_back, None
        if task is not None:
            await end(task)

    async def _drain(self) -> None:
        """Withdraw every free slot, including slots that are not offered at the moment."""
        await self._settle_reports()
        self._draining = True
        await self._end_hold_back()
        await self._link.drain()
        self._draining = False

    async def _settle_reports(self) -> None:
        if self._reports:
            await asyncio.wait(self._reports)

    async def _begin_report(self, batch: pb.ReportBatch) -> None:
        places = 1 + len(batch.reports) // BATCH_ITEMS
        await self._outgoing.take_places(places)
        try:
            reports = [report_from_pb(report) for report in batch.reports]
        except InvalidArgument as error:
            # The stream continues: a newer worker may send kinds of reports that are unknown here.
            ack = pb.ReportAck(number=batch.number, error=error_to_pb(error))
            self._outgoing.ack(ack, places)
            return
        self._count_free(batch.freed, "freed")
        offered = batch.freed if batch.freed and self._may_have_more() else 0
        task = asyncio.create_task(self._report(batch, reports, offered, places))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _report(
        self, batch: pb.ReportBatch, reports: list[Transition], offered: int, places: int
    ) -> None:
        ack = pb.ReportAck(number=batch.number)
        try:
            ack.accepted.extend(await self._link.report(reports, offered))
        except JobQueueError as error:
            ack.error.CopyFrom(error_to_pb(error))
            self._outgoing.free -= batch.freed
        except Exception:
            log.exception(
                "cannot write the reports of worker %s; answering INTERNAL",
                self._info.id,
                extra={"worker_id": self._info.id},
            )
            failure = Internal("internal error; the server's log has the details")
            ack.error.CopyFrom(error_to_pb(failure))
            self._outgoing.free -= batch.freed
        self._outgoing.ack(ack, places)

    async def _pulse(self, beat: pb.Beat) -> None:
        try:
            # A heartbeat on the stream is fresh: the worker's earlier streams had ended before it.
            pulse = await self._heartbeats.pulse(beat, partial(self._link.pulse, fresh=True))
        except InvalidArgument as error:
            self._outgoing.end(error)
        except JobQueueError as error:
            log.warning(
                "cannot record a heartbeat of worker %s: %s; waiting for its next heartbeat",
                self._info.id,
                error,
                extra={"worker_id": self._info.id},
            )
        else:
            if not self._stream.caller_has_room:  # the next answer has the others
                del pulse.lost[_FEW_LEASES:], pulse.cancelled[_FEW_LEASES:]
            self._outgoing.pulse(pulse_to_pb(pulse))


def _forget(stream: Stream, kept: int, _: object) -> None:
    stream.forget(kept)
