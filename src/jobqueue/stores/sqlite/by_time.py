"""Jobs by the time of their creation: first which ones, then all about those of the page."""

from __future__ import annotations

import sqlite3

from jobqueue.core.job import Job, TimeQuery
from jobqueue.core.lifecycle import TERMINAL, Reason, State
from jobqueue.stores.sqlite.reads import job_row
from jobqueue.stores.sqlite.statements import SQL

# As in the index rec_time.
_TIME = "CAST(r.created_at * 1000 AS INTEGER)"
_REC = "rec AS r"
# Unfinished jobs are few beside all others, so they are looked up from their side.
_LIVE = "live AS l CROSS JOIN rec AS r ON r.seq = l.seq"
# The plus keeps the index of the queue away: its rows would all have to be read and sorted.
_MINE = "+r.queue = (SELECT id FROM queue WHERE name = :queue) AND r.type = :type"
_COLUMNS = SQL["job_columns"].replace("r.result", "NULL")


def list_by_time(connection: sqlite3.Connection, wanted: TimeQuery) -> list[Job]:
    """A page; what states have to do with it is looked up where each state is kept."""
    order = f"at {'ASC' if wanted.ascending else 'DESC'}, id ASC"
    chosen = " UNION ALL ".join(
        f"SELECT r.seq, {_TIME} AS at, r.id AS id FROM {source} WHERE {_MINE}{condition}"
        for source, condition in _parts(wanted)
    )
    sql = f"""
        WITH page AS MATERIALIZED ({chosen} ORDER BY {order} LIMIT :limit OFFSET :offset)
        {_COLUMNS} FROM page CROSS JOIN rec AS r ON r.seq = page.seq
        LEFT JOIN live AS l ON l.seq = r.seq JOIN queue AS q ON q.id = r.queue
        ORDER BY page.at {"ASC" if wanted.ascending else "DESC"}, page.id
    """
    values = {
        "queue": wanted.queue,
        "type": wanted.type,
        "limit": wanted.limit,
        "offset": wanted.offset,
    }
    return [job_row(row) for row in connection.execute(sql, values)]


def _parts(wanted: TimeQuery) -> list[tuple[str, str]]:
    """Where to look, and for what; no job is found in two of them."""
    if not wanted.states and wanted.cancelled is None:
        return [(_REC, "")]
    states = wanted.states or tuple(State)
    parts = []
    live = ", ".join(str(int(state)) for state in states if state not in TERMINAL)
    if live:
        parts.append((_LIVE, f" AND l.state IN ({live})"))
    if State.DONE in states:
        parts.append((_REC, f" AND r.state = {State.DONE:d}"))
    if State.DEAD_LETTERED in states:
        condition = f" AND r.state = {State.DEAD_LETTERED:d}"
        if wanted.cancelled is not None:
            compare = "=" if wanted.cancelled else "<>"
            condition += f" AND r.reason {compare} '{Reason.CANCELLED}'"
        parts.append((_REC, condition))
    return parts
