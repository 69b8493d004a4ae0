"""Declare the schedules of an app's code, so that the leader submits their jobs.

A server of an earlier version does not know schedules. Then every worker process submits the jobs
itself at each fire time (tick). The key of a job is ``cron:<schedule>:<fire time in UTC>``, so that
all processes together submit only one job for each tick. Each process uses its own wall clock. A
process with a late clock finds that the job exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from jobqueue.core.clock import Clock, SystemClock
from jobqueue.core.cron import utc_text
from jobqueue.core.errors import InvalidArgument, JobQueueError, KeyConflict, UnknownCall
from jobqueue.core.job import JobSpec, SubmitResult, SubmitStatus
from jobqueue.core.schedule import CATCH_UP, MAX_DECLARED, ON_TIME, ScheduleSpec
from jobqueue.core.waiting import GrowingPause, is_set_within

log = logging.getLogger("jobqueue.periodic")

_SHOWN = 20  # names in a line of the log
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # before schedules are declared again
_LONGEST_WAIT = 10.0  # between two reads of the wall clock, which may be changed at any time
_SHORTEST_WAIT = 0.001  # because a timer may fire a little too early
_RETRIES = (1.0, 2.0, 4.0, 8.0)  # seconds; later retries wait ``_LONGEST_WAIT``
_STOP_GRACE = 2.0


class Submits(Protocol):
    """The part of a backend that ``Periodic`` calls."""

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        """Submit jobs; return one result for each, in the same order."""
        ...


class Declares(Submits, Protocol):
    """The part of a backend that ``CodeSchedules`` calls."""

    async def declare_schedules(self, specs: Sequence[ScheduleSpec]) -> list[JobQueueError | None]:
        """Create or change schedules; return None or an error for each, in the same order."""
        ...


class CodeSchedules:
    """Declares the schedules of an app's code, and retries until a server has answered.

    A server that does not know schedules leaves the ticks to ``Periodic`` in this process.
    """

    def __init__(
        self, backend: Declares, schedules: Iterable[ScheduleSpec], *, catch_up: float = CATCH_UP
    ) -> None:
        self._backend = backend
        self._schedules = [
            replace(one, catch_up=catch_up) if one.catch_up is None else one for one in schedules
        ]
        self.catch_up = catch_up
        self._task: asyncio.Task[None] | None = None
        self._periodic: Periodic | None = None

    def start(self) -> None:
        """Begin to declare the schedules, in the background."""
        if self._schedules:
            self._task = asyncio.create_task(self._declare_all(), name="declare-schedules")

    async def stop(self) -> None:
        """Stop declaring. The declared schedules stay. May be called twice, or before a start."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._end_fallback()

    async def _declare_all(self) -> None:
        for first in range(0, len(self._schedules), MAX_DECLARED):
            part = self._schedules[first : first + MAX_DECLARED]
            answers = await self._declare(part)
            for spec, error in zip(part, answers, strict=True):
                if error is not None:
                    log.error("schedule %r is not declared: %s", spec.name, error)
        names = [one.name for one in self._schedules]
        more = "" if len(names) <= _SHOWN else f" and {len(names) - _SHOWN} more"
        log.info("declared the schedules of the code: %s%s", ", ".join(names[:_SHOWN]), more)

    async def _declare(self, part: Sequence[ScheduleSpec]) -> list[JobQueueError | None]:
        """Declare schedules, with retries, and return the server's answers."""
        pause = GrowingPause(_FIRST_PAUSE, _LONGEST_PAUSE)
        failing = False
        while True:
            try:
                answers = await self._backend.declare_schedules(part)
                await self._end_fallback()
                return answers
            except UnknownCall:
                self._fall_back()
            except JobQueueError as error:
                if not failing:
                    log.warning("cannot declare the schedules of the code: %s; trying again", error)
                failing = True
            except Exception:
                log.exception("declaring the schedules of the code failed; trying again")
            await pause.wait()

    def _fall_back(self) -> None:
        """Submit the jobs of the schedules in this process, until a newer server has answered."""
        if self._periodic is None:
            log.info(
                "the server has an earlier version, so this process submits the jobs of %d"
                " schedules itself",
                len(self._schedules),
            )
            self._periodic = Periodic(self._backend, self._schedules, catch_up=self.catch_up)
            self._periodic.start()

    async def _end_fallback(self) -> None:
        periodic, self._periodic = self._periodic, None
        if periodic is not None:
            await periodic.stop()


class Track:
    """Tracks which tick of one schedule must be submitted now, and when the next tick is.

    Only the newest tick is submitted, even if this process was suspended and missed several ticks.
    A tick that must be submitted now is called due.
    """

    def __init__(self, schedule: ScheduleSpec, now: float, catch_up: float) -> None:
        self.name = schedule.name
        self._cron = schedule.timing
        self._patience = max(catch_up, ON_TIME)
        self._failures = 0
        self.next = self._cron.next(now)
        self._due = self._newest(now, catch_up) if catch_up > 0 else None
        log.info(
            "cron %r: the next job is submitted at %s; jobs for ticks before %s are not submitted",
            self.name,
            utc_text(self.next),
            utc_text(self.next if self._due is None else self._due),
        )

    def look(self, now: float) -> float | None:
        """Return the fire time whose job must be submitted now, or None."""
        upcoming = self._cron.next(now)
        if upcoming < self.next:
            log.info(
                "cron %r: the system clock was set back to %s; the next job is submitted at %s",
                self.name,
                utc_text(now),
                utc_text(upcoming),
            )
            self.next = upcoming
            self._due = self._newest(now, self._patience)
        if now >= self.next:
            newest = self._cron.previous(now)
            if self._due is not None or newest > self.next:
                first = self.next if self._due is None else self._due
                self._skipped(
                    first, newest, f"only the newest tick, {utc_text(newest)}, is submitted"
                )
            self._due, self.next, self._failures = newest, upcoming, 0
        if self._due is not None and now - self._due > self._patience:
            self._skipped(self._due, upcoming, f"they are more than {self._patience:g} s late")
            self._due = None
        return self._due

    def settled(self) -> None:
        """Record that the due tick was submitted, or refused for good: no submit is due now."""
        self._due, self._failures = None, 0

    def failed(self) -> float:
        """Record that a submit of the due tick failed; return the seconds before the next try."""
        self._failures += 1
        return _RETRIES[self._failures - 1] if self._failures <= len(_RETRIES) else _LONGEST_WAIT

    def _newest(self, now: float, patience: float) -> float | None:
        """Return the latest tick, or None if it is older than ``patience`` seconds.

        Its job may have been submitted already.
        """
        newest = self._cron.previous(now)
        return newest if now - newest <= patience else None

    def _skipped(self, first: float, end: float, why: str) -> None:
        log.warning(
            "cron %r: the jobs for the ticks from %s to before %s are not submitted: %s",
            self.name,
            utc_text(first),
            utc_text(end),
            why,
        )


class Periodic:
    """Submits the jobs of all schedules at their fire times, from ``start`` until ``stop``."""

    def __init__(
        self,
        backend: Submits,
        schedules: Iterable[ScheduleSpec],
        *,
        catch_up: float = CATCH_UP,
        clock: Clock | None = None,
        longest_wait: float = _LONGEST_WAIT,
    ) -> None:
        self._backend = backend
        self._schedules = tuple(schedules)
        self.catch_up = catch_up
        self._clock = clock or SystemClock()
        self._longest_wait = longest_wait
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start a task for each schedule, so that a slow submit delays no other schedule."""
        now = self._clock.now()
        for schedule in self._schedules:
            late = self.catch_up if schedule.catch_up is None else schedule.catch_up
            track = Track(schedule, now, late)
            self._tasks.append(
                asyncio.create_task(self._follow(schedule, track), name=f"cron-{schedule.name}")
            )

    async def stop(self) -> None:
        """Stop submitting jobs; a running submit has a short time to end. May be called twice."""
        self._stopping.set()
        tasks, self._tasks = self._tasks, []
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_STOP_GRACE)
            for task in late:
                task.cancel()  # if its job was submitted nevertheless, the key prevents another
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, schedule: ScheduleSpec, track: Track) -> None:
        while not self._stopping.is_set():
            try:
                wait = await self._step(schedule, track)
            except Exception:  # for example a clock that is set to a year beyond the calendar
                wait = self._longest_wait
                log.exception(
                    "cron %r: cannot compute which job is due; trying again in %g s",
                    schedule.name,
                    wait,
                )
            pause = min(max(wait, _SHORTEST_WAIT), self._longest_wait)
            await is_set_within(self._stopping, pause)

    async def _step(self, schedule: ScheduleSpec, track: Track) -> float:
        """Submit the job of the due tick, if any; return the seconds until the next step."""
        now = self._clock.now()
        due = track.look(now)
        if due is None:
            return track.next - now
        if await self._submit(schedule, due):
            track.settled()
            return 0.0
        return track.failed()

    async def _submit(self, schedule: ScheduleSpec, moment: float) -> bool:
        """Submit the job of a tick; return False if the submit must be tried again."""
        spec = schedule.tick(moment)
        try:
            (result,) = await self._backend.submit([spec])
            result.unwrap()
        except KeyConflict as error:
            # Another version of the app submitted this tick first, with other arguments.
            log.info(
                "cron %r: another version of the app has already submitted job %s for %s",
                schedule.name,
                error.job_id,
                utc_text(moment),
            )
            return True
        except InvalidArgument:
            log.exception(
                "cron %r: the job for %s was refused and is not submitted again",
                schedule.name,
                utc_text(moment),
            )
            return True
        except JobQueueError as error:
            log.warning(
                "cron %r: cannot submit the job for %s: %s; trying again",
                schedule.name,
                utc_text(moment),
                error,
            )
            return False
        except Exception:
            log.exception(
                "cron %r: cannot submit the job for %s; trying again",
                schedule.name,
                utc_text(moment),
            )
            return False
        if result.status is SubmitStatus.ACCEPTED:
            log.info(
                "cron %r: submitted job %s for %s",
                schedule.name,
                result.job_id,
                utc_text(moment),
                extra={"job_id": result.job_id, "queue": spec.queue},
            )
        return True
