"""Reads jobs, queues, held leases and workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobqueue.core.job import (
    MAX_ERROR_HEAD,
    MAX_HISTORY,
    DeadLetterCause,
    Event,
    Held,
    Job,
    TimeQuery,
    Worker,
)
from jobqueue.core.lifecycle import HELD, TERMINAL, Reason, State
from jobqueue.core.queue import QueueStats, WaitingType
from jobqueue.core.store import DeadLetters, JobFilter
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.statements import REASON_NUMBERS, REASONS, SQL, array
from jobqueue.stores.queue_rows import stats_row
from jobqueue.stores.rows import MAX_SEQ, Rows, held_row, looked

ROWS = Rows(job_id=str, reasons=REASONS, names=tuple)

_QUEUE = " JOIN queues AS q ON q.id = r.queue"
# Looked up one by one: see the head of queries.sql.
_LIVE = " LEFT JOIN LATERAL (SELECT * FROM job_live WHERE seq = r.seq OFFSET 0) AS l ON true"
_UNFINISHED = " LEFT JOIN LATERAL (SELECT * FROM job_live_of(r.seq) OFFSET 0) AS l ON true"
_ENDED = " LEFT JOIN LATERAL job_end_of(r.seq) AS e ON true"
_NOT_ENDED = " LEFT JOIN job_ended AS e ON e.seq = r.seq"
_JOBS = f" FROM job_record AS r{_UNFINISHED}{_ENDED}{_QUEUE}"
_LIVE_JOBS = f" FROM job_live AS l JOIN job_record AS r ON r.seq = l.seq{_NOT_ENDED}{_QUEUE}"
_OF_PLAIN = f" AS p JOIN job_record AS r ON r.seq = p.seq{_UNFINISHED}{_NOT_ENDED}{_QUEUE}"
_READY_JOBS = f" FROM ready_job{_OF_PLAIN}"
_HELD_JOBS = f" FROM held_job{_OF_PLAIN}"
_ENDED_JOBS = f" FROM job_ended AS e JOIN job_record AS r ON r.seq = e.seq{_LIVE}{_QUEUE}"
_BATCH_JOBS = f" FROM batch_end AS e JOIN job_record AS r ON r.seq = e.seq{_LIVE}{_QUEUE}"

# By time: as in the index job_record_time.
_TIME = "floor(r.created_at * 1000)"
# The same where that index must not be walked in search of a few.
_UNINDEXED = f"{_TIME} + 0"
_ENDED_BY_TIME = "job_ended AS e JOIN job_record AS r ON r.seq = e.seq"
_DONE_BY_TIME = "job_record AS r CROSS JOIN LATERAL job_end_of(r.seq) AS e"
_COLUMNS = SQL["job_columns"].replace("e.result", "NULL::bytea")


async def find(db: Db, job_id: str) -> int | None:
    """Return the number of the job with this id; None if there is no such job."""
    seq: int | None = await db.fetchval(SQL["find"], job_id)
    return seq


async def get(db: Db, job_id: str) -> Job | None:
    """Read one job by its id."""
    seq = await find(db, job_id)
    if seq is None:
        return None
    row = await db.fetchrow(f"{SQL['job_columns']}{_JOBS} WHERE r.seq = $1", seq)
    return None if row is None else ROWS.job(row)


async def list_jobs(db: Db, wanted: JobFilter) -> list[Job]:
    """Read a page of jobs, newest first."""
    if not wanted.states:
        return await _select(db, _JOBS, "r", wanted, "")
    if len(wanted.states) == 1 and TERMINAL.issuperset(wanted.states):
        return await _list_states(db, wanted)
    # In one snapshot: a job that moves meanwhile is shown once.
    async with db.transaction(isolation="repeatable_read", readonly=True):
        return await _list_states(db, wanted)


async def _list_states(db: Db, wanted: JobFilter) -> list[Job]:
    jobs: list[Job] = []
    live = [int(state) for state in wanted.states if state not in TERMINAL]
    if live:
        numbers = ", ".join(map(str, live))
        jobs += await _select(db, _LIVE_JOBS, "l", wanted, f"l.state IN ({numbers})")
    if State.PENDING in wanted.states:
        jobs += await _select(db, _READY_JOBS, "p", wanted, "")
    if State.ASSIGNED in wanted.states:
        jobs += await _select(db, _HELD_JOBS, "p", wanted, "")
    if State.DONE in wanted.states:
        jobs += await _select(db, _ENDED_JOBS, "e", wanted, "e.state = 4")
        jobs += await _select(db, _BATCH_JOBS, "e", wanted, "")
    if State.DEAD_LETTERED in wanted.states:
        jobs += await _select(db, _ENDED_JOBS, "e", wanted, "e.state = 6")
    jobs.sort(key=lambda job: -job.seq)
    return jobs[: wanted.limit]


async def _select(db: Db, source: str, side: str, wanted: JobFilter, condition: str) -> list[Job]:
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
        if source == _BATCH_JOBS:
            conditions.append(f"{side}.lo >> 10 <= ${len(values)} >> 10")
        if source == _READY_JOBS:
            conditions.append(f"{side}.hi < ${len(values)} + 1024")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    values.append(wanted.limit)
    # Sorted window by window, down to where the page is full.
    windows = {_BATCH_JOBS: "e.lo >> 10 DESC, ", _READY_JOBS: "p.hi DESC, "}.get(source, "")
    order = f" ORDER BY {windows}{side}.seq DESC LIMIT ${len(values)}"
    sql = f"{SQL['job_columns']}{source}{where}{order}"
    return [ROWS.job(row) for row in await db.fetch(sql, *values)]


def _impossible(wanted: JobFilter) -> bool:
    # No text in PostgreSQL has a NUL character.
    return "\0" in f"{wanted.queue}{wanted.type}{wanted.error}"


def _match(
    wanted: JobFilter, reason: str, error: str, conditions: list[str], values: list[object]
) -> None:
    """Add the conditions of a filter, except those on queue, state and position."""
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


async def dead_letters(db: Db, wanted: JobFilter) -> DeadLetters:
    """Read the next ``wanted.limit`` dead letters. Return those of them that match the filter."""
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


async def describe(db: Db, numbers: Sequence[int]) -> list[DeadLetterCause]:
    """Read the causes of the dead letters with these numbers."""
    rows = await db.fetch(SQL["describe"], array(numbers), MAX_ERROR_HEAD)
    return [ROWS.dead_letter(row) for row in rows]


@dataclass(frozen=True, slots=True)
class _JobTable:
    """Names the tables with the jobs of some states, and the condition that selects these jobs."""

    source: str
    side: str  # whose queue is compared
    condition: str
    many: bool  # most jobs are of these states; others are few, and sorted once they are found


async def list_by_time(db: Db, wanted: TimeQuery) -> list[Job]:
    """Read a page of the jobs that a query selects, ordered by the time of their submit."""
    # In one statement: so a job whose state changes meanwhile is in the page only once.
    if "\0" in f"{wanted.queue}{wanted.type}":
        return []  # PostgreSQL's text has no NUL, so nothing is called that
    direction = "ASC" if wanted.ascending else "DESC"
    chosen = " UNION ALL ".join(
        f"(SELECT r.seq, {_TIME} AS at, r.id FROM {part.source}"
        f" WHERE {part.side}.queue = (SELECT id FROM queues WHERE name = $1) AND r.type = $2"
        f"{part.condition}"
        f" ORDER BY {_TIME if part.many else _UNINDEXED} {direction}, r.id"
        f" LIMIT $3::bigint + $4::bigint)"
        for part in _parts(wanted)
    )
    sql = f"""
        WITH page AS MATERIALIZED (
            SELECT seq, at, id FROM ({chosen}) AS chosen
            ORDER BY at {direction}, id LIMIT $3::bigint OFFSET $4::bigint
        )
        {_COLUMNS} FROM page JOIN job_record AS r ON r.seq = page.seq
        {_UNFINISHED}{_ENDED}
        JOIN queues AS q ON q.id = r.queue
        ORDER BY page.at {direction}, page.id
    """
    rows = await db.fetch(sql, wanted.queue, wanted.type, wanted.limit, wanted.offset)
    return [ROWS.job(row) for row in rows]


def _unfinished(table: str, condition: str) -> _JobTable:
    source = f"{table} AS l JOIN job_record AS r ON r.seq = l.seq"
    return _JobTable(source, "l", condition, many=False)


def _parts(wanted: TimeQuery) -> list[_JobTable]:
    """Return the groups of tables to read a page from. No job is in two groups."""
    if not wanted.states and wanted.cancelled is None:
        return [_JobTable("job_record AS r", "r", "", many=True)]
    states = wanted.states or tuple(State)
    parts = []
    live = [state for state in states if state not in TERMINAL]
    if live:
        condition = f" AND l.state IN ({', '.join(str(int(state)) for state in live)})"
        if HELD.issuperset(live):
            condition += " AND l.worker IS NOT NULL"  # of whom there is an index
        parts.append(_unfinished("job_live", condition))
    if State.PENDING in states:
        parts.append(_unfinished("ready_job", " AND l.kind = kind_of($2)"))
    if State.ASSIGNED in states:
        parts.append(_unfinished("held_job", ""))
    if State.DONE in states:
        parts.append(_JobTable(_DONE_BY_TIME, "e", f" AND e.state = {State.DONE:d}", many=True))
    if State.DEAD_LETTERED in states:
        condition = f" AND e.state = {State.DEAD_LETTERED:d}"
        if wanted.cancelled is not None:
            compare = "=" if wanted.cancelled else "<>"
            condition += f" AND e.reason {compare} {REASON_NUMBERS[Reason.CANCELLED]}"
        parts.append(_JobTable(_ENDED_BY_TIME, "e", condition, many=False))
    return parts


async def history(db: Db, job_id: str, before: int | None, limit: int) -> list[Event]:
    """Return a job's last events, of versions below ``before`` if given, in order."""
    seq = await find(db, job_id)
    if seq is None:
        return []
    rows = await db.fetch(SQL["history"], seq, before, limit)
    return [ROWS.event(row) for row in reversed(rows)]


async def stats(db: Db, name: str | None) -> list[QueueStats]:
    """Return the figures of one queue, or of all."""
    return [stats_row(row) for row in await db.fetch(SQL["stats"], name)]


async def waiting_types(db: Db, count_to: int, queue: str | None) -> list[WaitingType]:
    """Return the numbers of claimable jobs by queue and type. Each count ends at ``count_to``."""
    rows = await db.fetch(SQL["waiting_types"], queue, count_to)
    return sorted((WaitingType(*row) for row in rows), key=lambda one: (one.queue, one.type))


async def held(db: Db, worker_id: str | None, floor: int = 0) -> list[Held]:
    """Return the leases in force: all, or those of one worker from the job number ``floor`` on."""
    if worker_id is None:
        return [held_row(row) for row in await db.fetch(SQL["held"])]
    return [held_row(row) for row in await db.fetch(SQL["held_by"], worker_id, floor)]


async def held_from(db: Db, holding: Holding) -> list[Held]:
    """Return the leases in force from each worker's floor on. Use it if reading all is slow."""
    return [held_row(row[:5]) for row in await db.fetch(SQL["held_from"], *holding.columns())]


async def workers(db: Db, holding: Holding | None = None, names: bool = True) -> list[Worker]:
    """Return every worker, by id, with the names of their queues and types if ``names`` is True."""
    if holding is not None and holding.costly:
        rows = await db.fetch(SQL["workers_from"], *holding.columns(), names)
    else:
        rows = await db.fetch(SQL["workers"], names)
    return [ROWS.worker(row) for row in rows]


class Reads:
    """Implements ``core.store.JobReads``."""

    def __init__(self, database: Database) -> None:
        self._reading = database.reading
        self._looking_up = database.looking_up

    async def get(self, job_id: str) -> Job | None:
        return await self._looking_up.read("get", lambda db: get(db, job_id))

    async def seq_of(self, job_id: str) -> int | None:
        return await self._looking_up.read("seq_of", lambda db: find(db, job_id))

    async def moved_on(self, seen: Mapping[int, int]) -> list[int]:
        asked = array(seen), array(seen.values())
        rows = await self._looking_up.read("moved_on", lambda db: db.fetch(SQL["moved_on"], *asked))
        return [row[0] for row in rows]

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        return await self._reading.read("list_jobs", lambda db: list_jobs(db, wanted))

    async def dead_letters(self, wanted: JobFilter) -> DeadLetters:
        return await self._reading.read("dead_letters", lambda db: dead_letters(db, wanted))

    async def describe(self, numbers: Sequence[int]) -> list[DeadLetterCause]:
        return await self._reading.read("describe", lambda db: describe(db, numbers))

    async def list_by_time(self, wanted: TimeQuery) -> list[Job]:
        return await self._reading.read("list_by_time", lambda db: list_by_time(db, wanted))

    async def history(
        self, job_id: str, before: int | None = None, limit: int = MAX_HISTORY
    ) -> list[Event]:
        return await self._looking_up.read("history", lambda db: history(db, job_id, before, limit))
