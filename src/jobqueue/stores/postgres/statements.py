"""The named statements of ``queries.sql``, and the numbers that stand for names in its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from jobqueue.core.lifecycle import Reason
from jobqueue.stores.named_sql import load_statements
from jobqueue.stores.queue_rows import queue_statements

SQL = load_statements(__package__, queue_statements(lambda n, _: f"${n}"))

# As in the table reason_name, and never changed: rows keep these numbers for ever.
REASON_NUMBERS: dict[Reason, int] = {
    Reason.SUBMITTED: 1,
    Reason.ASSIGNED: 2,
    Reason.STARTED: 3,
    Reason.SUCCEEDED: 4,
    Reason.HANDLER_FAILED: 5,
    Reason.TIMED_OUT: 6,
    Reason.WORKER_LOST: 7,
    Reason.ASSIGNMENT_TIMEOUT: 8,
    Reason.HANDED_BACK: 9,
    Reason.RETRY_DUE: 10,
    Reason.RETRIES_EXHAUSTED: 11,
    Reason.NOT_RETRYABLE: 12,
    Reason.POISON: 13,
    Reason.CANCELLED: 14,
    Reason.TTL_EXPIRED: 15,
    Reason.QUEUE_DELETED: 16,
    Reason.MANUAL_RETRY: 17,
}
REASONS: dict[int, Reason] = {number: reason for reason, number in REASON_NUMBERS.items()}


def text(said: str) -> str | None:
    """Text as PostgreSQL can keep it: it has no NUL, and nothing said is NULL."""
    return said.replace("\0", "\ufffd") or None


T = TypeVar("T")


def array(values: Iterable[int | str]) -> str:
    """Numbers or ids as the text of an array.

    The client library looks at each element of a list in several ways before it writes it; for
    these, joining them is several times cheaper, and the server reads either form as fast.
    """
    return f"{{{','.join(map(str, values))}}}"


def said(values: Sequence[T], silent: T | None = None) -> list[T] | None:
    """A column, or None where no row says anything: nothing is sent, and nothing read."""
    return None if all(value == silent for value in values) else list(values)
