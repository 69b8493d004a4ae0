"""The server's side of a submit stream: several batches in flight, answers as they come."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from jobqueue.access.limits import Submit
from jobqueue.api.grpc.calls import Calls, end, server_stopping
from jobqueue.api.grpc.codec.jobs import result_to_pb, spec_from_pb
from jobqueue.api.grpc.duplex import Duplex, Packed
from jobqueue.api.grpc.errors import error_to_pb
from jobqueue.core.errors import Internal, JobQueueError
from jobqueue.core.waiting import in_turns
from jobqueue.pb.jq.v1 import client_pb2 as pb

log = logging.getLogger("jobqueue.grpc")

MAX_IN_FLIGHT = 8
GOODBYE = 1.0  # seconds that a client gets to end its side
Stream = Duplex[pb.SubmitStreamRequest, pb.SubmitStreamResponse]


async def submit_stream(submit: Submit, stream: Stream, calls: Calls) -> None:
    """Serve one stream to its end.

    When the server stops, it asks the client to end its side and answers what still comes. A
    client that does not is cut off, but every batch that was begun is answered before the stream
    ends: what the client got no answer to by then did not happen.
    """
    await stream.open()
    session = _Session(submit, stream)
    reader = asyncio.create_task(session.read())
    writer = asyncio.create_task(session.write())
    try:
        either: set[asyncio.Future[Any]] = {reader, writer, calls.stop_signal()}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        cut = False
        if calls.stopping and not reader.done() and not writer.done():
            session.say_goodbye()
            await asyncio.wait(
                {reader, writer}, timeout=GOODBYE, return_when=asyncio.FIRST_COMPLETED
            )
            cut = reader.cancel()
        if not writer.done():
            if not cut:
                reader.result()
            session.finish()
        await writer
        if cut:
            raise server_stopping()
    finally:
        await end(reader, writer, *session.running)


class _Session:
    def __init__(self, submit: Submit, stream: Stream) -> None:
        self._write_jobs = submit
        self._stream = stream
        self._places = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._answers: deque[Packed] = deque()
        self._goodbye: pb.SubmitStreamResponse | None = None
        self._wake = asyncio.Event()
        self._finishing = False
        self.running: set[asyncio.Task[None]] = set()

    def say_goodbye(self) -> None:
        """Ask the client to send no more."""
        self._goodbye = pb.SubmitStreamResponse(closing=True)
        self._wake.set()

    def finish(self) -> None:
        """Nothing more will be read: end when all is answered."""
        self._finishing = True
        self._wake.set()

    async def read(self) -> None:
        """Begin a batch for every message, as long as there are places."""
        while True:
            await self._places.acquire()
            message = await self._stream.read()
            if message is None:
                return
            task = asyncio.create_task(self._submit(message, self._stream.keep()))
            self.running.add(task)
            task.add_done_callback(self._done)
            del message, task  # the next one may be long in coming

    def _done(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        self._wake.set()

    async def _submit(self, message: pb.SubmitStreamRequest, kept: int) -> None:
        answer = pb.SubmitStreamResponse(number=message.number)
        taken = await self._stream.room_for(len(message.specs))
        try:
            results = await self._write_jobs(await in_turns(spec_from_pb, message.specs))
            answer.results.extend(await in_turns(result_to_pb, results))
        except JobQueueError as error:
            answer.error.CopyFrom(error_to_pb(error))
        except Exception:
            log.exception("a batch of a submit stream failed unexpectedly")
            failure = Internal("internal error; the server's log has the details")
            answer.error.CopyFrom(error_to_pb(failure))
        self._stream.forget(kept)
        self._answers.append(self._stream.pack(answer, taken))
        self._wake.set()

    async def write(self) -> None:
        """Send answers in the order in which they become ready."""
        while True:
            while self._answers:
                await self._stream.send(self._answers.popleft())
                # Not before: a client that does not read its answers sends no more batches.
                self._places.release()
            if self._goodbye is not None:
                goodbye, self._goodbye = self._goodbye, None
                await self._stream.write(goodbye)
                continue
            if self._finishing and not self.running:
                return
            self._wake.clear()
            await self._wake.wait()
