"""Submit the jobs of schedules at their ticks, while this server leads.

The leader submits the job of a tick under a key that names the schedule and the tick, and then
records the tick under its term. If it dies in between, the next leader submits the same tick again
and gets the same job. So no tick is submitted twice and none is lost, and the workers of earlier
versions, which submit ticks themselves with the same keys, may run at the same time.

Schedules are read from the store when they are due, so that a change takes effect at once. Without
any schedule, the leader reads one small table every few seconds, and other servers read nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from jobqueue.core.clock import Clock
from jobqueue.core.cron import utc_text
from jobqueue.core.errors import JobQueueError, KeyConflict
from jobqueue.core.job import JobSpec, SubmitResult, SubmitStatus
from jobqueue.core.observer import reach
from jobqueue.core.schedule import (
    MAX_SCHEDULES,
    Overlap,
    Schedule,
    ScheduleState,
    TickOutcome,
    TickPlan,
    TickRules,
    plan,
    settle,
)
from jobqueue.core.store import ANY_VERSION, JobReads, ScheduleStore, Store, Term, TermEnded
from jobqueue.core.waiting import Background, GrowingPause, is_set_within

_log = logging.getLogger("jobqueue.engine.schedules")
_LOOK = 5.0  # the longest pause: a hint may be lost, and the clock may be set
_STANDBY = 0.25  # between two looks of a standby, which read nothing from the store
_POLL = 0.5  # between two looks while a tick waits for the end of a job
_SHORTEST = 0.001  # the shortest pause, because a timer may end a little too early
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 10.0
_TOGETHER = 100  # schedules in one write
_FREQUENT = 60  # seconds: the jobs of more frequent schedules are logged for debugging only

Submit = Callable[[Sequence[JobSpec]], Awaitable[list[SubmitResult]]]


@dataclass(slots=True)
class _Looked:
    """The result of looking at schedules that were due."""

    advanced: bool = False  # some were advanced, so their next ticks must be read
    waiting: bool = False  # a tick waits for the end of a job
    failing: bool = False  # a tick could not be submitted

    def add(self, other: _Looked) -> None:
        self.advanced |= other.advanced
        self.waiting |= other.waiting
        self.failing |= other.failing


class Ticker(Background):
    """Submits and records the ticks of all schedules while ``term()`` returns a term."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        rules: TickRules,
        submit: Submit,
        term: Callable[[], Term | None],
        term_ended: Callable[[], None],
    ) -> None:
        self._schedules: ScheduleStore = store.schedules
        self._busy = _LastJobs(store.reads)
        self._clock = clock
        self._rules = rules
        self._submit = submit
        self._term = term
        self._term_ended = term_ended
        self._nudge = asyncio.Event()
        self._retry = GrowingPause(_FIRST_RETRY, _LONGEST_RETRY, draw=None)
        self._failing = False

    def start(self) -> None:
        self._begin(self._run(), "ticker")

    def nudge(self) -> None:
        """Look at the schedules now, because one of them has changed."""
        self._nudge.set()

    async def _run(self) -> None:
        while True:
            self._nudge.clear()
            pause = _STANDBY
            term = self._term()
            if term is not None:
                pause = await self._look_safely(term)
            await is_set_within(self._nudge, max(pause, _SHORTEST))

    async def _look_safely(self, term: Term) -> float:
        try:
            pause = await self.look(term)
        except TermEnded:
            self._term_ended()
            return _STANDBY
        except JobQueueError as error:
            if not self._failing:
                _log.warning("cannot submit the jobs of schedules: %s; trying again", error)
            self._failing = True
            return self._retry.next()
        except Exception:
            _log.exception("submitting the jobs of schedules failed; trying again")
            return self._retry.next()
        if self._failing:
            self._failing = False
            _log.info("the jobs of schedules are submitted again")
        return pause

    async def look(self, term: Term) -> float:
        """Submit and record the ticks that are due; return the seconds until the next look."""
        due = await self._schedules.due(self._clock.now())
        looked = _Looked()
        for first in range(0, len(due.names), _TOGETHER):
            looked.add(await self._fire(due.names[first : first + _TOGETHER], term))
        if looked.advanced:
            self._retry.reset()
            return 0.0
        pauses = [_LOOK]
        if looked.waiting:
            pauses.append(_POLL)
        if looked.failing:
            pauses.append(self._retry.next())
        if due.next_at is not None:
            pauses.append(due.next_at - self._clock.now())
        return min(pauses)

    async def _fire(self, names: Sequence[str], term: Term) -> _Looked:
        schedules = await self._schedules.get(names)
        busy = await self._busy.of(schedules)
        now = self._clock.now()
        plans = [self._plan(one, now, one.name in busy) for one in schedules]
        specs = [
            one.spec.tick(tick)
            for one, made in zip(schedules, plans, strict=True)
            for tick in made.ticks
        ]
        results: list[SubmitResult] = []
        if specs:
            if self._term() != term:
                raise TermEnded
            results = await self._submit(specs)
            await reach("ticker.submitted")
        changed: list[Schedule] = []
        looked = _Looked()
        at = 0
        for one, made in zip(schedules, plans, strict=True):
            end = at + len(made.ticks)
            state = self._settled(one, made, results[at:end])
            at = end
            looked.waiting |= state.waiting_at is not None
            looked.failing |= bool(state.problem) and state.due_at == one.state.due_at
            if state != one.state:
                changed.append(one.after(state))
        if changed:
            await self._record(schedules, changed, term, looked)
        return looked

    async def _record(
        self,
        schedules: Sequence[Schedule],
        changed: Sequence[Schedule],
        term: Term,
        looked: _Looked,
    ) -> None:
        done = await self._schedules.advance(changed, term)
        before = {one.name: one.state for one in schedules}
        for one, recorded in zip(changed, done, strict=True):
            # A schedule that was changed meanwhile is read again by the next look. The tick's key
            # prevents a second job.
            looked.advanced |= not recorded or one.state.due_at != before[one.name].due_at
            said = one.state.problem
            if recorded and said and said != before[one.name].problem:
                _log.warning("schedule %r: cannot submit its job: %s", one.name, said)

    def _plan(self, schedule: Schedule, now: float, busy: bool) -> TickPlan:
        try:
            made = plan(schedule, now, self._rules, busy=busy)
        except (JobQueueError, ValueError, OverflowError) as error:
            # For example a time zone that is not known here, or a clock beyond the calendar.
            said = f"its next tick cannot be computed: {error}"
            return TickPlan((), replace(schedule.state, problem=said))
        for note in made.notes:
            _log.warning("schedule %r: %s", schedule.name, note)
        return made

    def _settled(
        self, schedule: Schedule, made: TickPlan, results: Sequence[SubmitResult]
    ) -> ScheduleState:
        if not made.ticks:
            return made.state
        outcomes = [
            _outcome(schedule, tick, result)
            for tick, result in zip(made.ticks, results, strict=True)
        ]
        return settle(schedule.state, made, outcomes)


class _LastJobs:
    """Finds out which schedules have a last job that is unfinished."""

    def __init__(self, reads: JobReads) -> None:
        self._reads = reads
        self._seqs: dict[str, int] = {}  # by job id, of the jobs that were unfinished last time

    async def of(self, schedules: Sequence[Schedule]) -> set[str]:
        """Return the names of the schedules whose last job is unfinished.

        Schedules whose jobs may overlap are left out.
        """
        found: dict[str, int] = {}
        for one in schedules:
            job_id = one.state.last_job_id
            if one.spec.overlap is Overlap.ALLOW or not job_id:
                continue
            seq = self._seqs.get(job_id) or await self._reads.seq_of(job_id)
            if seq is not None:
                found[one.name] = self._seqs[job_id] = seq
        if not found:
            return set()
        ended = set(await self._reads.moved_on(dict.fromkeys(found.values(), ANY_VERSION)))
        busy = {name for name, seq in found.items() if seq not in ended}
        for one in schedules:
            if one.name not in busy:
                self._seqs.pop(one.state.last_job_id, None)
        if len(self._seqs) > 2 * MAX_SCHEDULES:  # jobs of schedules that were removed
            self._seqs.clear()
        return busy


def _outcome(schedule: Schedule, tick: float, result: SubmitResult) -> TickOutcome:
    error = result.error
    if isinstance(error, KeyConflict):
        # A worker of an earlier version submitted this tick first, with other arguments.
        _log.info(
            "schedule %r: an older worker has already submitted job %s for the tick at %s",
            schedule.name,
            error.job_id,
            utc_text(tick),
        )
        return TickOutcome(error.job_id)
    if error is not None:
        return TickOutcome(error=error)
    if result.status is SubmitStatus.ACCEPTED:
        frequent = schedule.spec.every is not None and schedule.spec.every < _FREQUENT
        _log.log(
            logging.DEBUG if frequent else logging.INFO,
            "schedule %r: submitted job %s for the tick at %s",
            schedule.name,
            result.job_id,
            utc_text(tick),
            extra={"job_id": result.job_id, "queue": schedule.spec.job.queue},
        )
    return TickOutcome(result.job_id)
