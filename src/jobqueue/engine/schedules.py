"""Implement the calls that create, show, change and remove schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from jobqueue.core.clock import Clock
from jobqueue.core.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    JobQueueError,
    no_such_queue,
    without_trace,
)
from jobqueue.core.job import MAX_PAGE, JobSpec, SubmitResult
from jobqueue.core.schedule import (
    LABEL,
    MAX_DECLARED,
    MAX_SCHEDULES,
    Schedule,
    SchedulePage,
    ScheduleSpec,
    Source,
    check_schedule_name,
    create,
    no_such_schedule,
    pause,
    ran_by_hand,
    redefine,
    resume,
    too_many_schedules,
)
from jobqueue.core.store import Store
from jobqueue.core.waiting import JOB, turn
from jobqueue.engine import admission
from jobqueue.engine.paging import PAGE_BYTES, Pages
from jobqueue.engine.settings import EngineSettings
from jobqueue.engine.ticker import Ticker

_TRIES = 10  # a schedule can change between the read and the write, but not for ever
_PORTION = 50  # schedules read at once for a page
_FIELDS = 512  # about the bytes of a schedule without its labels and payload

Rule = Callable[[Schedule, float], Schedule | None]


class ScheduleCalls:
    """Implements ``core.api.ScheduleApi`` and ``declare_schedules`` of ``AttendanceApi``."""

    _store: Store
    _settings: EngineSettings
    _clock: Clock
    _pages: Pages
    _ticker: Ticker
    submit: Callable[[Sequence[JobSpec]], Awaitable[list[SubmitResult]]]

    async def create_schedule(self, spec: ScheduleSpec) -> Schedule:
        admission.check_schedule(spec)
        if not await self._store.queues.stats(spec.job.queue):
            raise no_such_queue(spec.job.queue)
        made = create(spec, Source.OPERATOR, self._clock.now(), 0.0)
        if not await self._create(made):
            raise AlreadyExists(f"name: there is a schedule {spec.name!r:.250} already")
        return made

    async def get_schedule(self, name: str) -> Schedule:
        check_schedule_name(name)
        found = await self._store.schedules.get([name])
        if not found:
            raise no_such_schedule(name)
        return found[0]

    async def list_schedules(self, limit: int = 100, page_token: str = "") -> SchedulePage:
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidArgument("limit", f"{limit} is outside 1 to {MAX_PAGE}")
        if page_token:
            check_schedule_name(page_token)
        page = SchedulePage([])
        size, after = 0, page_token
        while True:
            # Read one schedule more than fits into the page, to know if there is another page.
            count = min(_PORTION, limit + 1 - len(page.schedules))
            async with self._pages.line():
                await turn(count * JOB)
                found = await self._store.schedules.page(after, count)
            for one in found:
                size += _bytes_of(one)
                if len(page.schedules) == limit or (page.schedules and size > PAGE_BYTES):
                    page.next_page_token = after
                    return page
                page.schedules.append(one)
                after = one.name
            if len(found) < count:
                return page

    async def pause_schedule(self, name: str) -> Schedule:
        return await self._change(name, pause)

    async def resume_schedule(self, name: str) -> Schedule:
        return await self._change(name, resume)

    async def run_schedule(self, name: str) -> str:
        found = await self.get_schedule(name)
        job = replace(found.spec.job, labels={**found.spec.job.labels, LABEL: name})
        (result,) = await self.submit([job])
        job_id = result.unwrap()
        for _ in range(_TRIES):
            changed = ran_by_hand(found, job_id, self._clock.now())
            if (await self._store.schedules.advance([changed]))[0]:
                break
            again = await self._store.schedules.get([name])
            if not again:  # it was removed meanwhile; its job stays
                break
            found = again[0]
        return job_id

    async def remove_schedule(self, name: str) -> None:
        check_schedule_name(name)
        if not await self._store.schedules.remove(name):
            raise no_such_schedule(name)
        self._ticker.nudge()

    async def declare_schedules(self, specs: Sequence[ScheduleSpec]) -> list[JobQueueError | None]:
        if len(specs) > MAX_DECLARED:
            raise InvalidArgument(
                "schedules", f"has {len(specs)} items; at most {MAX_DECLARED} are allowed"
            )
        answers: list[JobQueueError | None] = []
        for spec in specs:
            await turn(JOB)
            try:
                admission.check_schedule(spec)
                await self._declare(spec)
            except (InvalidArgument, Conflict) as error:
                answers.append(without_trace(error))
            else:
                answers.append(None)
        return answers

    async def _declare(self, spec: ScheduleSpec) -> None:
        catch_up = self._settings.ticks.limit(spec)
        for _ in range(_TRIES):
            now = self._clock.now()
            known = await self._store.schedules.get([spec.name])
            if not known:
                if await self._create(create(spec, Source.CODE, now, catch_up)):
                    return
                continue  # another worker was faster
            if known[0].source is not Source.CODE:
                raise Conflict(
                    f"schedule {spec.name!r:.250} was made by an operator, so the code does not"
                    " change it; give the schedule in the code another name, or remove the"
                    " operator's: jq-ctl schedule remove NAME"
                )
            changed = redefine(known[0], spec, now)
            if changed is None or await self._store.schedules.change(changed):
                if changed is not None:
                    self._ticker.nudge()
                return
        raise _changes_too_fast(spec.name)

    async def _create(self, schedule: Schedule) -> bool:
        if await self._store.schedules.count() >= MAX_SCHEDULES:
            raise too_many_schedules()
        created = await self._store.schedules.create(schedule)
        self._ticker.nudge()
        return created

    async def _change(self, name: str, rule: Rule) -> Schedule:
        for _ in range(_TRIES):
            found = await self.get_schedule(name)
            changed = rule(found, self._clock.now())
            if changed is None:
                return found
            if await self._store.schedules.change(changed):
                self._ticker.nudge()
                return changed
        raise _changes_too_fast(name)


def _changes_too_fast(name: str) -> Conflict:
    return Conflict(f"schedule {name!r:.250} changes too fast; try again")


def _bytes_of(schedule: Schedule) -> int:
    labels = schedule.spec.job.labels.items()
    return _FIELDS + sum(len(name) + len(value) for name, value in labels)
