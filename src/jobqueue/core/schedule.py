"""Define schedules, and the rules by which their ticks become jobs.

A *tick* is one fire time of a schedule. The leader submits the job of each tick and then records
the tick in the store. The functions of this module decide which ticks are submitted, which are
skipped, and what is recorded; they read no clock and no store.

All times are whole seconds since the epoch, so that no conversion to a message or a document
changes them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Protocol

from jobqueue.core.cron import Cron, utc_text
from jobqueue.core.errors import Conflict, InvalidArgument, JobQueueError, NotFound
from jobqueue.core.ids import TICKS
from jobqueue.core.job import JobSpec, bounded
from jobqueue.core.texts import check_text

LABEL = "cron"
"""The label with which the jobs of a schedule name their schedule."""
CATCH_UP = 3600.0
ON_TIME = 15.0  # seconds that a tick may be late without counting as missed
MAX_SCHEDULES = 10_000  # in one store
MAX_NAME_LENGTH = 200
MAX_EVERY = 366 * 86_400
MAX_PAYLOAD_BYTES = 64 * 1024  # of the job of a schedule
MAX_DECLARED = 1_000  # schedules that one call of a worker may declare
_COUNTED_TO = 1_000  # skipped ticks are counted up to this number
_SHORT = 300  # bytes of a reason that is stored with a schedule
_MOMENT = 0.001


class Timing(Protocol):
    """Computes the fire times of a schedule. ``Cron`` and ``FixedInterval`` implement it."""

    def next(self, after: float) -> float:
        """Return the first fire time later than ``after``."""

    def previous(self, until: float) -> float:
        """Return the last fire time that is not later than ``until``."""


@dataclass(frozen=True, slots=True)
class FixedInterval:
    """Fires at every multiple of ``seconds`` since the epoch.

    The fire times do not depend on when a schedule was created, so every process computes the same
    ones, and a schedule that is removed and created again keeps them.
    """

    seconds: int

    def next(self, after: float) -> float:
        return float((math.floor(after) // self.seconds + 1) * self.seconds)

    def previous(self, until: float) -> float:
        return float(math.floor(until) // self.seconds * self.seconds)


class Overlap(enum.StrEnum):
    """Says what happens at a tick while the schedule's last job is unfinished."""

    ALLOW = "allow"  # the tick's job is submitted nevertheless
    SKIP = "skip"  # the tick is skipped
    QUEUE = "queue"  # the tick waits until the last job has ended; at most one tick waits


class Source(enum.StrEnum):
    """The origin of a schedule: code or an operator."""

    CODE = "code"  # a worker declared it, from ``@app.task(cron=...)`` or ``app.periodic``
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """The definition of a schedule: its name, its fire times, and the job to submit at each."""

    name: str
    job: JobSpec
    cron: str = ""  # five fields or a shorthand; empty if ``every`` is given
    every: int | None = None  # seconds
    timezone: str = "UTC"  # of ``cron``
    overlap: Overlap = Overlap.ALLOW
    catch_up: float | None = None  # seconds; None: the server's setting

    @property
    def timing(self) -> Timing:
        """Return the schedule's fire times. Raises InvalidArgument if they are not valid."""
        return timing_of(self.cron, self.every, self.timezone)

    def tick(self, moment: float) -> JobSpec:
        """Return the job to submit for the fire time ``moment``.

        Its idempotency key names the schedule and the fire time, so that a tick that is submitted
        twice is one job.
        """
        return replace(
            self.job,
            key=f"{TICKS}{self.name}:{utc_text(moment)}",
            labels={**self.job.labels, LABEL: self.name},
        )

    def check(self) -> None:
        """Raise InvalidArgument if a field is not valid.

        Of the job, only the rules that apply to jobs of schedules are checked.
        """
        check_schedule_name(self.name)
        _ = self.timing
        if self.catch_up is not None and not 0 <= self.catch_up <= MAX_EVERY:  # NaN, too
            raise InvalidArgument("catch_up", f"must be 0 to {MAX_EVERY} seconds")
        if len(self.job.payload) > MAX_PAYLOAD_BYTES:
            raise InvalidArgument(
                "payload",
                f"has {len(self.job.payload)} bytes; a schedule's job may have at most"
                f" {MAX_PAYLOAD_BYTES}",
            )
        if self.job.key is not None:
            raise InvalidArgument(
                "idempotency_key", "is not allowed: a schedule makes a key for each of its jobs"
            )
        if self.job.unique is not None:
            raise InvalidArgument(
                "unique",
                "is not allowed: a schedule's overlap says what happens while its last job is"
                " unfinished",
            )
        if self.job.run_at is not None:
            raise InvalidArgument(
                "run_at", "is not allowed: a schedule has its own times; use delay"
            )


def check_schedule_name(name: str) -> None:
    """Raise InvalidArgument unless a schedule may have this name."""
    check_text("name", name, MAX_NAME_LENGTH)


@lru_cache(maxsize=1_000)
def timing_of(cron: str, every: int | None, timezone: str) -> Timing:
    """Return the fire times of a cron expression or an interval.

    Raises InvalidArgument with the name of the field that is not valid.
    """
    if bool(cron) == (every is not None):
        raise InvalidArgument("cron", "give either cron or every")
    if every is None:
        return Cron.parse(cron, timezone)
    if type(every) is not int or not 1 <= every <= MAX_EVERY:
        raise InvalidArgument(
            "every", f"must be a whole number of seconds, 1 to {MAX_EVERY}, got {every!r:.80}"
        )
    if timezone != "UTC":
        raise InvalidArgument("timezone", "is only allowed together with cron")
    return FixedInterval(every)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """The last ticks of a schedule, and its next tick."""

    paused: bool = False
    next_at: float | None = None  # the next tick to submit or to skip; None while paused
    waiting_at: float | None = None  # the tick that waits for the end of the last job
    last_at: float | None = None  # the latest tick with a job, or the time of a run by hand
    last_job_id: str = ""
    skipped: int = 0  # ticks without a job
    skipped_at: float | None = None  # the latest of them
    skipped_why: str = ""
    problem: str = ""  # why the due tick could not be submitted; empty: no problem

    @property
    def due_at(self) -> float | None:
        """Return the time from which the leader must look at the schedule, or None."""
        if self.next_at is None or self.waiting_at is None:
            return self.next_at
        return min(self.next_at, self.waiting_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule as a store keeps it."""

    spec: ScheduleSpec
    source: Source
    created_at: float
    updated_at: float  # when the definition changed, or the schedule was paused or resumed
    revision: int = 1  # +1 with each write; a write names the revision that it replaces
    state: ScheduleState = field(default_factory=ScheduleState)

    @property
    def name(self) -> str:
        return self.spec.name

    def after(self, state: ScheduleState) -> Schedule:
        """Return the schedule with a new state and the next revision."""
        return replace(self, state=state, revision=self.revision + 1)


@dataclass(slots=True)
class SchedulePage:
    """One page of schedules, without their payloads. The token of the last page is empty."""

    schedules: list[Schedule]
    next_page_token: str = ""


def no_such_schedule(name: str) -> NotFound:
    return NotFound(f"name: there is no schedule {name!r:.250}; `jq-ctl schedule list` shows all")


def too_many_schedules() -> Conflict:
    return Conflict(
        f"there are {MAX_SCHEDULES} schedules, which is the most that a store may have; remove"
        " some: jq-ctl schedule remove NAME"
    )


# -- changes of a schedule ---------------------------------------------------------------------


def create(spec: ScheduleSpec, source: Source, now: float, catch_up: float) -> Schedule:
    """Return a new schedule.

    A schedule that code declares also counts its newest tick as missed, if that tick is at most
    ``catch_up`` seconds old: an earlier version, or a lost store, may not have submitted it.
    """
    timing, now = spec.timing, math.floor(now)
    next_at = timing.next(now)
    if source is Source.CODE and catch_up > 0 and now - timing.previous(now) <= catch_up:
        next_at = timing.previous(now)
    return Schedule(
        spec=spec,
        source=source,
        created_at=float(now),
        updated_at=float(now),
        state=ScheduleState(next_at=next_at),
    )


def redefine(schedule: Schedule, spec: ScheduleSpec, now: float) -> Schedule | None:
    """Return the schedule with a new definition, or None if the definition is the same.

    A paused schedule stays paused. New fire times begin after ``now``.
    """
    before = schedule.spec
    if spec == before:
        return None
    state = schedule.state
    if (spec.cron, spec.every, spec.timezone) != (before.cron, before.every, before.timezone):
        state = replace(state, waiting_at=None, problem="")
        if not state.paused:
            state = replace(state, next_at=spec.timing.next(now))
    return replace(schedule.after(state), spec=spec, updated_at=float(math.floor(now)))


def pause(schedule: Schedule, now: float) -> Schedule | None:
    """Return the schedule paused, or None if it is paused already. A waiting tick is skipped."""
    state = schedule.state
    if state.paused:
        return None
    if state.waiting_at is not None:
        state = _skip(state, 1, state.waiting_at, "the schedule was paused")
    state = replace(state, paused=True, next_at=None, waiting_at=None, problem="")
    return replace(schedule.after(state), updated_at=float(math.floor(now)))


def resume(schedule: Schedule, now: float) -> Schedule | None:
    """Return the schedule resumed, or None if it is not paused.

    The ticks of the pause are not submitted.
    """
    if not schedule.state.paused:
        return None
    state = replace(schedule.state, paused=False, next_at=schedule.spec.timing.next(now))
    return replace(schedule.after(state), updated_at=float(math.floor(now)))


def ran_by_hand(schedule: Schedule, job_id: str, now: float) -> Schedule:
    """Return the schedule after an operator has submitted its job."""
    state = replace(schedule.state, last_at=float(math.floor(now)), last_job_id=job_id)
    return schedule.after(state)


# -- ticks -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TickRules:
    """Limits how late a tick may be."""

    catch_up: float = CATCH_UP  # of schedules that have no limit of their own
    key_ttl: float = 86_400.0  # seconds; later a tick could become a second job
    grace: float = ON_TIME  # a tick that is at most this late does not count as missed

    def limit(self, spec: ScheduleSpec) -> float:
        """Return how late a missed tick of the schedule may still be submitted, in seconds."""
        said = self.catch_up if spec.catch_up is None else spec.catch_up
        return min(said, self.key_ttl)


@dataclass(frozen=True, slots=True)
class TickPlan:
    """The ticks to submit now, in order, and the state after all of them were submitted."""

    ticks: tuple[float, ...]
    state: ScheduleState
    notes: tuple[str, ...] = ()  # missed ticks and changes of the clock, for the log


def plan(schedule: Schedule, now: float, rules: TickRules, *, busy: bool) -> TickPlan:
    """Decide which ticks of a schedule are submitted now.

    ``busy`` says that the schedule's last job is unfinished. Every tick that is late by at most
    ``rules.grace`` is submitted, subject to the overlap policy, so that a change of the leader
    loses none. Of older ticks the newest is submitted if none is on time and it is within the
    limit of the schedule; the others are skipped.
    """
    spec, state = schedule.spec, schedule.state
    if state.next_at is None:
        return TickPlan((), state)
    timing = spec.timing
    upcoming = timing.next(now)
    notes: list[str] = []
    if state.next_at > upcoming + rules.grace:
        # Keys prevent a second job of a tick that was submitted before the clock was set back.
        state = replace(state, next_at=timing.next(now - rules.grace))
        notes.append(
            f"the clock was set back to {utc_text(now)}; the next tick is at"
            f" {utc_text(state.next_at or 0.0)}"
        )
    due: list[float] = []
    if state.next_at is not None and state.next_at <= now:
        due, state = _due(state, state.next_at, timing, now, rules.grace, rules.limit(spec), notes)
        state = replace(state, next_at=upcoming)
    ticks, state = _without_overlap(spec.overlap, state, due, busy)
    return TickPlan(tuple(ticks), state, tuple(notes))


def _due(
    state: ScheduleState,
    first: float,
    timing: Timing,
    now: float,
    grace: float,
    limit: float,
    notes: list[str],
) -> tuple[list[float], ScheduleState]:
    """Return the ticks to submit: all that are on time, or else the newest missed tick."""
    edge = now - grace - _MOMENT  # earlier ticks count as missed
    due: list[float] = []
    tick = first if first > edge else timing.next(edge)
    while tick <= now:
        due.append(tick)
        tick = timing.next(tick)
    if first > edge:
        return due, state
    newest = max(first, timing.previous(edge))
    skipped = count_ticks(timing, first, newest)
    why = "missed: of missed ticks only the newest may be submitted"
    if not due and now - newest <= limit:
        due = [newest]
        skipped -= 1
        newest = timing.previous(newest - 1) if skipped else newest
    elif not due:
        why = f"missed: it was more than {limit:g} s late"
    if skipped:
        state = _skip(state, skipped, newest, why)
        notes.append(_skipped_note(first, newest, skipped, why))
    return due, state


def _without_overlap(
    overlap: Overlap, state: ScheduleState, due: list[float], busy: bool
) -> tuple[list[float], ScheduleState]:
    """Return the ticks that the overlap policy lets the leader submit now, and the new state."""
    waiting = state.waiting_at
    if overlap is not Overlap.QUEUE and waiting is not None:  # the policy was changed
        due = [waiting, *due]
        state, waiting = replace(state, waiting_at=None), None
    if overlap is Overlap.ALLOW:
        return due, state
    ticks: list[float] = []
    if waiting is not None and not busy:
        ticks, waiting, busy = [waiting], None, True
    left = list(due)
    if left and not busy:
        ticks, left = [left[0]], left[1:]
    why = "the last job is unfinished"
    if overlap is Overlap.QUEUE:
        why = "a tick waits already for the end of the last job"
        if left and waiting is None:
            waiting, left = left[0], left[1:]
    state = replace(state, waiting_at=waiting)
    if left:
        state = _skip(state, len(left), left[-1], why)
    return ticks, state


def _skip(state: ScheduleState, count: int, newest: float, why: str) -> ScheduleState:
    return replace(
        state,
        skipped=state.skipped + count,
        skipped_at=newest,
        skipped_why=bounded(why, _SHORT),
    )


def _skipped_note(first: float, last: float, count: int, why: str) -> str:
    more = "+" if count >= _COUNTED_TO else ""
    ticks = (
        f"the tick at {utc_text(first)} is"
        if count == 1
        else f"{count}{more} ticks from {utc_text(first)} to {utc_text(last)} are"
    )
    return f"{ticks} skipped: {why}"


def count_ticks(timing: Timing, first: float, last: float) -> int:
    """Return the number of ticks from the tick ``first`` to ``last``, counted up to 1,000."""
    count, tick = 0, first
    while tick <= last and count < _COUNTED_TO:
        count += 1
        tick = timing.next(tick)
    return count


@dataclass(frozen=True, slots=True)
class TickOutcome:
    """The result of a tick's submit: a job, or the error that refused it."""

    job_id: str = ""
    error: JobQueueError | None = None

    @property
    def final(self) -> bool:
        """Return True if another submit of the tick would have the same result."""
        return self.error is None or isinstance(self.error, InvalidArgument)


def settle(before: ScheduleState, made: TickPlan, outcomes: Sequence[TickOutcome]) -> ScheduleState:
    """Return the state to record after the ticks of a plan were submitted, in order.

    A tick that is refused for now is due again, and so are the ticks after it.
    """
    state = replace(made.state, problem="")
    for tick, outcome in zip(made.ticks, outcomes, strict=True):
        error = outcome.error
        if error is None:
            state = replace(state, last_at=tick, last_job_id=outcome.job_id)
            continue
        said = bounded(error.message, _SHORT)
        if outcome.final:
            state = replace(_skip(state, 1, tick, f"refused: {said}"), problem=said)
        elif tick == made.ticks[0]:
            return replace(before, problem=said)
        else:
            return replace(state, next_at=tick, problem=said)
    return state


def read_fields(record: type[Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``record`` in a stored document, without fields of newer versions."""
    return {one.name: said[one.name] for one in fields(record) if one.name in said}
