"""The small rules that job objects carry themselves."""

from __future__ import annotations

import pytest

from jobqueue.core.clock import ManualClock, SystemClock
from jobqueue.core.errors import Code, KeyConflict, QueueFull
from jobqueue.core.job import JobSpec, Outcome, Refusal, SubmitResult, SubmitStatus, Transition
from jobqueue.core.lifecycle import FENCED, Move, State
from jobqueue.core.queue import Queue, QueueStats


@pytest.mark.req("jq:FR-002")
def test_priority_is_zero_unless_asked_for():
    assert JobSpec(payload=b"x").priority == 0


def test_equal_requests_have_equal_fingerprints():
    assert (
        JobSpec(payload=b"x", type="t").fingerprint()
        == JobSpec(
            payload=b"x", type="t", priority=9, queue="other", key="k", labels={"a": "b"}
        ).fingerprint()
    )


def test_payload_and_type_are_told_apart():
    prints = {
        JobSpec(payload=b"x", type="t").fingerprint(),
        JobSpec(payload=b"y", type="t").fingerprint(),
        JobSpec(payload=b"x", type="u").fingerprint(),
        JobSpec(payload=b"xt", type="").fingerprint(),
    }
    assert len(prints) == 4


def test_unwrap_gives_the_id_or_raises_the_reason():
    assert SubmitResult.accepted("a").unwrap() == "a"
    assert SubmitResult.duplicate("a").unwrap() == "a"
    with pytest.raises(QueueFull):
        SubmitResult.refused(QueueFull("full")).unwrap()
    conflict = SubmitResult.conflict("a", "k")
    assert conflict.status is SubmitStatus.REFUSED
    with pytest.raises(KeyConflict) as raised:
        conflict.unwrap()
    assert raised.value.job_id == "a"
    assert raised.value.code is Code.KEY_CONFLICT


def test_named_constructors_make_the_move_they_are_named_after():
    made = [
        (Transition.started(1, 2), Move.START),
        (Transition.succeeded(1, 2, b"r"), Move.SUCCEED),
        (Transition.failed(1, 2, "e"), Move.FAIL),
        (Transition.timed_out(1, 2), Move.TIME_OUT),
        (Transition.cancel_acknowledged(1, 2), Move.ACKNOWLEDGE_CANCEL),
        (Transition.handed_back(1, 2), Move.HAND_BACK),
        (Transition.worker_lost(1, 2, "gone"), Move.LOSE_WORKER),
        (Transition.cancelled(1), Move.CANCEL),
        (Transition.retried_by_hand(1), Move.RETRY_BY_HAND),
        (Transition.dropped_with_queue(1), Move.DROP_WITH_QUEUE),
    ]
    for transition, move in made:
        assert transition.seq == 1
        assert transition.move is move
        assert transition.lease == (2 if move in FENCED else None)
    assert Transition.failed(1, 2, "e", retryable=False, retry_after=7.0) == Transition(
        1, Move.FAIL, 2, error="e", retryable=False, retry_after=7.0
    )
    assert Transition.succeeded(1, 2, b"r", 0.5).ran_for == 0.5


def test_an_outcome_applied_unless_it_was_refused():
    assert Outcome(None).applied
    assert not Outcome(Refusal.STALE_LEASE).applied


@pytest.mark.req("jq:FR-028")
def test_figures_of_a_queue():
    stats = QueueStats(
        queue=Queue(name="q"),
        depth={State.PENDING: 2, State.RUNNING: 1, State.FAILED: 1, State.DONE: 9},
        processed=10,
        succeeded=8,
        failed=2,
        run_seconds=5.0,
        timed=10,
    )
    assert stats.average_seconds == 0.5
    assert stats.error_rate == 0.2
    assert stats.unfinished == 4
    empty = QueueStats(queue=Queue(name="q"), depth={})
    assert (empty.average_seconds, empty.error_rate, empty.unfinished) == (0.0, 0.0, 0)


def test_a_manual_clock_moves_only_when_told():
    clock = ManualClock(10.0)
    assert clock.now() == clock.now() == 10.0
    clock.advance(2.5)
    assert clock.now() == 12.5
    assert SystemClock().now() > 1_600_000_000
