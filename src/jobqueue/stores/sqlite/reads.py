"""Read jobs, queues and leases from SQLite. Rows are converted to objects in a reader's thread."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from jobqueue.core.ids import id_from_bytes, id_to_bytes
from jobqueue.core.job import (
    MAX_ERROR_HEAD,
    MAX_HISTORY,
    DeadLetterCause,
    Event,
    Held,
    Job,
    TimeQuery,
)
from jobqueue.core.lifecycle import TERMINAL, Reason, State
from jobqueue.core.queue import QueueStats
from jobqueue.core.store import ANY_VERSION, DeadLetters, JobFilter
from jobqueue.stores.queue_rows import stats_row
from jobqueue.stores.rows import MAX_SEQ, REASONS, Rows, held_row, looked
from jobqueue.stores.sqlite.database import SqlitePart, reading
from jobqueue.stores.sqlite.statements import SQL

ROWS = Rows(job_id=id_from_bytes, reasons=REASONS, names=json.loads)

_QUEUE = "JOIN queue AS q ON q.id = r.queue"
_ALL_JOBS = f"FROM rec AS r LEFT JOIN live AS l ON l.seq = r.seq {_QUEUE}"
# SQLite reads the tables of a CROSS JOIN in this order: first the live rows, which are few.
_UNFINISHED = "live AS l CROSS JOIN rec AS r ON r.seq = l.seq"
_REASON = "CASE WHEN l.seq IS NULL THEN r.reason ELSE l.reason END"
_ERROR = "CASE WHEN l.seq IS NULL THEN r.error ELSE l.error END"
_LISTED = "r.queue = (SELECT id FROM queue WHERE name = :queue) AND r.type = :type"
_MILLISECOND = "CAST(r.created_at * 1000 AS INTEGER)"  # as in the index rec_time
_WITHOUT_RESULT = SQL["job_columns"].replace("r.result", "NULL")


def stats(db: sqlite3.Connection, name: str | None = None) -> list[QueueStats]:
    """Return the queue ``name``, or all queues, with their figures.

    Every write updates the figures, so no job is counted here.
    """
    return [stats_row(row) for row in db.execute(SQL["stats"], (name, name))]


def held(db: sqlite3.Connection, worker_id: str | None) -> list[Held]:
    """Return the leases in force of a worker, or of all workers if ``worker_id`` is None."""
    return [held_row(row) for row in db.execute(SQL["held"], (worker_id,))]


class SqliteReads(SqlitePart):
    """Implements ``core.store.JobReads``."""

    @reading("get")
    def get(self, db: sqlite3.Connection, job_id: str) -> Job | None:
        sql = f"{SQL['job_columns']} {_ALL_JOBS} WHERE r.id = ?"
        row = db.execute(sql, (id_to_bytes(job_id),)).fetchone()
        return None if row is None else ROWS.job(row)

    @reading("seq_of")
    def seq_of(self, db: sqlite3.Connection, job_id: str) -> int | None:
        row = db.execute(SQL["seq_of"], (id_to_bytes(job_id),)).fetchone()
        return None if row is None else int(row[0])

    @reading("moved_on")
    def moved_on(self, db: sqlite3.Connection, seen: Mapping[int, int]) -> list[int]:
        live = dict(db.execute(SQL["live_versions"], (json.dumps(list(seen)),)))
        return [
            seq
            for seq, version in seen.items()
            if seq not in live or version not in (ANY_VERSION, live[seq])
        ]

    @reading("list_jobs")
    def list_jobs(self, db: sqlite3.Connection, wanted: JobFilter) -> list[Job]:
        if not wanted.states:
            return _select(db, _ALL_JOBS, "r", wanted)
        jobs: list[Job] = []
        live = ", ".join(str(int(state)) for state in wanted.states if state not in TERMINAL)
        if live:
            jobs += _select(db, f"FROM {_UNFINISHED} {_QUEUE}", "l", wanted, f"l.state IN ({live})")
        for state in wanted.states:  # one by one, so that SQLite uses the index of dead letters
            if state in TERMINAL:
                jobs += _select(db, _ALL_JOBS, "r", wanted, f"r.state = {state:d}")
        jobs.sort(key=lambda job: -job.seq)
        return jobs[: wanted.limit]

    @reading("dead_letters")
    def dead_letters(self, db: sqlite3.Connection, wanted: JobFilter) -> DeadLetters:
        conditions, values = _conditions(wanted, "r.reason", "r.error")
        matches = " AND ".join(f"coalesce({one}, 0)" for one in conditions) or "1"
        # One query for each queue, because the index of dead letters begins with the queue.
        sql = (
            f"SELECT r.seq, r.version, {matches} FROM rec AS r INDEXED BY rec_dead"
            " WHERE r.queue = ? AND r.state = 6 AND r.seq < ? ORDER BY r.seq DESC LIMIT ?"
        )
        before = MAX_SEQ if wanted.before_seq is None else wanted.before_seq
        queues = "SELECT id FROM queue WHERE name = coalesce(?, name)"
        rows = [
            row
            for (queue,) in db.execute(queues, (wanted.queue,)).fetchall()
            for row in db.execute(sql, (*values, queue, before, wanted.limit))
        ]
        return looked(rows, wanted.limit)

    @reading("describe")
    def describe(self, db: sqlite3.Connection, numbers: Sequence[int]) -> list[DeadLetterCause]:
        rows = db.execute(SQL["describe"], (MAX_ERROR_HEAD, json.dumps(list(numbers))))
        return [ROWS.dead_letter(row) for row in rows]

    @reading("list_by_time")
    def list_by_time(self, db: sqlite3.Connection, wanted: TimeQuery) -> list[Job]:
        direction = "ASC" if wanted.ascending else "DESC"
        chosen = " UNION ALL ".join(
            f"SELECT r.seq, {_MILLISECOND} AS at, r.id AS id FROM {source} WHERE {condition}"
            for source, condition in _sources(wanted)
        )
        sql = f"""
            WITH page AS MATERIALIZED (
                {chosen} ORDER BY at {direction}, id ASC LIMIT :limit OFFSET :offset)
            {_WITHOUT_RESULT} FROM page CROSS JOIN rec AS r ON r.seq = page.seq
            LEFT JOIN live AS l ON l.seq = r.seq {_QUEUE}
            ORDER BY page.at {direction}, page.id
        """
        names = ("queue", "type", "limit", "offset")
        values = {name: getattr(wanted, name) for name in names}
        return [ROWS.job(row) for row in db.execute(sql, values)]

    @reading("history")
    def history(
        self,
        db: sqlite3.Connection,
        job_id: str,
        before: int | None = None,
        limit: int = MAX_HISTORY,
    ) -> list[Event]:
        rows = db.execute(SQL["history"], (id_to_bytes(job_id), before, limit)).fetchall()
        return [ROWS.event(row) for row in reversed(rows)]


def _select(
    db: sqlite3.Connection, source: str, side: str, wanted: JobFilter, condition: str = "1"
) -> list[Job]:
    """Return a page of jobs, newest first.

    ``side`` is the table whose columns ``queue`` and ``seq`` are compared with the filter.
    """
    conditions, values = _conditions(wanted, _REASON, _ERROR)
    conditions.append(condition)
    if wanted.queue is not None:
        conditions.append(f"{side}.queue = (SELECT id FROM queue WHERE name = ?)")
        values.append(wanted.queue)
    if wanted.before_seq is not None:
        conditions.append(f"{side}.seq < ?")
        values.append(wanted.before_seq)
    sql = (
        f"{SQL['job_columns']} {source} WHERE {' AND '.join(conditions)}"
        f" ORDER BY {side}.seq DESC LIMIT ?"
    )
    return [ROWS.job(row) for row in db.execute(sql, (*values, wanted.limit))]


def _conditions(wanted: JobFilter, reason: str, error: str) -> tuple[list[str], list[Any]]:
    """Return the SQL conditions of a filter, without queue, state and number, and their values.

    ``reason`` and ``error`` are the SQL expressions for these fields.
    """
    reasons = [one.value for one in wanted.reasons]
    asked: list[tuple[bool, str, list[Any]]] = [
        (wanted.type is not None, "r.type = ?", [wanted.type]),
        (bool(reasons), f"{reason} IN ({', '.join('?' * len(reasons))})", reasons),
        (bool(wanted.error), f"instr({error}, ?) > 0", [wanted.error]),
        (wanted.since is not None, "r.completed_at >= ?", [wanted.since]),
        (wanted.until is not None, "r.completed_at < ?", [wanted.until]),
    ]
    conditions = [condition for there, condition, _ in asked if there]
    return conditions, [value for there, _, values in asked if there for value in values]


def _sources(wanted: TimeQuery) -> list[tuple[str, str]]:
    """Return the tables to read, each with an SQL condition. No job is found in two tables."""
    # Live jobs and dead letters are few, and are sorted after they are found. The others are read
    # in order of time: because of the "+" SQLite does not use the index of the queue, with which it
    # would read all jobs.
    if not wanted.states and wanted.cancelled is None:
        return [("rec AS r", f"+{_LISTED}")]
    states = wanted.states or tuple(State)
    found = []
    live = ", ".join(str(int(state)) for state in states if state not in TERMINAL)
    if live:
        found.append((_UNFINISHED, f"{_LISTED} AND l.state IN ({live})"))
    if State.DONE in states:
        found.append(("rec AS r", f"+{_LISTED} AND r.state = {State.DONE:d}"))
    if State.DEAD_LETTERED in states:
        condition = f"{_LISTED} AND r.state = {State.DEAD_LETTERED:d}"
        if wanted.cancelled is not None:
            compare = "=" if wanted.cancelled else "<>"
            condition += f" AND r.reason {compare} '{Reason.CANCELLED}'"
        found.append(("rec AS r", condition))
    return found
