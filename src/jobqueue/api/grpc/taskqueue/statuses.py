"""Errors on this face: the document's table of status codes, and the way back.

It differs from the table of ``jq.v1`` in what the document leaves no code for: an outcome that is
unknown is UNAVAILABLE here, because its clients retry that one with a key, and only with a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import grpc
import grpc.aio

from jobqueue.api.grpc.errors import from_rpc_error
from jobqueue.core.errors import (
    Code,
    DeadlineExceeded,
    InvalidArgument,
    JobQueueError,
    KeyConflict,
    NotFound,
    QueueFull,
)

_INTERNAL = grpc.StatusCode.INTERNAL

STATUS: Mapping[Code, grpc.StatusCode] = {
    Code.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    Code.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Code.KEY_CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    Code.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Code.OUTCOME_UNKNOWN: grpc.StatusCode.UNAVAILABLE,
    Code.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    Code.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Code.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    # No call of this API ends like that, unless somebody made a mistake.
    Code.ALREADY_EXISTS: _INTERNAL,
    Code.CONFLICT: _INTERNAL,
    Code.JOB_FAILED: _INTERNAL,
    Code.INTERNAL: _INTERNAL,
}

# What a server that is not ours says: it sends the status and nothing beside it.
_PLAIN: Mapping[grpc.StatusCode, Callable[[str], JobQueueError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: lambda text: InvalidArgument("request", text),
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: lambda text: KeyConflict(text, ""),
    grpc.StatusCode.RESOURCE_EXHAUSTED: QueueFull,
    grpc.StatusCode.DEADLINE_EXCEEDED: lambda text: DeadlineExceeded("no answer came in time"),
}


def failure_of(error: grpc.aio.AioRpcError, *, sent: bool = False) -> JobQueueError:
    """The error behind a failed call; ``sent`` as in ``errors.from_status``."""
    text = error.details() or ""
    ours = any(key == "jq-code" for key, _ in error.trailing_metadata() or ())
    plain = _PLAIN.get(error.code())
    # gRPC itself says RESOURCE_EXHAUSTED of a message that is too large: that is never retried.
    if ours or plain is None or "larger than max" in text:
        return from_rpc_error(error, sent=sent)
    return plain(text)
