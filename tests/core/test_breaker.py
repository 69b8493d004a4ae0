"""The rules of a circuit breaker."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.core.breaker import (
    AttemptVerdict,
    Breaker,
    Circuit,
    OpenBreaker,
    Phase,
    read_breakers,
    verdict,
    why_paused,
)
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.lifecycle import REPORTABLE, Move

FAILED, WORKS, NOTHING = AttemptVerdict.FAILED, AttemptVerdict.WORKS, AttemptVerdict.NOTHING


@pytest.mark.parametrize("move", [move for move in Move if move in REPORTABLE])
def test_timeouts_and_failures_that_may_be_retried_count(move: Move) -> None:
    counts = {Move.SUCCEED: WORKS, Move.FAIL: FAILED, Move.TIME_OUT: FAILED}
    assert verdict(move, retryable=True, deliberate=False) is counts.get(move, NOTHING)
    if move is Move.FAIL:
        assert verdict(move, retryable=False, deliberate=False) is NOTHING
        assert verdict(move, retryable=True, deliberate=True) is NOTHING


def test_failures_in_a_row_open_a_circuit_and_a_success_begins_the_count_anew() -> None:
    circuit = Circuit(Breaker(failures=3))
    for said in (FAILED, FAILED, WORKS, FAILED, NOTHING, FAILED):
        assert not circuit.ended(1, said)
        assert circuit.admits(1)
    assert circuit.ended(1, FAILED)
    assert (circuit.phase, circuit.failures) == (Phase.OPEN, 3)
    assert not circuit.admits(2)
    assert not circuit.ended(1, WORKS), "it began before the circuit opened"
    assert not circuit.admits(2)


def opened() -> Circuit:
    circuit = Circuit(Breaker(failures=1))
    circuit.ended(1, FAILED)
    return circuit


def test_one_job_decides_after_the_pause() -> None:
    circuit = opened()
    assert circuit.try_one()
    assert circuit.admits(2)
    assert not circuit.admits(3)
    assert circuit.admits(2)
    assert not circuit.ended(1, WORKS), "it is not the job that decides"
    assert circuit.ended(2, WORKS)
    assert (circuit.phase, circuit.failures) == (Phase.CLOSED, 0)
    assert circuit.admits(3)


def test_a_trial_that_fails_opens_the_circuit_again() -> None:
    circuit = opened()
    circuit.try_one()
    assert circuit.admits(2)
    assert circuit.ended(2, FAILED)
    assert (circuit.phase, circuit.failures) == (Phase.OPEN, 2)
    assert not circuit.admits(3)
    assert circuit.try_one()
    assert circuit.trial == 2


def test_a_trial_that_says_nothing_is_repeated_with_another_job() -> None:
    circuit = opened()
    circuit.try_one()
    assert circuit.admits(2)
    assert not circuit.try_one(), "one is under way"
    assert circuit.ended(2, NOTHING)
    assert (circuit.phase, circuit.trial) == (Phase.TRIAL, 2)
    assert circuit.admits(3)
    assert circuit.ended(3, WORKS)
    assert not circuit.try_one()


def test_a_trial_for_which_no_job_has_come_is_asked_for_again() -> None:
    circuit = opened()
    assert circuit.try_one()
    assert circuit.try_one()
    assert circuit.trial == 2


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"failures": 0}, "breaker.failures"),
        ({"failures": True}, "breaker.failures"),
        ({"failures": 2.5}, "breaker.failures"),
        ({"failures": 10_001}, "breaker.failures"),
        ({"pause": 0}, "breaker.pause"),
        ({"pause": float("nan")}, "breaker.pause"),
        ({"pause": "30"}, "breaker.pause"),
        ({"pause": 86_401}, "breaker.pause"),
    ],
)
def test_a_breaker_that_makes_no_sense_is_refused(said: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Breaker(**said)
    assert refused.value.field == field


def test_open_breakers_are_read_as_they_were_written() -> None:
    known = (OpenBreaker("a", 3, 1_800_000_000.123456), OpenBreaker("", 12, 7.0, 2))
    assert read_breakers([one.document() for one in known]) == known


def test_a_waiting_job_says_when_its_workers_try_again() -> None:
    assert why_paused(OpenBreaker("pay", 10, 130.0), 100.0) == (
        "the workers of type 'pay' take no jobs after 10 failed attempts in a row (breaker); in"
        " 30 s they try one job"
    )
    trying = "the workers of jobs without a type try one job first, after 10 failed attempts"
    assert why_paused(OpenBreaker("", 10, 130.0, 1), 100.0).startswith(trying)
    assert why_paused(OpenBreaker("", 10, 99.0), 100.0).startswith(trying)
