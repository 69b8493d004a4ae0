"""The public API on the other side of a connection: one attempt for each call."""

from __future__ import annotations

from typing import TypeVar

import grpc.aio

from jobqueue.access.tls import Credentials
from jobqueue.api.grpc.taskqueue import codec
from jobqueue.api.grpc.taskqueue.line import Line
from jobqueue.core.deadline import remaining
from jobqueue.core.errors import DeadlineExceeded
from jobqueue.pb import taskqueue_public_pb2 as pb
from jobqueue.pb import taskqueue_public_pb2_grpc as pb_grpc
from jobqueue.services.model import (
    CANCEL_SECONDS,
    READ_SECONDS,
    SUBMIT_SECONDS,
    Canceled,
    Envelope,
    Listing,
    Page,
    Record,
    Spec,
    Submitted,
)

Request = TypeVar("Request")
Response = TypeVar("Response")


class RemoteTaskQueue:
    """A server of TaskQueuePublicService. Made on the loop that uses it."""

    def __init__(self, target: str, credentials: Credentials | None = None) -> None:
        self._line = Line(target, credentials)
        self._stub = pb_grpc.TaskQueuePublicServiceStub(self._line.channel)

    async def submit(self, spec: Spec, key: str, *, timeout: float = SUBMIT_SECONDS) -> Submitted:
        """Accept a job; with a key, once."""
        request = pb.SubmitJobRequest(
            spec=codec.spec_to_pb(spec),
            client_request_id=codec.text_to_send(key, "client_request_id"),
        )
        return codec.submitted_from_pb(await self._call(self._stub.SubmitJob, request, timeout))

    async def status(self, job_id: str, *, timeout: float = READ_SECONDS) -> Record:
        """The record without its spec, which the public API does not show."""
        request = pb.GetJobStatusRequest(job_id=codec.text_to_send(job_id, "job_id"))
        return codec.record_from_status(await self._call(self._stub.GetJobStatus, request, timeout))

    async def result(self, job_id: str, *, timeout: float = READ_SECONDS) -> Envelope | None:
        """The envelope of a terminal job; None while it is not."""
        request = pb.GetJobResultRequest(job_id=codec.text_to_send(job_id, "job_id"))
        return codec.envelope_from_result(
            await self._call(self._stub.GetJobResult, request, timeout)
        )

    async def cancel(
        self, job_id: str, reason: str, *, timeout: float = CANCEL_SECONDS
    ) -> Canceled:
        """Cancel a queued job, ask for it if it runs."""
        request = pb.CancelJobRequest(
            job_id=codec.text_to_send(job_id, "job_id"),
            reason=codec.text_to_send(reason, "reason"),
        )
        return codec.canceled_from_pb(await self._call(self._stub.CancelJob, request, timeout))

    async def list(self, listing: Listing, *, timeout: float = READ_SECONDS) -> Page:
        """One page."""
        request = codec.public_list_request(listing)
        answer = await self._call(self._stub.ListJobs, request, timeout)
        return codec.page_from_pb(answer)

    async def _call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        timeout: float,
    ) -> Response:
        left = remaining(timeout)
        if left <= 0:
            raise DeadlineExceeded("no time is left for this call")
        return await self._line.call(method, request, timeout=left, metadata=self._line.metadata)

    async def close(self) -> None:
        """Cut off what is still under way."""
        await self._line.close()
