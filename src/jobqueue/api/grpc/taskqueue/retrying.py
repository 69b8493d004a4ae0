"""The retry profile: what is tried again, how often, and after which pauses."""

from __future__ import annotations

import random
from collections.abc import Iterator

import grpc

from jobqueue.api.grpc.taskqueue.statuses import STATUS
from jobqueue.core.errors import Code

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
    """Whether the same call may succeed later; an error's code is judged by its status."""
    return (STATUS[code] if isinstance(code, Code) else code) in RETRYABLE


def longest_delay(retry: int) -> float:
    """Before that retry, counted from 0."""
    return min(FIRST_DELAY * FACTOR**retry, LONGEST_DELAY)


def delays(rng: random.Random) -> Iterator[float]:
    """The pauses before each retry, with full jitter; then there are no more retries."""
    for retry in range(ATTEMPTS - 1):
        yield rng.uniform(0.0, longest_delay(retry))
