"""ClientService: decode, call, encode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from jobqueue.access.limits import Limiter
from jobqueue.access.submits import for_callers
from jobqueue.api.grpc.calls import Calls, handled
from jobqueue.api.grpc.codec.jobs import event_to_pb, job_to_pb, result_to_pb, spec_from_pb
from jobqueue.api.grpc.codec.values import STATE_TO_PB, asked_reasons, asked_states
from jobqueue.api.grpc.load import Load
from jobqueue.api.grpc.submit_stream import Stream, submit_stream
from jobqueue.core.api import ClientApi
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.ids import parse_job_id
from jobqueue.core.job import JobQuery, SubmitStatus, older
from jobqueue.core.waiting import JOB, in_turns
from jobqueue.pb.jq.v1 import client_pb2 as pb
from jobqueue.pb.jq.v1 import client_pb2_grpc as rpc
from jobqueue.wire import seconds

MAX_WAIT = 60.0
DEFAULT_PAGE = 20
# The answer must leave before the caller's deadline.
_ANSWER_MARGIN = 0.05


def check_wait(seconds: float, longest: float) -> float:
    """A wait that a client asks for, bounded."""
    if not seconds >= 0:  # NaN, too
        raise InvalidArgument("wait_seconds", f"must be from 0 to {longest:g}")
    return min(seconds, longest)


class ClientServicer(rpc.ClientServiceServicer):
    """What producers of jobs call."""

    def __init__(
        self, backend: ClientApi, calls: Calls, load: Load, limiter: Limiter | None = None
    ) -> None:
        self._backend = backend
        self._load = load
        self._submit = for_callers(backend.submit, limiter)
        self.calls = calls

    @handled
    async def Submit(self, request: pb.SubmitRequest, context: Any) -> pb.SubmitResponse:
        """One job; a refusal is the call's own status."""
        if not request.HasField("spec"):
            raise InvalidArgument("spec", "is missing")
        (result,) = await self._submit([spec_from_pb(request.spec)])
        return pb.SubmitResponse(
            job_id=result.unwrap(), duplicate=result.status is SubmitStatus.DUPLICATE
        )

    @handled
    async def SubmitBatch(
        self, request: pb.SubmitBatchRequest, context: Any
    ) -> pb.SubmitBatchResponse:
        """Many jobs; a refusal is in its own result."""
        results = await self._submit(await in_turns(spec_from_pb, request.specs))
        return pb.SubmitBatchResponse(results=await in_turns(result_to_pb, results))

    @handled
    async def SubmitStream(  # type: ignore[override]  # writes by itself, does not yield
        self, stream: Stream, context: Any
    ) -> None:
        """Numbered batches."""
        with self._load.client():
            await submit_stream(self._submit, stream, self.calls)

    @handled
    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.GetJobResponse:
        """Read a job."""
        job = await self._backend.get(parse_job_id(request.job_id))
        return pb.GetJobResponse(job=job_to_pb(job))

    @handled
    async def WaitJob(self, request: pb.WaitJobRequest, context: Any) -> pb.WaitJobResponse:
        """Wait no longer than the caller does."""
        job_id = parse_job_id(request.job_id)
        wait = check_wait(request.wait_seconds, MAX_WAIT)
        remaining: float | None = context.time_remaining()
        if remaining is not None:
            wait = max(0.0, min(wait, remaining - _ANSWER_MARGIN))
        job = await self.calls.until_stopped(self._wait(job_id, wait))
        return pb.WaitJobResponse(job=job_to_pb(job))

    async def _wait(self, job_id: str, wait: float) -> Any:
        return await self._backend.wait(job_id, wait)

    @handled
    async def CancelJob(self, request: pb.CancelJobRequest, context: Any) -> pb.CancelJobResponse:
        """Cancel a job, or ask for it."""
        answer = await self._backend.cancel(parse_job_id(request.job_id))
        return pb.CancelJobResponse(
            state=STATE_TO_PB[answer.state],
            requested=answer.requested,
            already_terminal=answer.already_terminal,
        )

    @handled
    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:
        """One page, shorter than asked for if its jobs are large."""
        query = JobQuery(
            queue=request.queue if request.HasField("queue") else None,
            states=asked_states(request.states, "states"),
            type=request.type if request.HasField("type") else None,
            limit=request.page_size if request.HasField("page_size") else DEFAULT_PAGE,
            page_token=request.page_token,
            reasons=asked_reasons(request.reasons, "reasons"),
            error=request.error,
            since=seconds(request.since) if request.HasField("since") else None,
            until=seconds(request.until) if request.HasField("until") else None,
        )
        page = await self._backend.list_jobs(query)
        answer = pb.ListJobsResponse(next_page_token=page.next_page_token)
        # Each is copied into the answer in its own turn, too.
        await in_turns(lambda job: answer.jobs.append(job_to_pb(job)), page.jobs, JOB)
        return answer

    @handled
    async def GetHistory(
        self, request: pb.GetHistoryRequest, context: Any
    ) -> pb.GetHistoryResponse:
        """A job's newest transitions."""
        before = request.before_version if request.HasField("before_version") else None
        events = await self._backend.history(parse_job_id(request.job_id), before)
        shown = await in_turns(event_to_pb, events, JOB)
        return pb.GetHistoryResponse(events=shown, older=older(events))

    @handled
    async def WatchJob(  # type: ignore[override]  # writes by itself, does not yield
        self, request: pb.WatchJobRequest, context: Any
    ) -> None:
        """A job's transitions as they happen."""
        job_id = parse_job_id(request.job_id)
        await self.calls.until_stopped(self._watch(job_id, request.after_version, context))

    @handled
    async def GetLoad(self, request: pb.GetLoadRequest, context: Any) -> pb.GetLoadResponse:
        """How busy this server is."""
        return await self._load.tell()

    async def _watch(self, job_id: str, after_version: int, context: Any) -> None:
        events = self._backend.watch(job_id)
        try:
            async for event in events:
                if event.version > after_version:
                    await context.write(pb.WatchJobResponse(event=event_to_pb(event)))
        finally:
            if isinstance(events, AsyncGenerator):
                await asyncio.shield(events.aclose())
