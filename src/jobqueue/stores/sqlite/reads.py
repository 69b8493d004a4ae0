"""The queries that people and faces ask."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from jobqueue.core.ids import id_from_bytes, id_to_bytes
from jobqueue.core.job import MAX_HISTORY, Event, Held, Job, Worker
from jobqueue.core.lifecycle import TERMINAL, Reason
from jobqueue.core.queue import QueueStats, WaitingType
from jobqueue.core.store import ANY_VERSION, DeadLetters, JobFilter
from jobqueue.stores.queue_rows import stats_row
from jobqueue.stores.rows import MAX_SEQ, Rows, held_row, looked
from jobqueue.stores.sqlite.statements import SQL

_REASONS = {reason.value: reason for reason in Reason}
ROWS = Rows(job_id=id_from_bytes, reasons=_REASONS, names=json.loads)

_JOBS = " FROM rec AS r LEFT JOIN live AS l ON l.seq = r.seq JOIN queue AS q ON q.id = r.queue"
_REASON = "CASE WHEN l.seq IS NULL THEN r.reason ELSE l.reason END"
_ERROR = "CASE WHEN l.seq IS NULL THEN r.error ELSE l.error END"
_LIVE_JOBS = (
    " FROM live AS l CROSS JOIN rec AS r ON r.seq = l.seq JOIN queue AS q ON q.id = r.queue"
)


def get(connection: sqlite3.Connection, job_id: str) -> Job | None:
    """One job by its id."""
    sql = f"{SQL['job_columns']}{_JOBS} WHERE r.id = ?"
    row = connection.execute(sql, (id_to_bytes(job_id),)).fetchone()
    return None if row is None else ROWS.job(row)


def seq_of(connection: sqlite3.Connection, job_id: str) -> int | None:
    """A job's number. An index answers: behind its payload, a row is slow to read."""
    row = connection.execute(SQL["seq_of"], (id_to_bytes(job_id),)).fetchone()
    return None if row is None else int(row[0])


def moved_on(connection: sqlite3.Connection, seen: Mapping[int, int]) -> list[int]:
    """Jobs that are live no more, or not at the version that was seen."""
    live = dict(connection.execute(SQL["live_versions"], (json.dumps(list(seen)),)))
    return [
        seq
        for seq, version in seen.items()
        if seq not in live or version not in (ANY_VERSION, live[seq])
    ]


def list_jobs(connection: sqlite3.Connection, wanted: JobFilter) -> list[Job]:
    """A page, newest first. Unfinished jobs are few, so they are looked up from their side."""
    jobs: list[Job] = []
    live = [int(state) for state in wanted.states if state not in TERMINAL]
    ended = [int(state) for state in wanted.states if state in TERMINAL]
    if live or not wanted.states:
        if not wanted.states:
            jobs += _select(connection, _JOBS, "r.seq", wanted, "")
        else:
            marks = ", ".join(map(str, live))
            jobs += _select(connection, _LIVE_JOBS, "l.seq", wanted, f"l.state IN ({marks})")
    for state in ended:  # one by one, so that the index of dead letters serves
        jobs += _select(connection, _JOBS, "r.seq", wanted, f"r.state = {state}")
    jobs.sort(key=lambda job: -job.seq)
    return jobs[: wanted.limit]


def _select(
    connection: sqlite3.Connection, source: str, seq: str, wanted: JobFilter, condition: str
) -> list[Job]:
    conditions: list[str] = [condition] if condition else []
    values: list[object] = []
    if wanted.queue is not None:
        side = "l" if seq == "l.seq" else "r"
        conditions.append(f"{side}.queue = (SELECT id FROM queue WHERE name = ?)")
        values.append(wanted.queue)
    _match(wanted, _REASON, _ERROR, conditions, values)
    if wanted.before_seq is not None:
        conditions.append(f"{seq} < ?")
        values.append(wanted.before_seq)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    sql = f"{SQL['job_columns']}{source}{where} ORDER BY {seq} DESC LIMIT ?"
    return [ROWS.job(row) for row in connection.execute(sql, (*values, wanted.limit))]


def _match(
    wanted: JobFilter, reason: str, error: str, conditions: list[str], values: list[object]
) -> None:
    """What a filter asks beside queue, state and place."""
    if wanted.type is not None:
        conditions.append("r.type = ?")
        values.append(wanted.type)
    if wanted.reasons:
        conditions.append(f"{reason} IN ({', '.join('?' * len(wanted.reasons))})")
        values += [one.value for one in wanted.reasons]
    if wanted.error:
        conditions.append(f"instr({error}, ?) > 0")
        values.append(wanted.error)
    if wanted.since is not None:
        conditions.append("r.completed_at >= ?")
        values.append(wanted.since)
    if wanted.until is not None:
        conditions.append("r.completed_at < ?")
        values.append(wanted.until)


def dead_letters(connection: sqlite3.Connection, wanted: JobFilter) -> DeadLetters:
    """A bounded look, queue by queue, as the index of dead letters has them."""
    conditions: list[str] = []
    values: list[object] = []
    _match(wanted, "r.reason", "r.error", conditions, values)
    matches = " AND ".join(f"coalesce({one}, 0)" for one in conditions) or "1"
    sql = (
        f"SELECT r.seq, r.version, {matches} FROM rec AS r INDEXED BY rec_dead"
        " WHERE r.queue = ? AND r.state = 6 AND r.seq < ? ORDER BY r.seq DESC LIMIT ?"
    )
    before = MAX_SEQ if wanted.before_seq is None else wanted.before_seq
    queues = connection.execute(
        "SELECT id FROM queue WHERE name = coalesce(?, name)", (wanted.queue,)
    ).fetchall()
    rows = [
        row
        for (queue,) in queues
        for row in connection.execute(sql, (*values, queue, before, wanted.limit))
    ]
    return looked(rows, wanted.limit)


def history(connection: sqlite3.Connection, job_id: str, before: int | None) -> list[Event]:
    """A job's newest events in order."""
    values = (id_to_bytes(job_id), before, MAX_HISTORY)
    rows = connection.execute(SQL["history"], values).fetchall()
    return [ROWS.event(row) for row in reversed(rows)]


def events_after(
    connection: sqlite3.Connection, position: int, limit: int
) -> list[tuple[int, Event]]:
    """Events in commit order: one writer at a time, so position order is commit order."""
    rows = connection.execute(SQL["events_after"], (position, limit))
    return [(row[0], ROWS.event(row[1:])) for row in rows]


def stats(connection: sqlite3.Connection, name: str | None) -> list[QueueStats]:
    """The figures that every write keeps."""
    return [stats_row(row) for row in connection.execute(SQL["stats"], (name, name))]


def waiting_types(
    connection: sqlite3.Connection, count_to: int, name: str | None
) -> list[WaitingType]:
    """What can be claimed, by queue and type; no job is looked at beyond the limit."""
    return [
        WaitingType(*row)
        for (queue,) in connection.execute(
            "SELECT id FROM queue WHERE deleted = 0 AND name = coalesce(?, name) ORDER BY name",
            (name,),
        ).fetchall()
        for row in connection.execute(SQL["waiting_types"], (queue, count_to))
    ]


def held(connection: sqlite3.Connection, worker_id: str | None) -> list[Held]:
    """Leases in force."""
    return [held_row(row) for row in connection.execute(SQL["held"], (worker_id,))]


def workers(connection: sqlite3.Connection) -> list[Worker]:
    """Every worker, by id."""
    return [ROWS.worker(row) for row in connection.execute(SQL["workers"])]
