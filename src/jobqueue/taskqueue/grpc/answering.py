"""Handle every call of the five services: check its caller, set its deadline, log its failure."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from jobqueue.access import audit
from jobqueue.access.callers import current_caller, network
from jobqueue.access.rules import GRPC, grpc_rule
from jobqueue.api.grpc.authorizer import address_of
from jobqueue.api.grpc.calls import Calls, object_of
from jobqueue.api.grpc.errors import abort, to_status
from jobqueue.core.errors import (
    Internal,
    InvalidArgument,
    JobQueueError,
    OutcomeUnknown,
    without_trace,
)
from jobqueue.core.waiting import deadline
from jobqueue.taskqueue.components.journal import METHOD
from jobqueue.taskqueue.grpc.callers import Call, CallerRefused, admit, heard
from jobqueue.taskqueue.grpc.errors import STATUS

log = logging.getLogger("jobqueue.taskqueue")

FAILED = "rpc_failed"
REFUSED = "caller_refused"
_LONGEST_ID = 80

Request = TypeVar("Request")
Response = TypeVar("Response")
Part = TypeVar("Part")


class Malformed:
    """Stands for a request that could not be parsed. The caller gets the reason ``why``."""

    def __init__(self, why: str) -> None:
        self.why = why


class Servicer(Generic[Part]):
    """A base class for the methods of one gRPC service, which call one part of the task queue."""

    DESCRIPTOR: ServiceDescriptor

    def __init__(self, part: Part, calls: Calls) -> None:
        self.calls = calls
        self._part = part


def add_to_server(
    servicer: Servicer[Any], server: grpc.aio.Server, *, max_bytes: int | None = None
) -> None:
    """Add every method of a service to the server.

    A request with more than ``max_bytes`` is refused; None means that only gRPC's limit applies.
    """
    # gRPC's generated functions would end a malformed request with UNKNOWN and an exception's text.
    service = servicer.DESCRIPTOR
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, method.name),
            request_deserializer=_parser(GetMessageClass(method.input_type), max_bytes),
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service.full_name, handlers),)
    )
    server.add_registered_method_handlers(service.full_name, handlers)


def _parser(
    message: type[Message], max_bytes: int | None
) -> Callable[[bytes], Message | Malformed]:
    def parse(data: bytes) -> Message | Malformed:
        if max_bytes is not None and len(data) > max_bytes:
            return Malformed(f"has {len(data)} bytes, at most {max_bytes} are allowed")
        try:
            return message.FromString(data)
        except DecodeError:
            return Malformed(f"is not a valid {message.DESCRIPTOR.full_name} message")

    return parse


S = TypeVar("S", bound=Servicer[Any])


def served(
    method: Callable[[S, Request, Call], Awaitable[Response]],
) -> Callable[[S, Request, Any], Coroutine[Any, Any, Response]]:
    """Turn ``method(request, call)`` into a gRPC handler.

    The handler refuses callers that may not call the method, applies the caller's deadline, and
    logs every call that does not end with the status OK.
    """
    name = method.__name__

    @functools.wraps(method)
    async def answer(self: S, request: Request, context: Any) -> Response:
        started = time.perf_counter()
        full_name = f"/{self.DESCRIPTOR.full_name}/{name}"
        METHOD.set(name)  # each call runs in its own task
        call = heard(context)
        if current_caller().name:  # the authorizer has checked the certificate
            call = replace(call, certificate="")
        failure: JobQueueError
        unexpected: Exception | None = None
        task = asyncio.current_task()
        assert task is not None
        self.calls.under_way.add(task)
        try:
            if isinstance(request, Malformed):
                raise InvalidArgument("request", request.why)
            admit(name, request, call)
            call.check()
            line = (
                audit.change(GRPC[full_name], object_of(request))
                if grpc_rule(full_name).changes
                else contextlib.nullcontext()
            )
            with deadline(context.time_remaining()), line:
                response = await method(self, request, call)
        except asyncio.CancelledError:
            if not self.calls.was_cut:
                code = _why_cancelled(context)
                _log_failure(
                    self.calls,
                    code,
                    f"{name}: the caller left, or its deadline passed, before the answer",
                    request,
                    call,
                    started,
                )
                self.calls.ended(full_name, code.name, started)
                raise
            failure = OutcomeUnknown(
                "the service stops and interrupted this call: it may have been carried out"
            )
        except JobQueueError as error:
            failure = without_trace(error)
        except Exception as error:
            unexpected = error
            failure = Internal("internal error; the server's log has the details")
        else:
            context.set_trailing_metadata(self.calls.metadata)
            self.calls.ended(full_name, grpc.StatusCode.OK.name, started)
            return response
        finally:
            self.calls.under_way.discard(task)
        code, text, metadata = to_status(failure, STATUS)
        _log_failure(self.calls, code, text, request, call, started, failure, unexpected)
        del request, unexpected  # gRPC keeps this frame with the error
        self.calls.ended(full_name, code.name, started)
        await abort(context, code, text, (*metadata, *self.calls.metadata))

    return answer


def _why_cancelled(context: Any) -> grpc.StatusCode:
    if context.time_remaining() == 0:
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return grpc.StatusCode.CANCELLED


def _log_failure(
    calls: Calls,
    code: grpc.StatusCode,
    text: str,
    request: object,
    call: Call,
    started: float,
    failure: JobQueueError | None = None,
    unexpected: Exception | None = None,
    address: str = "",
) -> None:
    """Log a failed call. Above a rate, a line stands for several calls of an address."""
    caller = current_caller()
    count = calls.failure_lines.due(network(address or caller.address))
    if not count:
        return
    fields: dict[str, object] = {
        "event": REFUSED if isinstance(failure, CallerRefused) else FAILED,
        "method": METHOD.get(),
        "grpc_code": code.name,
        "caller": caller.name or call.name,
        "latency_ms": round((time.perf_counter() - started) * 1000, 3),
    }
    if count > 1:
        fields["count"] = count
    for field in ("job_id", "worker_id"):
        if given := getattr(request, field, "") or getattr(failure, field, ""):
            fields[field] = given[:_LONGEST_ID]
    if call.request_id:
        fields["request_id"] = call.request_id[:_LONGEST_ID]
    level = logging.ERROR if code is grpc.StatusCode.INTERNAL else logging.WARNING
    log.log(level, "%s", text, extra=fields, exc_info=unexpected)


def log_refused(method: str, status: str, calls: int) -> None:
    """Log a call that the server refused before it read the call's message.

    ``calls`` is the number of calls that the line stands for.
    """
    count = {"count": calls} if calls > 1 else {}
    log.warning(
        "refused %s with %s before it reached the service: too many calls at once, or a list in the"
        " message is too long",
        method,
        status,
        extra={"event": FAILED, "method": method.rpartition("/")[2], "grpc_code": status, **count},
    )


class UnknownMethods(grpc.GenericRpcHandler):
    """Refuses and logs calls of unknown methods. Must be added to the server last."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        method = handler_call_details.method

        async def refuse(requests: object, context: Any) -> None:
            started = time.perf_counter()
            METHOD.set(method[:_LONGEST_ID])
            code, text = (
                grpc.StatusCode.UNIMPLEMENTED,
                f"there is no method {method[:_LONGEST_ID]!r}",
            )
            address = address_of(context.peer())
            _log_failure(
                self._calls, code, text, requests, heard(context), started, address=address
            )
            self._calls.ended("unknown", code.name, started)
            await abort(context, code, text, self._calls.metadata)

        # As a stream, the handler refuses the call without waiting for its first message.
        return grpc.stream_stream_rpc_method_handler(refuse)
