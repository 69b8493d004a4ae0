"""Read and change the layout of a database, which says what kinds of rows servers may write.

Layout 1 has a row for each job, each event and each end of a job. In layout 2, one row may also
hold an event or the end of many jobs. In layout 3, one row may also hold many jobs that have not
ended. Servers of older versions do not understand the rows of a higher layout. So an operator
raises the layout when no such server is left. Until then, new versions write no such rows.
"""

from __future__ import annotations

import json

import asyncpg

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.store import Change
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.notices import CHANNEL
from jobqueue.stores.postgres.statements import LAYOUT, SQL

# Tables whose rows every server writes with the layout that it knows.
_CHECKED = ("queue_tally", "leader", "workers")
# In the order in which writers lock these tables.
_OPENED = {"job_ready": 3, "job_held": 3, "job_steps": 2, "job_done": 2}
_TRIES = 5  # of two seconds each, because writers queue behind a waiting ALTER TABLE
_LOCK = 0x6A71_6C61_796F  # "jqlayo"
_WINDOW = "lo >> 10 = $1::bigint AND lo BETWEEN $1::bigint << 10 AND ($1::bigint << 10) + 1023"

_EVENTS = f"""
INSERT INTO job_event (seq, xid, at, version, attempt, worker, from_state, to_state, reason)
SELECT seq, xid, at, version, attempt, worker, from_state, to_state, reason FROM batch_event
WHERE {_WINDOW}
  AND EXISTS (SELECT FROM job_record AS r WHERE r.seq = batch_event.seq)
"""
_ENDS = f"""
INSERT INTO job_ended (seq, completed_at, started_at, run_at, lease, queue, version, attempt,
                       retry_count, worker, state, reason, cancel, result)
SELECT e.seq, e.completed_at, e.started_at, r.run_at, e.lease, e.queue, e.version, e.attempt,
       e.retry_count, e.worker, e.state, e.reason, e.cancel, e.result
FROM batch_end AS e JOIN job_record AS r ON r.seq = e.seq
WHERE {_WINDOW}
"""


async def read(db: Db) -> int:
    """Return the layout of a database."""
    return int(await db.fetchval(SQL["layout"]))


async def change(db: Db, layout: int) -> None:
    """Raise or lower the layout of a database, one caller at a time.

    If an earlier change was interrupted, this call completes it.
    """
    if not 1 <= layout <= LAYOUT:
        raise InvalidArgument("layout", f"must be from 1 to {LAYOUT}")
    await db.execute("SELECT pg_advisory_lock($1)", _LOCK)
    try:
        if layout <= await read(db) and layout < LAYOUT:
            await _set(db, layout, checked=False)
            await _unpack_ranges(db)
            if layout < 2:
                await _unpack(db)
        await _set(db, layout, checked=True)
        news = Change.CONTROL | Change.WORK
        await db.execute("SELECT pg_notify($1, $2)", CHANNEL, json.dumps([0, news.value, None]))
    finally:
        await db.execute("SELECT pg_advisory_unlock($1)", _LOCK)


async def _set(db: Db, layout: int, *, checked: bool) -> None:
    """Write the layout. Allow inserts into the tables that it has, and refuse them in the others.

    Retry while the tables are locked. If ``checked``, the database from now on refuses writes of
    servers that do not know the layout.
    """
    for left in reversed(range(_TRIES)):
        try:
            return await _set_once(db, layout, checked=checked)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            if not left:
                raise


async def _set_once(db: Db, layout: int, *, checked: bool) -> None:
    async with db.transaction():
        await db.execute("SET LOCAL lock_timeout = '2s'")
        await db.execute("UPDATE instance SET layout = $1", layout)
        for table, needed in _OPENED.items():
            verb = "DISABLE" if layout >= needed else "ENABLE"
            await db.execute(f"ALTER TABLE {table} {verb} TRIGGER closed")
        if not checked:
            return
        for table in _CHECKED:
            await db.execute(f"UPDATE {table} SET layout = $1 WHERE layout < $1", layout)
            await db.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS knows_layout")
            if layout > 1:
                await db.execute(
                    f"ALTER TABLE {table} ADD CONSTRAINT knows_layout CHECK (layout >= {layout})"
                )
        await db.execute("UPDATE leader SET expires_at = '-infinity'")


async def _unpack_ranges(db: Db) -> None:
    """Turn all plain jobs into live rows, window by window, while servers continue to write."""
    while True:
        window = await db.fetchval(
            "SELECT least((SELECT min(hi) FROM job_ready), (SELECT min(lo) FROM job_held)) >> 10"
        )
        if window is None:
            return
        inside = f"BETWEEN {window << 10} AND {(window << 10) + 1023}"
        ready = await db.fetch(f"SELECT hi FROM job_ready WHERE hi {inside}")
        await db.execute(SQL["leave_ready"], [row[0] for row in ready])
        held = await db.fetch(f"SELECT seq FROM held_job WHERE lo {inside}")
        await db.execute(SQL["leave_held"], [row[0] for row in held], [None] * len(held))


async def _unpack(db: Db) -> None:
    """Convert the rows for many jobs to rows for single jobs, one window in a transaction."""
    while True:
        async with db.transaction():
            window = await db.fetchval(
                "SELECT least((SELECT min(lo) FROM job_steps),"
                " (SELECT lo FROM job_done ORDER BY lo >> 10 LIMIT 1)) >> 10"
            )
            if window is None:
                return
            await unpack_window(db, window)


async def unpack_window(db: Db, window: int) -> None:
    """Convert the rows of one window (1,024 job numbers) within the caller's transaction."""
    await db.execute("SET LOCAL jobqueue.retention = 'on'")
    await db.execute("LOCK TABLE job_steps, job_done IN SHARE ROW EXCLUSIVE MODE")
    await db.execute(_EVENTS, window)
    await db.execute(_ENDS, window)
    for table in ("job_steps", "job_done"):
        await db.execute(f"DELETE FROM {table} WHERE {_WINDOW}", window)
