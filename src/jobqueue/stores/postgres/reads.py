"""The queries that people and faces ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobqueue.core.job import MAX_HISTORY, Event, Held, Job, Worker
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.queue import QueueStats, WaitingType
from jobqueue.core.store import DeadLetters, JobFilter
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.statements import REASON_NUMBERS, REASONS, SQL, array
from jobqueue.stores.queue_rows import stats_row
from jobqueue.stores.rows import MAX_SEQ, Rows, held_row, looked

ROWS = Rows(job_id=str, reasons=REASONS, names=tuple)

_QUEUE = " JOIN queues AS q ON q.id = r.queue"
# Looked up one by one: see the head of queries.sql.
_LIVE = " LEFT JOIN LATERAL (SELECT * FROM job_live WHERE seq = r.seq OFFSET 0) AS l ON true"
_ENDED = " LEFT JOIN job_ended AS e ON e.seq = r.seq"
_JOBS = f" FROM job_record AS r{_LIVE}{_ENDED}{_QUEUE}"
_LIVE_JOBS = f" FROM job_live AS l JOIN job_record AS r ON r.seq = l.seq{_ENDED}{_QUEUE}"
_ENDED_JOBS = f" FROM job_ended AS e JOIN job_record AS r ON r.seq = e.seq{_LIVE}{_QUEUE}"


async def find(db: Any, job_id: str) -> int | None:
    """A job's number."""
    seq: int | None = await db.fetchval(SQL["find"], job_id)
    return seq


async def get(db: Any, job_id: str) -> Job | None:
    """One job by its id."""
    seq = await find(db, job_id)
    if seq is None:
        return None
    row = await db.fetchrow(f"{SQL['job_columns']}{_JOBS} WHERE r.seq = $1", seq)
    return None if row is None else ROWS.job(row)


async def moved_on(db: Any, seen: Mapping[int, int]) -> list[int]:
    """Jobs that are live no more, or not at the version that was seen."""
    rows = await db.fetch(SQL["moved_on"], array(seen), array(seen.values()))
    return [row[0] for row in rows]


async def list_jobs(db: Any, wanted: JobFilter) -> list[Job]:
    """A page, newest first. Jobs in a named state are looked up from its side."""
    if not wanted.states:
        return await _select(db, _JOBS, "r", wanted, "")
    if len(wanted.states) == 1:
        return await _list_states(db, wanted)
    # In one snapshot: a job that moves meanwhile is shown once.
    async with db.transaction(isolation="repeatable_read", readonly=True):
        return await _list_states(db, wanted)


async def _list_states(db: Any, wanted: JobFilter) -> list[Job]:
    jobs: list[Job] = []
    live = [int(state) for state in wanted.states if state not in TERMINAL]
    if live:
        numbers = ", ".join(map(str, live))
        jobs += await _select(db, _LIVE_JOBS, "l", wanted, f"l.state IN ({numbers})")
    if State.DONE in wanted.states:
        jobs += await _select(db, _ENDED_JOBS, "e", wanted, "e.state = 4")
    if State.DEAD_LETTERED in wanted.states:
        jobs += await _select(db, _ENDED_JOBS, "e", wanted, "e.state = 6")
    jobs.sort(key=lambda job: -job.seq)
    return jobs[: wanted.limit]


async def _select(db: Any, source: str, side: str, wanted: JobFilter, condition: str) -> list[Job]:
    if _impossible(wanted):
        return []
    conditions: list[str] = [condition] if condition else []
    values: list[object] = []
    if wanted.queue is not None:
        values.append(wanted.queue)
        conditions.append(f"{side}.queue = (SELECT id FROM queues WHERE name = ${len(values)})")
    _match(wanted, "coalesce(l.reason, e.reason)", "coalesce(l.error, e.error)", conditions, values)
    if wanted.before_seq is not None:
        values.append(wanted.before_seq)
        conditions.append(f"{side}.seq < ${len(values)}")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    values.append(wanted.limit)
    sql = f"{SQL['job_columns']}{source}{where} ORDER BY {side}.seq DESC LIMIT ${len(values)}"
    return [ROWS.job(row) for row in await db.fetch(sql, *values)]


def _impossible(wanted: JobFilter) -> bool:
    """PostgreSQL's text has no NUL, so nothing is called that."""
    return "\0" in f"{wanted.queue}{wanted.type}{wanted.error}"


def _match(
    wanted: JobFilter, reason: str, error: str, conditions: list[str], values: list[object]
) -> None:
    """What a filter asks beside queue, state and place."""
    if wanted.type is not None:
        values.append(wanted.type)
        conditions.append(f"r.type = ${len(values)}")
    if wanted.reasons:
        values.append([REASON_NUMBERS[one] for one in wanted.reasons])
        conditions.append(f"{reason} = ANY (${len(values)}::smallint[])")
    if wanted.error:
        values.append(wanted.error)
        conditions.append(f"strpos({error}, ${len(values)}) > 0")
    if wanted.since is not None:
        values.append(wanted.since)
        conditions.append(f"e.completed_at >= ${len(values)}")
    if wanted.until is not None:
        values.append(wanted.until)
        conditions.append(f"e.completed_at < ${len(values)}")


async def dead_letters(db: Any, wanted: JobFilter) -> DeadLetters:
    """A bounded look, queue by queue, as the index of dead letters has them."""
    if _impossible(wanted):
        return DeadLetters([], 0, None)
    before = MAX_SEQ if wanted.before_seq is None else wanted.before_seq
    values: list[object] = [wanted.queue, before, wanted.limit]
    conditions: list[str] = []
    _match(wanted, "e.reason", "e.error", conditions, values)
    matches = " AND ".join(conditions) or "true"
    record = " JOIN job_record AS r ON r.seq = e.seq" if wanted.type is not None else ""
    rows = await db.fetch(f"{SQL['dead_letters']} {record}".replace("matches", matches), *values)
    return looked(rows, wanted.limit)


async def history(db: Any, job_id: str, before: int | None) -> list[Event]:
    """A job's newest events in order."""
    seq = await find(db, job_id)
    if seq is None:
        return []
    rows = await db.fetch(SQL["history"], seq, before, MAX_HISTORY)
    return [ROWS.event(row) for row in reversed(rows)]


async def stats(db: Any, name: str | None) -> list[QueueStats]:
    """The figures that every write adds to."""
    return [stats_row(row) for row in await db.fetch(SQL["stats"], name)]


async def waiting_types(db: Any, count_to: int, queue: str | None) -> list[WaitingType]:
    """By queue and type."""
    rows = await db.fetch(SQL["waiting_types"], queue, count_to)
    return sorted((WaitingType(*row) for row in rows), key=lambda one: (one.queue, one.type))


async def held(db: Any, worker_id: str | None, floor: int = 0) -> list[Held]:
    """Leases in force, of one worker (from a number on) or of all."""
    if worker_id is None:
        return [held_row(row) for row in await db.fetch(SQL["held"])]
    return [held_row(row) for row in await db.fetch(SQL["held_by"], worker_id, floor)]


async def held_from(db: Any, holding: Holding) -> list[Held]:
    """Leases in force, as far as they are known, where reading all is slow."""
    return [held_row(row) for row in await db.fetch(SQL["held_from"], *holding.columns())]


async def workers(db: Any, holding: Holding | None = None) -> list[Worker]:
    """Every worker, by id."""
    if holding is not None and holding.costly:
        rows = await db.fetch(SQL["workers_from"], *holding.columns())
    else:
        rows = await db.fetch(SQL["workers"])
    return [ROWS.worker(row) for row in rows]
