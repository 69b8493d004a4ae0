"""A job by the pure rules of the core alone: what every store has to make of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobqueue.core.decide import (
    ASSIGNED,
    SUBMITTED,
    Entry,
    Live,
    accept,
    assign,
    assignment,
    begin,
    decide,
    events_of,
)
from jobqueue.core.job import Assignment, Job, JobSpec, Outcome, Refusal, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueSettings
from jobqueue.core.retry import PROFILES
from jobqueue.core.store import Rules
from tests.stores.driver import NO_BACKOFF

PLAIN = QueueSettings()


class Twin:
    """A job, beside the one in a store."""

    def __init__(
        self,
        job_id: str,
        seq: int,
        asked: JobSpec,
        now: float,
        rules: Rules,
        queue: QueueSettings = PLAIN,
    ) -> None:
        new = accept(asked, queue, now)
        self.rules = rules
        self.id, self.spec, self.created_at = job_id, new.spec, now
        self.live = begin(new.spec, new.expires_at, new.due, seq, Live)
        self.entries: list[Entry] = events_of(self.live, job_id, asked.queue, None, SUBMITTED, now)

    @property
    def job(self) -> Job:
        return self.live.job(self.id, self.spec, self.created_at, self.entries[-1][5])

    def assigned(self, got: Assignment, now: float) -> None:
        """The worker is told what the rules say; only the lease is drawn."""
        live, queue = self.live, self.spec.queue
        assign(live, got.worker_id, now, self.rules)
        live.lease = got.lease
        expected = assignment(live, self.id, got.spec, self.created_at, now)
        assert got.expires_in == _near(expected.expires_in)
        expected.expires_in = got.expires_in
        assert got == expected
        assert (got.spec.payload, got.spec.type) == (self.spec.payload, self.spec.type)
        self.entries += events_of(
            live, self.id, queue, State.PENDING, ASSIGNED, now, "", got.worker_id
        )

    def moved(self, asked: Transition, got: Outcome, now: float) -> None:
        """The store's outcome is the decision."""
        live, before, reason, queue = self.live, self.live.state, self.live.reason, self.spec.queue
        asked = replace(asked)
        decision = decide(live, asked, now=now, rules=self.rules, policy=PROFILES[NO_BACKOFF])
        if isinstance(decision, Refusal):
            assert got == Outcome(decision, before, reason, self.id, queue)
            return
        expected = decision.outcome(live, self.id, queue)
        assert got.ran_for == _near(expected.ran_for)
        expected.ran_for = got.ran_for
        assert got == expected
        worker = decision.worker_id if decision.lease is not None else None
        steps, error = decision.steps, asked.error
        self.entries += events_of(live, self.id, queue, before, steps, now, error, worker)


def _near(seconds: float | None) -> object:
    return None if seconds is None else pytest.approx(seconds)
