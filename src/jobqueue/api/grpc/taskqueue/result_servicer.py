"""ResultInternalService: decode, call, encode."""

from __future__ import annotations

from jobqueue.api.grpc.calls import Calls
from jobqueue.api.grpc.taskqueue import codec
from jobqueue.api.grpc.taskqueue.answering import served
from jobqueue.api.grpc.taskqueue.callers import Call
from jobqueue.core.ids import parse_job_id
from jobqueue.pb import taskqueue_internal_pb2 as pb
from jobqueue.pb import taskqueue_internal_pb2_grpc as pb_grpc
from jobqueue.services.protocols import Results


class ResultServicer(pb_grpc.ResultInternalServiceServicer):
    """What the owner of the outputs is asked."""

    DESCRIPTOR = pb.DESCRIPTOR.services_by_name["ResultInternalService"]

    def __init__(self, results: Results, calls: Calls) -> None:
        self.calls = calls
        self._results = results

    @served
    async def StoreResult(
        self, request: pb.StoreResultRequest, call: Call
    ) -> pb.StoreResultResponse:
        """Keep it, unless there is one."""
        envelope = codec.asked_envelope(request)
        return codec.stored_to_pb(await self._results.store(envelope, request_id=call.request_id))

    @served
    async def GetResult(self, request: pb.GetResultRequest, call: Call) -> pb.GetResultResponse:
        """The envelope kept."""
        return codec.envelope_to_pb(await self._results.get(parse_job_id(request.job_id)))
