"""Implement ClientService, the gRPC service for programs that submit and read jobs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jobqueue.access.limits import Limiter, Submit, for_callers
from jobqueue.api.grpc.calls import Calls, end, handled, server_stopping, unary
from jobqueue.api.grpc.codec import (
    event_to_pb,
    explanation_to_pb,
    job_query_from_pb,
    job_to_pb,
    result_to_pb,
    spec_from_pb,
)
from jobqueue.api.grpc.errors import error_to_pb
from jobqueue.api.grpc.messages import Duplex, Packed
from jobqueue.core.api import ClientApi, OperatorApi
from jobqueue.core.errors import Internal, InvalidArgument, JobQueueError
from jobqueue.core.ids import parse_job_id
from jobqueue.core.job import SubmitStatus, older
from jobqueue.core.waiting import JOB, in_turns
from jobqueue.pb.jq.v1 import client_pb2 as pb
from jobqueue.pb.jq.v1 import client_pb2_grpc as rpc
from jobqueue.wire import message_fields

log = logging.getLogger("jobqueue.grpc")

MAX_WAIT = 60.0
MAX_IN_FLIGHT = 8  # most unanswered batches of one submit stream
GOODBYE = 1.0  # seconds in which a client must end its submit stream when the server stops
_ANSWER_MARGIN = 0.05  # a wait ends this many seconds before the caller's deadline
_LOAD_FRESH = 1.0  # seconds for which the server repeats one measurement of the store

Stream = Duplex[pb.SubmitStreamRequest, pb.SubmitStreamResponse]


def check_wait(seconds: float, longest: float) -> float:
    """Return the seconds that a client wants to wait, at most ``longest``.

    Raise InvalidArgument for a negative number or NaN.
    """
    if not seconds >= 0:  # NaN, too
        raise InvalidArgument("wait_seconds", f"must be from 0 to {longest:g}")
    return min(seconds, longest)


class ClientServicer(rpc.ClientServiceServicer):
    """Implements jq.v1.ClientService; the proto file documents its methods."""

    def __init__(
        self, backend: ClientApi, calls: Calls, load: Load, limiter: Limiter | None = None
    ) -> None:
        self._backend = backend
        self._load = load
        self._submit = for_callers(backend.submit, limiter)
        self.calls = calls

    @unary
    async def Submit(self, request: pb.SubmitRequest) -> pb.SubmitResponse:
        if not request.HasField("spec"):
            raise InvalidArgument("spec", "is missing")
        (result,) = await self._submit([spec_from_pb(request.spec)])
        return pb.SubmitResponse(
            job_id=result.unwrap(),
            duplicate=result.status is SubmitStatus.DUPLICATE,
            existing=result.status is SubmitStatus.EXISTING,
        )

    @unary
    async def SubmitBatch(self, request: pb.SubmitBatchRequest) -> pb.SubmitBatchResponse:
        results = await self._submit(await in_turns(spec_from_pb, request.specs))
        return pb.SubmitBatchResponse(results=await in_turns(result_to_pb, results))

    @unary
    async def SubmitStream(self, stream: Stream) -> None:  # type: ignore[override]  # no generator
        with self._load.client():
            await submit_stream(self._submit, stream, self.calls)

    @unary
    async def GetJob(self, request: pb.GetJobRequest) -> pb.GetJobResponse:
        job = await self._backend.get(parse_job_id(request.job_id))
        return pb.GetJobResponse(job=job_to_pb(job))

    @handled
    async def WaitJob(self, request: pb.WaitJobRequest, context: Any) -> pb.WaitJobResponse:
        job_id = parse_job_id(request.job_id)
        wait = check_wait(request.wait_seconds, MAX_WAIT)
        remaining: float | None = context.time_remaining()
        if remaining is not None:
            wait = max(0.0, min(wait, remaining - _ANSWER_MARGIN))
        job = await self.calls.until_stopped(self._backend.wait(job_id, wait))
        return pb.WaitJobResponse(job=job_to_pb(job))

    @unary
    async def CancelJob(self, request: pb.CancelJobRequest) -> pb.CancelJobResponse:
        answer = await self._backend.cancel(parse_job_id(request.job_id))
        return pb.CancelJobResponse(**message_fields(answer, pb.CancelJobResponse))

    @unary
    async def ListJobs(self, request: pb.ListJobsRequest) -> pb.ListJobsResponse:
        page = await self._backend.list_jobs(job_query_from_pb(request))
        answer = pb.ListJobsResponse(next_page_token=page.next_page_token)
        # Copying a job into the answer also needs time, so it happens in the job's turn.
        await in_turns(lambda job: answer.jobs.append(job_to_pb(job)), page.jobs, JOB)
        return answer

    @unary
    async def GetHistory(self, request: pb.GetHistoryRequest) -> pb.GetHistoryResponse:
        before = request.before_version if request.HasField("before_version") else None
        events = await self._backend.history(parse_job_id(request.job_id), before)
        shown = await in_turns(event_to_pb, events, JOB)
        return pb.GetHistoryResponse(events=shown, older=older(events))

    @unary
    async def ExplainJob(self, request: pb.ExplainJobRequest) -> pb.ExplainJobResponse:
        return explanation_to_pb(await self._backend.explain(parse_job_id(request.job_id)))

    @handled
    async def WatchJob(  # type: ignore[override]  # no generator
        self, request: pb.WatchJobRequest, context: Any
    ) -> None:
        job_id = parse_job_id(request.job_id)
        await self.calls.until_stopped(self._watch(job_id, request.after_version, context))

    async def _watch(self, job_id: str, after_version: int, context: Any) -> None:
        events = self._backend.watch(job_id)
        try:
            async for event in events:
                if event.version > after_version:
                    await context.write(pb.WatchJobResponse(event=event_to_pb(event)))
        finally:
            if isinstance(events, AsyncGenerator):
                await asyncio.shield(events.aclose())

    @unary
    async def GetLoad(self, request: pb.GetLoadRequest) -> pb.GetLoadResponse:
        return await self._load.tell()


class Load:
    """Measures a server's load: its workers, its submit streams, and the store's response time."""

    def __init__(self, backend: OperatorApi, workers: Callable[[], int]) -> None:
        self._backend = backend
        self._workers = workers
        self._clients = 0
        self._asked = 0.0
        self._seconds = 0.0
        self._ready = True

    @contextmanager
    def client(self) -> Iterator[None]:
        """Count a client while its submit stream is open."""
        self._clients += 1
        try:
            yield
        finally:
            self._clients -= 1

    async def tell(self) -> pb.GetLoadResponse:
        """Return the server's load. Measure the store at most once a second, for all callers."""
        began = time.monotonic()
        if began - self._asked > _LOAD_FRESH:
            self._asked = began
            try:
                self._ready = (await self._backend.health()).ok
            except JobQueueError:
                self._ready = False
            self._seconds = time.monotonic() - began
        return pb.GetLoadResponse(
            workers=self._workers(),
            clients=self._clients,
            store_seconds=self._seconds,
            ready=self._ready,
        )


async def submit_stream(submit: Submit, stream: Stream, calls: Calls) -> None:
    """Serve one submit stream until it ends.

    The server works on several batches at once, and answers each batch when it is done. A stopping
    server tells the client to send no more, and still answers the batches that arrive. After
    ``GOODBYE`` seconds the server stops reading. It ends the stream only when every started batch
    is answered. Therefore a batch without an answer had no effect.
    """
    await stream.open()
    session = _SubmitSession(submit, stream)
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


class _SubmitSession:
    """Reads the batches of one submit stream and writes the answers."""

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
        """Tell the client to send no more batches."""
        self._goodbye = pb.SubmitStreamResponse(closing=True)
        self._wake.set()

    def finish(self) -> None:
        """Let ``write`` return when all batches are answered, because no more batches are read."""
        self._finishing = True
        self._wake.set()

    async def read(self) -> None:
        """Read batches until the client ends its side; start a task for each batch.

        At most ``MAX_IN_FLIGHT`` batches are unanswered at a time.
        """
        while True:
            await self._places.acquire()
            message = await self._stream.read()
            if message is None:
                return
            task = asyncio.create_task(self._submit(message, self._stream.keep()))
            self.running.add(task)
            task.add_done_callback(self._done)
            del message, task  # free their memory during the wait for the next message

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
            log.exception(
                "batch %d of a submit stream failed unexpectedly; answering INTERNAL",
                message.number,
            )
            failure = Internal("internal error; the server's log has the details")
            answer.error.CopyFrom(error_to_pb(failure))
        self._stream.forget(kept)
        self._answers.append(self._stream.pack(answer, taken))
        self._wake.set()

    async def write(self) -> None:
        """Send the answers to batches, in the order in which the answers become ready."""
        while True:
            while self._answers:
                await self._stream.send(self._answers.popleft())
                # After the answer is sent: a client that reads no answers can send no more batches.
                self._places.release()
            if self._goodbye is not None:
                goodbye, self._goodbye = self._goodbye, None
                await self._stream.write(goodbye)
                continue
            if self._finishing and not self.running:
                return
            self._wake.clear()
            await self._wake.wait()
