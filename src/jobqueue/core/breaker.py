"""Decide when a worker stops taking the jobs of a task that keeps failing: a circuit breaker.

The functions and classes here are pure: they read no clock and know no workers.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.lifecycle import Move

MAX_FAILURES = 10_000
MIN_PAUSE = 0.1
MAX_PAUSE = 86_400.0
MAX_OPEN = 1_000  # open breakers that a worker may report


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """The option ``breaker`` of a task.

    After ``failures`` failed attempts in a row, a worker process takes no jobs of the task for
    ``pause`` seconds. Then it tries one job: if that succeeds, it takes all jobs again, and
    otherwise it pauses once more.
    """

    failures: int = 10
    pause: float = 30.0

    def __post_init__(self) -> None:
        failures: object = self.failures
        pause: object = self.pause
        if (
            isinstance(failures, bool)
            or not isinstance(failures, int)
            or not 1 <= failures <= MAX_FAILURES
        ):
            raise InvalidArgument(
                "breaker.failures", f"must be a number from 1 to {MAX_FAILURES}, got {failures!r}"
            )
        if isinstance(pause, bool) or not isinstance(pause, int | float):
            raise InvalidArgument("breaker.pause", f"expected seconds, got {pause!r:.80}")
        if not MIN_PAUSE <= pause <= MAX_PAUSE:  # NaN is refused, too
            raise InvalidArgument(
                "breaker.pause", f"must be {MIN_PAUSE:g} to {MAX_PAUSE:g} s, got {pause:g} s"
            )


@dataclass(frozen=True, slots=True)
class OpenBreaker:
    """An open breaker of a worker: a type whose jobs the worker does not take at present."""

    type: str
    failures: int  # failed attempts in a row
    until: float  # when one job is tried, in seconds since the epoch by the worker's clock
    trial: int = 0  # the number of the trial for which the worker takes one job; 0: no trial

    def document(self) -> list[object]:
        """Return the values as stores keep them, in JSON."""
        return [self.type, self.failures, self.until, self.trial]


def read_breakers(rows: Sequence[Sequence[object]]) -> tuple[OpenBreaker, ...]:
    """Return the open breakers of stored rows, as ``OpenBreaker.document`` made them."""
    return tuple(
        OpenBreaker(str(row[0]), int(str(row[1])), float(str(row[2])), int(str(row[3])))
        for row in rows
    )


class AttemptVerdict(enum.Enum):
    """The meaning of an attempt's end for the breaker of its task."""

    FAILED = "failed"  # counts as a failure
    WORKS = "works"  # ends the failures in a row
    NOTHING = "nothing"  # does not count


def verdict(move: Move, *, retryable: bool, deliberate: bool) -> AttemptVerdict:
    """Return the verdict on the end of an attempt.

    A timeout, and a failure that may be retried, count as failures of the task. ``deliberate`` is
    True if the handler asked for its retry (``RetryLater``), which is no failure. A failure that is
    not retried (``Abort``, wrong arguments) is the fault of its own job, and does not count.
    """
    if move is Move.SUCCEED:
        return AttemptVerdict.WORKS
    if move is Move.TIME_OUT or (move is Move.FAIL and retryable and not deliberate):
        return AttemptVerdict.FAILED
    return AttemptVerdict.NOTHING


class Phase(enum.Enum):
    """The phases of a circuit."""

    CLOSED = "closed"  # all jobs are taken
    OPEN = "open"  # no jobs are taken, until the pause is over
    TRIAL = "trial"  # one job is taken, whose end decides


@dataclass(slots=True)
class Circuit:
    """Counts the failures of one task in a row, and says which of its jobs may run."""

    breaker: Breaker
    phase: Phase = Phase.CLOSED
    failures: int = 0  # in a row
    trial: int = 0  # the number of the latest trial
    tried: int | None = None  # the lease of the trial's job, once it has arrived

    def admits(self, lease: int) -> bool:
        """Return True if the job with this lease may run; in a trial, the first one may."""
        if self.phase is Phase.TRIAL and self.tried is None:
            self.tried = lease
        return self.phase is Phase.CLOSED or self.tried == lease

    def ended(self, lease: int, said: AttemptVerdict) -> bool:
        """Count the end of an attempt. Return True if the phase or the trial changed.

        While the circuit is not closed, only the trial's job counts.
        """
        if self.phase is Phase.CLOSED:
            if said is AttemptVerdict.WORKS:
                self.failures = 0
            elif said is AttemptVerdict.FAILED:
                self.failures += 1
                if self.failures >= self.breaker.failures:
                    self.phase = Phase.OPEN
                    return True
            return False
        if lease != self.tried:
            return False
        self.tried = None
        if said is AttemptVerdict.WORKS:
            self.phase, self.failures = Phase.CLOSED, 0
        elif said is AttemptVerdict.FAILED:
            self.phase = Phase.OPEN
            self.failures += 1
        else:
            self.trial += 1  # this job decided nothing, so another one is tried
        return True

    def try_one(self) -> bool:
        """Begin a trial. If no job has come for the latest trial, begin another.

        Return False if the circuit is closed, or the trial's job has come.
        """
        if self.phase is Phase.CLOSED or self.tried is not None:
            return False
        self.phase = Phase.TRIAL
        self.trial += 1
        return True


def why_paused(one: OpenBreaker, now: float) -> str:
    """Return the reason, for people, why no worker takes a type: all its breakers are open."""
    jobs = f"type {one.type!r}" if one.type else "jobs without a type"
    failed = f"after {one.failures} failed attempts in a row"
    if one.trial or one.until <= now:
        return f"the workers of {jobs} try one job first, {failed} (breaker)"
    again = f"in {one.until - now:.0f} s they try one job"
    return f"the workers of {jobs} take no jobs {failed} (breaker); {again}"
