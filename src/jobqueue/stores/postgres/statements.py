"""Load the statements of ``queries.sql``, and define the numbers that rows have for names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jobqueue.core.lifecycle import Reason
from jobqueue.stores.named_sql import load_statements
from jobqueue.stores.queue_rows import queue_statements

_PLACE = re.compile(r"\{(\w+)\}")
_FRAGMENTS = queue_statements(lambda n, _: f"${n}")
_TEXTS = load_statements(__package__, _FRAGMENTS)
# Conditions of claims: queues without limits; the same, and some given queues with limits.
_UNLIMITED = f"NOT {_FRAGMENTS['limited']}"
_WITHIN_LIMITS = f"(NOT {_FRAGMENTS['limited']} OR id = ANY (${{}}::int[]))"


def _filled(name: str, **places: str) -> str:
    """Return a statement whose names in braces are replaced by texts.

    A name in braces is replaced by its text in ``places``, or else by the statement of that name.
    """
    known = {
        "apart": "",
        "batch": "",
        "last": "e.seq, e.version",
        "leaving": "generate_series(f.nxt, f.hi)",
        "cut": "",
        "unlocked": "",
        "alone": "r" if name.startswith("submit") else "",
        "ranges": "",
        "numbers": "",
        "seq": "",
        "t_seq": "",
        "numbered": "",
        "let_through": _UNLIMITED,
        "key_as_planned": "",
        "kind_number": "kind_of(type)",
        "key_returned": "",
        "key_column": "",
        f"jobs_{name}": _TEXTS.get(f"new_{name}", ""),
        **places,
    }
    text = _TEXTS[name]
    while (
        found := _PLACE.sub(lambda place: known.get(place[1], _TEXTS.get(place[1], place[0])), text)
    ) != text:
        text = found
    return text


def _steps(name: str, step: int, rows: str = "u", at: str = "updated_at", **places: str) -> str:
    """Return the form of a statement that writes one row for the same event of many jobs.

    ``step`` is the version of the event.
    """
    first, worker = ("true", "NULL::int") if step == 1 else (f"version = {step}", "worker")
    return _filled(
        name,
        batch="{steps}",
        apart=f" WHERE NOT {first}",
        first=first,
        step=str(step),
        rows=rows,
        at=at,
        worker=worker,
        **places,
    )


SQL = {name: _filled(name) for name in _TEXTS}
SQL["old_batches"] = _filled("old_batches", last="e.hi, 4")
# Forms of the same statements that write rows for many jobs, which the layout must allow.
BATCH: Mapping[str, str] = {
    **{
        name: _steps(name, 1, "r", "created_at")
        for name in ("submit", "submit_wide", "submit_long")
    },
    "assign": _steps("assign", 2),
    "start": _steps("start", 3),
    "start_held": _steps("start_held", 3, "l"),
    "finish": _filled("finish", batch="{ends}", apart=" WHERE NOT first"),
    "leave_ready": _filled("leave_ready", leaving="unnest($1::bigint[])", cut="{pieces}"),
}
SUBMIT_RANGES = {
    name: _filled(
        name,
        ranges="{ranged}",
        alone="o",
        numbers=_TEXTS["drawn"].replace("{new_jobs}", _TEXTS[f"new_{name}"]),
        seq="seq, ",
        t_seq="t.seq, ",
        numbered="OVERRIDING SYSTEM VALUE",
        **{f"jobs_{name}": "d AS t"},
    )
    for name in ("submit", "submit_wide", "submit_long")
}
# Like "leave_ready" for whole ranges, without the ranges that another transaction has locked.
LEAVE_UNLOCKED = _filled("leave_ready", unlocked=" SKIP LOCKED")
# As "claim", where some of the jobs become live rows.
CLAIM_MIXED = _filled("claim", alone="{claimed_alone}")
_ASSIGN_WITHIN = {
    "let_through": _WITHIN_LIMITS.format(8),
    "key_as_planned": "AND (l.queue + 0 <> ALL ($9::int[])"
    " OR l.ckey IS NOT DISTINCT FROM ($10::text::bigint[])[c.n])",
}
# The statements of claims with one more argument: queues with limits that the caller has locked and
# counted (limiting.py). These statements also take jobs of these queues.
WITHIN: Mapping[str, str] = {
    SQL["assign"]: _filled("assign", **_ASSIGN_WITHIN),
    BATCH["assign"]: _steps("assign", 2, **_ASSIGN_WITHIN),
    SQL["claim"]: _filled("claim", let_through=_WITHIN_LIMITS.format(13)),
    CLAIM_MIXED: _filled("claim", alone="{claimed_alone}", let_through=_WITHIN_LIMITS.format(17)),
}
# The forms of the statements for new jobs with a concurrency key.
_WITH_KEY = {
    "kind_number": "kind_of(type, more)",
    "key_returned": ", ckey_of(more) AS ckey",
    "key_column": ", ckey",
}
SUBMIT_KEYED: Mapping[str, str] = {
    SQL["submit_long"]: _filled("submit_long", **_WITH_KEY),
    BATCH["submit_long"]: _steps("submit_long", 1, "r", "created_at", **_WITH_KEY),
}
RENUMBER = [
    _filled("renumber_events", table=table, last=last)
    for table, last in (
        ("job_event", "e.seq, e.version"),
        ("job_steps", "e.hi, e.step"),
        ("job_done", "e.hi, 4"),
    )
]
LAYOUT = 3  # the highest layout (see layout.py) that this version knows
RANGES = 3  # the first layout with ranges and held rows
FEW = 16  # fewer jobs are cheaper as one row for each job

# The same numbers as in the table reason_name. Stored rows have them, so they must not change.
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
    Reason.SUPERSEDED: 18,
}
REASONS: dict[int, Reason] = {number: reason for reason, number in REASON_NUMBERS.items()}


def text(said: str) -> str | None:
    """Return a text in the form for a column: without NUL characters, and None if it is empty."""
    return said.replace("\0", "\ufffd") or None


T = TypeVar("T")


def array(values: Iterable[int | str]) -> str:
    """Return numbers or ids as the text of a PostgreSQL array.

    asyncpg encodes a list several times slower than this function joins it. The server reads both
    forms equally fast.
    """
    return f"{{{','.join(map(str, values))}}}"


def said(values: Sequence[T], silent: T | None = None) -> list[T] | None:
    """Return the values of a column, or None if all values equal ``silent``.

    None is cheaper to send and to read than a list of equal values.
    """
    return None if all(value == silent for value in values) else list(values)


def columns(rows: Any, width: int) -> list[list[Any]]:
    """Return rows as one list for each column, in the form that ``unnest`` takes."""
    found: list[list[Any]] = [[] for _ in range(width)]
    for row in rows:
        for column, value in zip(found, row, strict=True):
            column.append(value)
    return found
