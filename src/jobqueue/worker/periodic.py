"""Submit a job at each fire time of a schedule. Fire times are also called ticks.

Every worker process of an app submits the jobs of all schedules. The key of a job is
``cron:<schedule>:<fire time in UTC>``, so that all processes together submit only one job for each
tick. No leader is needed, nothing but the job is stored, and any of the processes may die. Each
process uses its own wall clock. A process with a late clock finds that the job exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from jobqueue.core.clock import Clock, SystemClock
from jobqueue.core.cron import Cron, utc_text
from jobqueue.core.errors import InvalidArgument, JobQueueError, KeyConflict
from jobqueue.core.ids import TICKS
from jobqueue.core.job import JobSpec, SubmitResult, SubmitStatus
from jobqueue.core.waiting import is_set_within

log = logging.getLogger("jobqueue.periodic")

CATCH_UP = 3600.0
ON_TIME = 15.0  # seconds that a tick may be late without counting as missed
LABEL = "cron"
MAX_NAME_LENGTH = 200
_LONGEST_WAIT = 10.0  # between two reads of the wall clock, which may be changed at any time
_SHORTEST_WAIT = 0.001  # because a timer may fire a little too early
_RETRIES = (1.0, 2.0, 4.0, 8.0)  # seconds; later retries wait ``_LONGEST_WAIT``
_STOP_GRACE = 2.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Describes a job of which a copy is submitted at each fire time of a cron expression."""

    name: str
    cron: Cron
    spec: JobSpec

    def tick(self, moment: float) -> JobSpec:
        """Return the job to submit for the fire time ``moment``, with the key of this fire time."""
        return replace(
            self.spec,
            key=f"{TICKS}{self.name}:{utc_text(moment)}",
            labels={**self.spec.labels, LABEL: self.name},
        )


class Submits(Protocol):
    """The part of a backend that ``Periodic`` calls."""

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        """Submit jobs; return one result for each, in the same order."""
        ...


class Track:
    """Tracks which tick of one schedule must be submitted now, and when the next tick is.

    Only the newest tick is submitted, even if this process was suspended and missed several ticks.
    A tick that must be submitted now is called due.
    """

    def __init__(self, schedule: Schedule, now: float, catch_up: float) -> None:
        self.name = schedule.name
        self._cron = schedule.cron
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
        schedules: Iterable[Schedule],
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
            track = Track(schedule, now, self.catch_up)
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

    async def _follow(self, schedule: Schedule, track: Track) -> None:
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

    async def _step(self, schedule: Schedule, track: Track) -> float:
        """Submit the job of the due tick, if any; return the seconds until the next step."""
        now = self._clock.now()
        due = track.look(now)
        if due is None:
            return track.next - now
        if await self._submit(schedule, due):
            track.settled()
            return 0.0
        return track.failed()

    async def _submit(self, schedule: Schedule, moment: float) -> bool:
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
