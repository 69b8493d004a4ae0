"""Check the fields of requests against their limits. Each error names the field."""

from __future__ import annotations

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.texts import (
    MAX_KEY_LENGTH,
    MAX_TYPE_LENGTH,
    MAX_WORKER_ID_LENGTH,
    check_labels,
    check_printable,
)
from jobqueue.taskqueue.components.model import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, MAX_UINT32, Spec

MAX_REASON_LENGTH = 1_000
MAX_OFFSET_DIGITS = 18


def check_spec(spec: Spec) -> None:
    """Raise InvalidArgument unless every field of the job's spec is within its limits."""
    check_printable("spec.job_type", spec.job_type, MAX_TYPE_LENGTH)
    _check_uint32("spec.work_duration_ms", spec.work_duration_ms)
    _check_uint32("spec.payload_size_bytes", spec.payload_size_bytes)
    check_labels("spec.labels", spec.labels, check_printable)


def _check_uint32(field: str, number: int) -> None:
    if not 0 <= number <= MAX_UINT32:
        raise InvalidArgument(field, f"must be 0 to {MAX_UINT32}, got {number}")


def check_key(key: str) -> None:
    """Raise InvalidArgument if the key is too long or has unprintable characters.

    An empty key is allowed and means that the submit has no key.
    """
    if key:
        check_printable("client_request_id", key, MAX_KEY_LENGTH)


def check_reason(reason: str) -> None:
    """Raise InvalidArgument if the reason of a cancel is too long."""
    if len(reason) > MAX_REASON_LENGTH:
        raise InvalidArgument("reason", f"must have at most {MAX_REASON_LENGTH} characters")


def check_worker_id(worker_id: str) -> None:
    """Raise InvalidArgument if the worker id is empty, too long or not printable."""
    check_printable("worker_id", worker_id, MAX_WORKER_ID_LENGTH)


def page_size(asked: int) -> int:
    """Return the size of a page for the size that a caller asked for.

    0 means the default size. A size above the maximum is reduced to the maximum.
    """
    if asked < 0:
        raise InvalidArgument("page.page_size", f"must be 0 to {MAX_PAGE_SIZE}, got {asked}")
    return min(asked, MAX_PAGE_SIZE) if asked else DEFAULT_PAGE_SIZE


def page_offset(token: str) -> int:
    """Return the offset that a page token contains as decimal digits. An empty token means 0."""
    if not token:
        return 0
    if not (token.isascii() and token.isdigit()) or len(token) > MAX_OFFSET_DIGITS:
        raise InvalidArgument("page.page_token", f"{token[:40]!r} is not a non-negative integer")
    return int(token)
