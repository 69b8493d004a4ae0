"""Convert errors to gRPC statuses and ``jq.v1.Error`` messages, and back.

A failed call returns the status of the table below. Its trailing metadata has ``jq-code`` (the
stable code), and where they apply ``jq-field``, ``jq-job-id``, ``jq-reason`` and ``retry-after``,
percent-encoded. An error inside an answer is a ``jq.v1.Error`` with the same fields. A remote
client rebuilds the server's error from the status or from the message.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NoReturn
from urllib.parse import quote, unquote

import grpc
import grpc.aio

from jobqueue.core.errors import (
    AlreadyExists,
    Code,
    Conflict,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    JobFailed,
    JobQueueError,
    KeyConflict,
    NotFound,
    NotUnique,
    OutcomeUnknown,
    PermissionDenied,
    QueueFull,
    RateLimited,
    Unauthenticated,
    Unavailable,
    UnknownCall,
    Unreachable,
    without_trace,
)
from jobqueue.core.job import bounded
from jobqueue.pb.jq.v1 import types_pb2

STATUS: dict[Code, grpc.StatusCode] = {
    Code.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    Code.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Code.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    Code.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    Code.KEY_CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    Code.NOT_UNIQUE: grpc.StatusCode.ALREADY_EXISTS,
    Code.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    # Not ABORTED: some clients repeat calls with that status, and these calls must not be repeated.
    Code.OUTCOME_UNKNOWN: grpc.StatusCode.UNKNOWN,
    Code.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    Code.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Code.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    Code.JOB_FAILED: grpc.StatusCode.FAILED_PRECONDITION,
    Code.INTERNAL: grpc.StatusCode.INTERNAL,
}

_PLAIN: dict[Code, type[JobQueueError]] = {
    cls.code: cls
    for cls in (
        NotFound,
        AlreadyExists,
        Conflict,
        Unavailable,
        OutcomeUnknown,
        DeadlineExceeded,
        Unauthenticated,
        PermissionDenied,
        Internal,
    )
}
_REFUSED = re.compile(
    r"failed to connect to all addresses; last error: .*"
    r"ipv[46]:(?P<address>\S+): Failed to connect to remote host: (?P<why>[^:]+)$"
)
_HTTP_1 = re.compile(r"ipv[46]:(?P<address>\S+): .*connect an http1\.x server")
Metadata = tuple[tuple[str, str], ...]
_QUOTED = ("field", "job_id", "reason")  # fields of a jq.v1.Error
# Bytes of a status' text. It is sent as metadata, of which clients accept 8 KiB, and each byte may
# take three.
_LONGEST_TEXT = 2048


async def abort(
    context: Any, code: grpc.StatusCode, text: str, metadata: Metadata = ()
) -> NoReturn:
    """End a call with the status ``code``, by raising gRPC's AbortError."""
    try:
        await context.abort(code, text, metadata)
    except grpc.aio.AbortError as error:
        task = asyncio.current_task()
        assert task is not None
        # gRPC stores the error with the call, and the error's traceback refers to the call. Without
        # the traceback the call's memory is free at once, not at the next garbage collection.
        task.add_done_callback(partial(_forget_trace, error))
        raise
    raise AssertionError("abort raises")


def _forget_trace(error: BaseException, _: object) -> None:
    without_trace(error)


def error_to_pb(error: JobQueueError) -> types_pb2.Error:
    """Convert an error to the message that stands for the error inside an answer."""
    message = types_pb2.Error(code=error.code, message=bounded(error.message))
    if isinstance(error, InvalidArgument):
        message.field = error.field
    elif isinstance(error, KeyConflict | NotUnique):
        message.job_id = error.job_id
    elif isinstance(error, QueueFull | RateLimited):
        message.retry_after_seconds = error.retry_after
    elif isinstance(error, JobFailed):
        message.job_id = error.job_id
        message.reason = error.reason
    return message


def error_from_pb(message: types_pb2.Error) -> JobQueueError:
    """Return the server's error, rebuilt from the message in an answer."""
    text = message.message
    try:
        code = Code(message.code)
    except ValueError:
        return Internal(f"the server reports an unknown error code {message.code!r}: {text}")
    if code is Code.INVALID_ARGUMENT:
        return InvalidArgument(message.field, text.removeprefix(f"{message.field}: "))
    if code is Code.KEY_CONFLICT:
        return KeyConflict(text, message.job_id)
    if code is Code.NOT_UNIQUE:
        return NotUnique(text, message.job_id)
    if code is Code.QUEUE_FULL:
        return QueueFull(text, message.retry_after_seconds)
    if code is Code.RATE_LIMITED:
        return RateLimited(text, message.retry_after_seconds)
    if code is Code.JOB_FAILED:
        return JobFailed(message.job_id, message.reason, text.partition("): ")[2])
    return _PLAIN[code](text)


def to_status(
    error: JobQueueError, table: Mapping[Code, grpc.StatusCode] = STATUS
) -> tuple[grpc.StatusCode, str, Metadata]:
    """Return the status, text and trailing metadata of a call that failed with ``error``."""
    wire = error_to_pb(error)
    metadata = [("jq-code", wire.code)]
    for name in _QUOTED:
        if value := getattr(wire, name):
            metadata.append((_key(name), quote(value)))
    if isinstance(error, QueueFull | RateLimited):
        metadata.append(("retry-after", f"{error.retry_after:g}"))
    return table[error.code], bounded(error.message, _LONGEST_TEXT), tuple(metadata)


def from_status(
    status: grpc.StatusCode,
    text: str,
    metadata: Iterable[tuple[str, Any]] | None,
    *,
    sent: bool,
) -> JobQueueError:
    """Rebuild the error of a failed call from its status, text and trailing metadata.

    ``sent`` says that the request may have changed something on the server. In that case a lost
    answer is an OutcomeUnknown.
    """
    trailing = {key: str(value) for key, value in metadata or ()}
    if code := trailing.get("jq-code"):
        quoted = {name: unquote(trailing.get(_key(name), "")) for name in _QUOTED}
        retry_after = _number(trailing.get("retry-after", ""))
        return error_from_pb(
            types_pb2.Error(code=code, message=text, retry_after_seconds=retry_after, **quoted)
        )
    return _from_transport(status, text, sent=sent)


def _key(name: str) -> str:
    return f"jq-{name.replace('_', '-')}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0


def _from_transport(status: grpc.StatusCode, text: str, *, sent: bool) -> JobQueueError:
    """Convert a status that gRPC itself produced to an error."""
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return InvalidArgument("request", f"is too large for the server: {text}")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return UnknownCall(
            f"the server does not know this call; it may have an older version: {text}"
        )
    if status is grpc.StatusCode.UNAUTHENTICATED:
        return Unauthenticated(text or "the server does not know the caller")
    if status is grpc.StatusCode.PERMISSION_DENIED:
        return PermissionDenied(text or "the server refused the caller")
    broken = status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    # gRPC reports this status for a write on a stream that has just broken
    # (https://github.com/grpc/grpc/issues/36066).
    if broken or (status is grpc.StatusCode.INTERNAL and text == "Internal error from Core"):
        if sent and not _was_not_sent(text):
            return OutcomeUnknown(f"the connection broke before the answer arrived: {text}")
        return Unreachable(f"the server cannot be reached: {_plain(text)}")
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        if sent:
            return OutcomeUnknown("the server did not answer in time")
        return DeadlineExceeded("the server did not answer in time")
    return Internal(f"{status.name}: {text}")


def _plain(text: str) -> str:
    """Shorten gRPC's text about a failed connection to the address and the cause."""
    if found := _HTTP_1.search(text):
        return f"{unquote(found['address'])} speaks HTTP, not gRPC; name the server's gRPC port"
    found = _REFUSED.search(text)
    return f"{unquote(found['address'])}: {found['why']}" if found else text


def _was_not_sent(text: str) -> bool:
    """Return True if gRPC's text says that it had no connection for sending the request."""
    lowered = text.lower()
    return "failed to connect" in lowered or "name resolution" in lowered or "dns" in lowered


def from_rpc_error(error: grpc.aio.AioRpcError, *, sent: bool = False) -> JobQueueError:
    """Rebuild the server's error from gRPC's error of a failed asynchronous call."""
    trailing = error.trailing_metadata()
    return from_status(error.code(), error.details() or "", trailing, sent=sent)
