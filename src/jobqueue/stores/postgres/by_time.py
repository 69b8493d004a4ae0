"""Jobs by the time of their creation: first which ones, then all about those of the page."""

from __future__ import annotations

from typing import Any

from jobqueue.core.job import Job, TimeQuery
from jobqueue.core.lifecycle import HELD, TERMINAL, Reason, State
from jobqueue.stores.postgres.reads import job_row
from jobqueue.stores.postgres.statements import REASON_NUMBERS, SQL

# As in the index job_record_time.
_TIME = "floor(r.created_at * 1000)"
_RECORD = "job_record AS r"
_LIVE = "job_live AS l JOIN job_record AS r ON r.seq = l.seq"
_ENDED = "job_ended AS e JOIN job_record AS r ON r.seq = e.seq"
_COLUMNS = SQL["job_columns"].replace("e.result", "NULL::bytea")


async def list_by_time(db: Any, wanted: TimeQuery) -> list[Job]:
    """A page, in one statement: a job that moves meanwhile is in it once."""
    if "\0" in f"{wanted.queue}{wanted.type}":
        return []  # PostgreSQL's text has no NUL, so nothing is called that
    direction = "ASC" if wanted.ascending else "DESC"
    chosen = " UNION ALL ".join(
        f"(SELECT r.seq, {_TIME} AS at, r.id FROM {source}"
        f" WHERE {side}.queue = (SELECT id FROM queues WHERE name = $1) AND r.type = $2{condition}"
        f" ORDER BY {_TIME} {direction}, r.id LIMIT $3::bigint + $4::bigint)"
        for source, side, condition in _parts(wanted)
    )
    sql = f"""
        WITH page AS MATERIALIZED (
            SELECT seq, at, id FROM ({chosen}) AS chosen
            ORDER BY at {direction}, id LIMIT $3::bigint OFFSET $4::bigint
        )
        {_COLUMNS} FROM page JOIN job_record AS r ON r.seq = page.seq
        LEFT JOIN job_live AS l ON l.seq = r.seq LEFT JOIN job_ended AS e ON e.seq = r.seq
        JOIN queues AS q ON q.id = r.queue
        ORDER BY page.at {direction}, page.id
    """
    rows = await db.fetch(sql, wanted.queue, wanted.type, wanted.limit, wanted.offset)
    return [job_row(row) for row in rows]


def _parts(wanted: TimeQuery) -> list[tuple[str, str, str]]:
    """Where to look, whose queue to compare, and for what; no job is found in two of them."""
    if not wanted.states and wanted.cancelled is None:
        return [(_RECORD, "r", "")]
    states = wanted.states or tuple(State)
    parts = []
    live = [state for state in states if state not in TERMINAL]
    if live:
        condition = f" AND l.state IN ({', '.join(str(int(state)) for state in live)})"
        if HELD.issuperset(live):
            condition += " AND l.worker IS NOT NULL"  # of whom there is an index
        parts.append((_LIVE, "l", condition))
    if State.DONE in states:
        parts.append((_ENDED, "e", f" AND e.state = {State.DONE:d}"))
    if State.DEAD_LETTERED in states:
        condition = f" AND e.state = {State.DEAD_LETTERED:d}"
        if wanted.cancelled is not None:
            compare = "=" if wanted.cancelled else "<>"
            condition += f" AND e.reason {compare} {REASON_NUMBERS[Reason.CANCELLED]}"
        parts.append((_ENDED, "e", condition))
    return parts
