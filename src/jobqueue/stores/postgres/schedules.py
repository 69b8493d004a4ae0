"""Keep schedules in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobqueue.core.schedule import Schedule
from jobqueue.core.store import Change, DueSchedules, Term
from jobqueue.core.stream import ScheduleChange
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.leadership import PostgresLeadership
from jobqueue.stores.postgres.notices import Speaker
from jobqueue.stores.postgres.statements import SQL
from jobqueue.stores.rows import SCHEDULES
from jobqueue.stores.schedule_rows import definition_body, event_body, read_schedule, state_body


class PostgresSchedules:
    """Implements ``core.store.ScheduleStore`` with the table ``schedules``.

    A write whose answer was lost is repeated. It then also accepts a row that has exactly the new
    revision, because the first try may have written it.
    """

    def __init__(
        self, database: Database, leadership: PostgresLeadership, speaker: Speaker
    ) -> None:
        self._database = database
        self._leadership = leadership
        self._speaker = speaker

    async def due(self, now: float) -> DueSchedules:
        async def work(db: Db) -> DueSchedules:
            names = tuple(name for (name,) in await db.fetch(SQL["due_schedules"], now))
            return DueSchedules(names, await db.fetchval(SQL["next_schedule"], now))

        return await self._database.reading.read("due_schedules", work)

    async def get(self, names: Sequence[str]) -> list[Schedule]:
        return await self._read("get_schedules", list(names))

    async def page(self, after: str, limit: int) -> list[Schedule]:
        return await self._read("list_schedules", after, limit)

    async def _read(self, statement: str, *asked: Any) -> list[Schedule]:
        async def work(db: Db) -> list[Schedule]:
            return [read_schedule(*row) for row in await db.fetch(SQL[statement], *asked)]

        return await self._database.reading.read(statement, work)

    async def count(self) -> int:
        async def work(db: Db) -> int:
            found: int = await db.fetchval("SELECT count(*) FROM schedules")
            return found

        return await self._database.reading.read("count_schedules", work)

    async def create(self, schedule: Schedule) -> bool:
        return await self._write("create_schedule", schedule, ScheduleChange.CREATED)

    async def change(self, schedule: Schedule) -> bool:
        return await self._write("change_schedule", schedule, ScheduleChange.CHANGED)

    async def _write(self, statement: str, schedule: Schedule, change: ScheduleChange) -> bool:
        now, row = self._database.now(), row_of(schedule)
        body = event_body(change, schedule)

        async def attempt(db: Db, *, repeated: bool) -> bool:
            async with db.transaction():
                done = await db.fetchval(SQL[statement], *row, repeated) is not None
                if done:
                    await db.execute(SQL["put_queue"], SCHEDULES + change, now, body)
                return done

        done = await self._database.writing.write(
            statement,
            lambda db: attempt(db, repeated=False),
            again=lambda db: attempt(db, repeated=True),
        )
        self._speaker.say(Change.SCHEDULES)
        return done

    async def advance(self, schedules: Sequence[Schedule], term: Term | None = None) -> list[bool]:
        now = self._database.now()
        columns = (
            [one.name for one in schedules],
            [one.revision for one in schedules],
            [one.state.due_at for one in schedules],
            [state_body(one.state) for one in schedules],
            [event_body(ScheduleChange.TICKED, one) for one in schedules],
        )
        kind = SCHEDULES + ScheduleChange.TICKED

        async def attempt(db: Db, *, repeated: bool) -> set[str]:
            async with db.transaction():
                if term is not None:
                    await self._leadership.check(db, term)
                rows = await db.fetch(SQL["advance_schedules"], *columns, kind, now, repeated)
                return {name for (name,) in rows}

        done = await self._database.writing.write(
            "advance_schedules",
            lambda db: attempt(db, repeated=False),
            again=lambda db: attempt(db, repeated=True),
        )
        return [one.name in done for one in schedules]

    async def remove(self, name: str) -> bool:
        now = self._database.now()

        async def work(db: Db) -> bool:
            async with db.transaction():
                row = await db.fetchrow(SQL["remove_schedule"], name)
                if row is None:
                    return False
                body = event_body(ScheduleChange.REMOVED, read_schedule(*row))
                await db.execute(SQL["put_queue"], SCHEDULES + ScheduleChange.REMOVED, now, body)
                return True

        done = await self._database.writing.write("remove_schedule", work)
        self._speaker.say(Change.SCHEDULES)
        return done


def row_of(schedule: Schedule) -> tuple[Any, ...]:
    """Return the values of a schedule's row."""
    return (
        schedule.name, schedule.revision, schedule.state.due_at, schedule.spec.job.payload,
        definition_body(schedule), state_body(schedule.state),
    )  # fmt: skip
