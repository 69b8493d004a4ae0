"""Keep schedules in SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from jobqueue.core.schedule import Schedule
from jobqueue.core.store import DueSchedules, Term, TermEnded
from jobqueue.core.stream import ScheduleChange
from jobqueue.stores.schedule_rows import definition_body, read_schedule, state_body
from jobqueue.stores.sqlite.database import SqlitePart, reading, writing
from jobqueue.stores.sqlite.leadership import stands, tell_control
from jobqueue.stores.sqlite.statements import SQL
from jobqueue.stores.sqlite.streaming import put_schedule


class SqliteSchedules(SqlitePart):
    """Implements ``core.store.ScheduleStore`` with the table ``schedule``."""

    @reading("due_schedules")
    def due(self, db: sqlite3.Connection, now: float) -> DueSchedules:
        names = tuple(name for (name,) in db.execute(SQL["due_schedules"], (now,)))
        (next_at,) = db.execute(SQL["next_schedule"], (now,)).fetchone()
        return DueSchedules(names, next_at)

    @reading("get_schedules")
    def get(self, db: sqlite3.Connection, names: Sequence[str]) -> list[Schedule]:
        rows = db.execute(SQL["get_schedules"], (json.dumps([*names]),))
        return [read_schedule(*row) for row in rows]

    @reading("list_schedules")
    def page(self, db: sqlite3.Connection, after: str, limit: int) -> list[Schedule]:
        return [read_schedule(*row) for row in db.execute(SQL["list_schedules"], (after, limit))]

    @reading("count_schedules")
    def count(self, db: sqlite3.Connection) -> int:
        return int(db.execute("SELECT count(*) FROM schedule").fetchone()[0])

    @writing("create_schedule")
    def create(self, db: sqlite3.Connection, schedule: Schedule) -> bool:
        return self._write(db, "create_schedule", schedule, ScheduleChange.CREATED)

    @writing("change_schedule")
    def change(self, db: sqlite3.Connection, schedule: Schedule) -> bool:
        return self._write(db, "change_schedule", schedule, ScheduleChange.CHANGED)

    def _write(
        self, db: sqlite3.Connection, statement: str, schedule: Schedule, change: ScheduleChange
    ) -> bool:
        done = db.execute(SQL[statement], row_of(schedule)).rowcount == 1
        if done:
            put_schedule(db, change, schedule, self._clock.now())
            tell_control(db)
        return done

    @writing("advance_schedules")
    def advance(
        self, db: sqlite3.Connection, schedules: Sequence[Schedule], term: Term | None = None
    ) -> list[bool] | TermEnded:
        now = self._clock.now()
        if term is not None and not stands(db, term, now):
            return TermEnded()
        done: list[bool] = []
        for one in schedules:
            row = (one.name, one.revision, one.state.due_at, state_body(one.state))
            done.append(db.execute(SQL["advance_schedule"], row).rowcount == 1)
            if done[-1]:
                put_schedule(db, ScheduleChange.TICKED, one, now)
        return done

    @writing("remove_schedule")
    def remove(self, db: sqlite3.Connection, name: str) -> bool:
        row = db.execute(SQL["remove_schedule"], (name,)).fetchone()
        if row is None:
            return False
        put_schedule(db, ScheduleChange.REMOVED, read_schedule(*row), self._clock.now())
        tell_control(db)
        return True


def row_of(schedule: Schedule) -> tuple[Any, ...]:
    """Return the values of a schedule's row."""
    return (
        schedule.name, schedule.revision, schedule.state.due_at, schedule.spec.job.payload,
        definition_body(schedule), state_body(schedule.state),
    )  # fmt: skip
