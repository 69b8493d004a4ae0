"""Translate errors to gRPC status codes and back, and define when and how calls are retried.

The specification fixes these tables. They differ from the table of ``jq.v1`` for codes that the
specification does not have. An unknown outcome is UNAVAILABLE here. This creates no second job,
because a client retries a submit only if the submit has a key.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

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
    # A call of this API never ends with one of these codes, except after a defect.
    Code.ALREADY_EXISTS: _INTERNAL,
    Code.CONFLICT: _INTERNAL,
    Code.JOB_FAILED: _INTERNAL,
    Code.NOT_UNIQUE: _INTERNAL,
    Code.INTERNAL: _INTERNAL,
}

# The errors for a server of another implementation, which sends a status without ``jq-code``.
_PLAIN: Mapping[grpc.StatusCode, Callable[[str], JobQueueError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: lambda text: InvalidArgument("request", text),
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: lambda text: KeyConflict(text, ""),
    grpc.StatusCode.RESOURCE_EXHAUSTED: QueueFull,
    grpc.StatusCode.DEADLINE_EXCEEDED: lambda text: DeadlineExceeded("no answer came in time"),
}


def failure_of(error: grpc.aio.AioRpcError, *, sent: bool = False) -> JobQueueError:
    """Return the JobQueueError for a failed gRPC call.

    ``sent`` is True if the call changes something; a lost answer is then an OutcomeUnknown.
    """
    text = error.details() or ""
    ours = any(key == "jq-code" for key, _ in error.trailing_metadata() or ())
    plain = _PLAIN.get(error.code())
    # gRPC itself sends RESOURCE_EXHAUSTED for a message that is too large, which is never retried.
    if ours or plain is None or "larger than max" in text:
        return from_rpc_error(error, sent=sent)
    return plain(text)


ATTEMPTS = 4  # the first one included
FIRST_DELAY, FACTOR, LONGEST_DELAY = 0.1, 2.0, 1.0  # seconds

RETRYABLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)


def is_retryable(code: Code | grpc.StatusCode) -> bool:
    """Return True if the same call may succeed later.

    A ``Code`` is first translated to its gRPC status.
    """
    return (STATUS[code] if isinstance(code, Code) else code) in RETRYABLE


def longest_delay(retry: int) -> float:
    """Return the longest pause in seconds before a retry. The first retry is number 0."""
    return min(FIRST_DELAY * FACTOR**retry, LONGEST_DELAY)


def delays(rng: random.Random) -> Iterator[float]:
    """Yield the random pause in seconds before each retry: one pause per allowed retry."""
    for retry in range(ATTEMPTS - 1):
        yield rng.uniform(0.0, longest_delay(retry))
