"""Keep the schedules of a memory store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobqueue.core.schedule import Schedule
from jobqueue.core.store import DueSchedules, Term
from jobqueue.core.stream import ScheduleChange
from jobqueue.stores.memory.contents import Contents, MemoryPart


class MemorySchedules(MemoryPart):
    """Implements ``core.store.ScheduleStore``. A schedule is never changed, only replaced."""

    def __init__(self, contents: Contents) -> None:
        super().__init__(contents)
        self._schedules = contents.schedules

    async def due(self, now: float) -> DueSchedules:
        times = [
            (one.state.due_at, name)
            for name, one in self._schedules.items()
            if one.state.due_at is not None
        ]
        names = tuple(name for at, name in sorted(times) if at <= now)
        return DueSchedules(names, min((at for at, _ in times if at > now), default=None))

    async def get(self, names: Sequence[str]) -> list[Schedule]:
        return [self._schedules[name] for name in sorted(set(names)) if name in self._schedules]

    async def page(self, after: str, limit: int) -> list[Schedule]:
        names = sorted(name for name in self._schedules if name > after)[:limit]
        return [_without_payload(self._schedules[name]) for name in names]

    async def count(self) -> int:
        return len(self._schedules)

    async def create(self, schedule: Schedule) -> bool:
        if schedule.name in self._schedules:
            return False
        self._put(ScheduleChange.CREATED, schedule)
        return True

    async def change(self, schedule: Schedule) -> bool:
        if not self._precedes(schedule):
            return False
        self._put(ScheduleChange.CHANGED, schedule)
        return True

    async def advance(self, schedules: Sequence[Schedule], term: Term | None = None) -> list[bool]:
        if term is not None:
            self._check_term(term)
        done: list[bool] = []
        for one in schedules:
            done.append(self._precedes(one))
            if done[-1]:
                known = self._schedules[one.name]
                self._put(ScheduleChange.TICKED, known.after(one.state))
        return done

    async def remove(self, name: str) -> bool:
        found = self._schedules.pop(name, None)
        if found is None:
            return False
        self._log.put_schedule(ScheduleChange.REMOVED, found, self._clock.now())
        return True

    def _precedes(self, schedule: Schedule) -> bool:
        known = self._schedules.get(schedule.name)
        return known is not None and known.revision == schedule.revision - 1

    def _put(self, change: ScheduleChange, schedule: Schedule) -> None:
        self._schedules[schedule.name] = schedule
        self._log.put_schedule(change, schedule, self._clock.now())


def _without_payload(schedule: Schedule) -> Schedule:
    job = replace(schedule.spec.job, payload=b"")
    return replace(schedule, spec=replace(schedule.spec, job=job))
