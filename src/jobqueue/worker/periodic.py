"""Periodic tasks: at each fire time of a schedule, its job is submitted under the tick's own key.

Every worker process of an app runs this. The key, ``cron:<schedule>:<fire time in UTC>``, makes
one job of a tick however many processes submit it: no leader is needed, only the job is stored,
and a process may die at the tick while another one lives. Each process uses its own wall clock: a
late one finds the job submitted already.
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
_LONGEST_WAIT = 10.0  # between two looks at the wall clock, which may be set at any time
_SHORTEST_WAIT = 0.001  # a timer may end a little before the fire time
_RETRIES = (1.0, 2.0, 4.0, 8.0)  # then every ``_LONGEST_WAIT``
_STOP_GRACE = 2.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """A job and its fire times."""

    name: str
    cron: Cron
    spec: JobSpec

    def tick(self, moment: float) -> JobSpec:
        """Return the job of one fire time."""
        return replace(
            self.spec,
            key=f"{TICKS}{self.name}:{utc_text(moment)}",
            labels={**self.spec.labels, LABEL: self.name},
        )


class Submits(Protocol):
    """The part of a backend that ticks need."""

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        """Submit jobs; one result each, in order."""
        ...


class Track:
    """Follows one schedule: the tick that is owed now, and the time of the next look.

    At most one tick is owed, the newest, however long this process slept.
    """

    def __init__(self, schedule: Schedule, now: float, catch_up: float) -> None:
        self.name = schedule.name
        self._cron = schedule.cron
        self._patience = max(catch_up, ON_TIME)
        self._failures = 0
        self.next = self._cron.next(now)
        self._owed = self._newest(now, catch_up) if catch_up > 0 else None
        log.info(
            "cron %r: next at %s; ticks before %s are not made up for",
            self.name,
            utc_text(self.next),
            utc_text(self.next if self._owed is None else self._owed),
        )

    def look(self, now: float) -> float | None:
        """Return the fire time to submit now, or None."""
        upcoming = self._cron.next(now)
        if upcoming < self.next:
            log.info("cron %r: the clock was set back to %s", self.name, utc_text(now))
            self.next = upcoming
            self._owed = self._newest(now, self._patience)
        if now >= self.next:
            newest = self._cron.previous(now)
            if self._owed is not None or newest > self.next:
                first = self.next if self._owed is None else self._owed
                self._skipped(first, newest, f"the newest one, {utc_text(newest)}, counts")
            self._owed, self.next, self._failures = newest, upcoming, 0
        if self._owed is not None and now - self._owed > self._patience:
            self._skipped(self._owed, upcoming, f"later than {self._patience:g} s")
            self._owed = None
        return self._owed

    def settled(self) -> None:
        """The owed tick was submitted, by this or another process, or was refused for good."""
        self._owed, self._failures = None, 0

    def failed(self) -> float:
        """The owed tick could not be submitted; returns the seconds before the next try."""
        self._failures += 1
        return _RETRIES[self._failures - 1] if self._failures <= len(_RETRIES) else _LONGEST_WAIT

    def _newest(self, now: float, patience: float) -> float | None:
        """Return the latest tick, unless it is too old. It may have been submitted already."""
        newest = self._cron.previous(now)
        return newest if now - newest <= patience else None

    def _skipped(self, first: float, end: float, why: str) -> None:
        log.warning(
            "cron %r: skipped the ticks from %s on, before %s: %s",
            self.name,
            utc_text(first),
            utc_text(end),
            why,
        )


class Periodic:
    """Submits the jobs of schedules between ``start`` and ``stop``."""

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
        """End every task; a submit under way gets a moment. May be called twice."""
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
            except Exception:  # for example a clock beyond the calendar, until it is set right
                log.exception("cron %r: cannot tell which tick is due", schedule.name)
                wait = self._longest_wait
            pause = min(max(wait, _SHORTEST_WAIT), self._longest_wait)
            await is_set_within(self._stopping, pause)

    async def _step(self, schedule: Schedule, track: Track) -> float:
        """Submit the tick that is due; returns the seconds until the next step."""
        now = self._clock.now()
        due = track.look(now)
        if due is None:
            return track.next - now
        if await self._submit(schedule, due):
            track.settled()
            return 0.0
        return track.failed()

    async def _submit(self, schedule: Schedule, moment: float) -> bool:
        """Submit a tick; False if it is worth trying again."""
        spec = schedule.tick(moment)
        try:
            (result,) = await self._backend.submit([spec])
            result.unwrap()
        except KeyConflict as error:
            # Another version of the app submitted this tick first, with other arguments.
            log.info("cron %r: job %s has this tick already", schedule.name, error.job_id)
            return True
        except InvalidArgument:
            log.exception("cron %r: the job of %s was refused", schedule.name, utc_text(moment))
            return True
        except JobQueueError as error:
            log.warning(
                "cron %r: the job of %s is not submitted yet: %s",
                schedule.name,
                utc_text(moment),
                error,
            )
            return False
        except Exception:
            log.exception(
                "cron %r: cannot submit the job of %s, trying again",
                schedule.name,
                utc_text(moment),
            )
            return False
        if result.status is SubmitStatus.ACCEPTED:
            log.info(
                "cron %r: submitted the job of %s",
                schedule.name,
                utc_text(moment),
                extra={"job_id": result.job_id, "queue": spec.queue},
            )
        return True
