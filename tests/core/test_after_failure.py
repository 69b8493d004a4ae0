"""What follows FAILED: a retry or a dead letter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.core.lifecycle import TRANSITIONS, Reason, State, after_failure


def decide(reason: Reason = Reason.HANDLER_FAILED, **facts: Any) -> Reason | None:
    standard: dict[str, Any] = {
        "retry_count": 0,
        "max_retries": 3,
        "worker_deaths": 0,
        "poison_after": 5,
        "cancel_requested": False,
        "retryable": True,
    }
    return after_failure(reason, **(standard | facts))


FAILURES = sorted(TRANSITIONS[State.RUNNING, State.FAILED] - {Reason.QUEUE_DELETED})


@pytest.mark.req("jq:FR-033")
@pytest.mark.parametrize("made", [0, 1, 2])
def test_a_failure_with_retries_left_is_retried(made: int):
    assert decide(retry_count=made) is None


@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_a_failure_with_no_retry_left_is_a_dead_letter(max_retries: int):
    gave_up = decide(retry_count=max_retries, max_retries=max_retries)
    assert gave_up is Reason.RETRIES_EXHAUSTED


def test_a_failure_that_says_do_not_retry_is_a_dead_letter():
    assert decide(retryable=False) is Reason.NOT_RETRYABLE


def test_a_job_under_which_too_many_workers_died_is_poison():
    assert decide(Reason.WORKER_LOST, worker_deaths=4) is None
    assert decide(Reason.WORKER_LOST, worker_deaths=5) is Reason.POISON
    assert decide(Reason.WORKER_LOST, worker_deaths=99, poison_after=0) is None


def test_only_a_lost_worker_makes_poison():
    assert decide(Reason.HANDLER_FAILED, worker_deaths=5) is None


@pytest.mark.parametrize("reason", FAILURES)
def test_a_cancel_wins_over_everything(reason: Reason):
    gave_up = decide(reason, cancel_requested=True, retryable=False, worker_deaths=9)
    assert gave_up is Reason.CANCELLED


def test_an_acknowledged_cancel_is_a_cancel():
    assert decide(Reason.CANCELLED) is Reason.CANCELLED


@given(
    reason=st.sampled_from(sorted(TRANSITIONS[State.ASSIGNED, State.FAILED]) + FAILURES),
    retry_count=st.integers(0, 20),
    max_retries=st.integers(0, 20),
    worker_deaths=st.integers(0, 20),
    poison_after=st.integers(0, 20),
    cancel_requested=st.booleans(),
    retryable=st.booleans(),
)
def test_whatever_happens_the_next_edge_is_allowed_and_retries_are_bounded(reason, **facts):
    gave_up = after_failure(reason, **facts)
    if gave_up is not None:
        assert gave_up in TRANSITIONS[State.FAILED, State.DEAD_LETTERED]
    else:
        assert facts["retry_count"] < facts["max_retries"]
        assert not facts["cancel_requested"]
        assert facts["retryable"]
