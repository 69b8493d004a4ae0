"""Keep schedules in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobqueue.core.schedule import Schedule
from jobqueue.core.store import DueSchedules, Term, TermEnded
from jobqueue.stores.redis.documents import number, opaque, packed_term
from jobqueue.stores.redis.runner import ScriptRunner
from jobqueue.stores.schedule_rows import definition_body, read_schedule, state_body


class RedisSchedules:
    """Implements ``core.store.ScheduleStore``."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner

    async def due(self, now: float) -> DueSchedules:
        names, *next_at = await self._runner.read("due_schedules", (now,))
        found = tuple(name.decode() for name in names)
        return DueSchedules(found, number(next_at[0]) if next_at else None)

    async def get(self, names: Sequence[str]) -> list[Schedule]:
        rows = await self._runner.read("get_schedules", (sorted(set(names)),))
        return [schedule_of(*row) for row in rows]

    async def page(self, after: str, limit: int) -> list[Schedule]:
        rows = await self._runner.read("list_schedules", (after, limit))
        return [schedule_of(row[0], row[1], row[2], row[3], b"") for row in rows]

    async def count(self) -> int:
        key = f"{self._runner.prefix}schedules"
        return int(await self._runner.command("count_schedules", "ZCARD", key))

    async def create(self, schedule: Schedule) -> bool:
        return await self._runner.write("create_schedule", (packed_schedule(schedule),)) is not None

    async def change(self, schedule: Schedule) -> bool:
        return await self._runner.write("change_schedule", (packed_schedule(schedule),)) is not None

    async def advance(self, schedules: Sequence[Schedule], term: Term | None = None) -> list[bool]:
        rows = [packed_schedule(one)[:4] for one in schedules]
        said = await self._runner.write("advance_schedules", (packed_term(term), rows))
        if said is None:
            raise TermEnded
        return [bool(done) for done in said]

    async def remove(self, name: str) -> bool:
        return await self._runner.write("remove_schedule", (name,)) is not None


def packed_schedule(schedule: Schedule) -> tuple[Any, ...]:
    """Return a schedule in the form that ``scripts/schedules.lua`` reads."""
    return (
        schedule.name, schedule.revision, schedule.state.due_at, state_body(schedule.state),
        definition_body(schedule), opaque(schedule.spec.job.payload),
    )  # fmt: skip


def schedule_of(
    name: bytes, revision: bytes, definition: bytes, state: bytes, payload: bytes
) -> Schedule:
    """Return the schedule in a row of ``get_schedules`` in ``scripts/schedules.lua``."""
    return read_schedule(name.decode(), int(revision), definition, state, payload)
