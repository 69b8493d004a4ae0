"""The history checker finds what it is there to find: one planted bug for each rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jobqueue.core.job import Event, Job
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.limits import Rate
from jobqueue.core.retry import PROFILES
from tests.history.checker import RULES, Evidence, Run, assert_kept, judge
from tests.records import made

P, A, R, D, F, X = State

STEPS: dict[str, tuple[State | None, State, Reason]] = {
    "submit": (None, P, Reason.SUBMITTED),
    "assign": (P, A, Reason.ASSIGNED),
    "start": (A, R, Reason.STARTED),
    "done": (R, D, Reason.SUCCEEDED),
    "fail": (R, F, Reason.HANDLER_FAILED),
    "due": (F, P, Reason.RETRY_DUE),
    "exhaust": (F, X, Reason.RETRIES_EXHAUSTED),
    "expire": (P, X, Reason.TTL_EXPIRED),
    "by hand": (X, P, Reason.MANUAL_RETRY),
}


def history(job_id: str, *steps: str | tuple[str, float], worker: str = "w1") -> list[Event]:
    """A well-formed history; a step may carry the seconds that passed before it."""
    events: list[Event] = []
    now = 100.0
    attempt = 0
    for step in steps:
        name, pause = step if isinstance(step, tuple) else (step, 1.0)
        now += pause
        origin, target, reason = STEPS[name]
        attempt += target is A
        held = A in (origin, target) or origin is R
        events.append(
            Event(
                job_id=job_id,
                version=len(events) + 1,
                from_state=origin,
                to_state=target,
                reason=reason,
                at=now,
                attempt=attempt,
                worker_id=worker if held else None,
                queue="q",
            )
        )
    return events


def record(events: list[Event], seq: int = 1, **fields: Any) -> Job:
    last = events[-1]
    standard: dict[str, Any] = {
        "id": last.job_id,
        "seq": seq,
        "queue": "q",
        "type": "",
        "payload": b"x",
        "priority": 0,
        "max_retries": 3,
        "state": last.to_state,
        "version": last.version,
        "attempt": last.attempt,
        "retry_count": 0,
        "created_at": events[0].at,
        "updated_at": last.at,
        "reason": last.reason,
    }
    return made(Job, **(standard | fields))


GOOD = history("a", "submit", "assign", "start", "done")
RETRIED = history("a", "submit", "assign", "start", "fail", ("due", 5.0), "assign", "start", "done")


def caught(evidence: Evidence) -> set[str]:
    return {finding.rule for finding in judge(evidence)}


def interleaved(*histories: list[Event]) -> list[Event]:
    return sorted((event for one in histories for event in one), key=lambda event: event.at)


def test_a_good_run_has_no_findings():
    exhausted = history(
        "b", "submit", "assign", "start", "fail", ("due", 5.0), "assign", "start", "fail", "exhaust"
    )
    expired = history("c", "submit", ("expire", 10.0))
    again = history("d", "submit", ("expire", 10.0), ("by hand", 50.0), "assign", "start", "done")
    evidence = Evidence(
        events=interleaved(RETRIED, exhausted, expired, again),
        accepted=["a", "b", "c", "d"],
        refused=["z"],
        runs=[Run("a", 1), Run("a", 2), Run("b", 1), Run("b", 2), Run("d", 1)],
        confirmed=[Run("a", 2), Run("d", 1)],
        told_done=["a"],
        jobs={
            "a": record(RETRIED, 1, retry_count=1),
            "b": record(exhausted, 2, max_retries=1),
            "c": record(expired, 3, ttl=10.0),
            "d": record(again, 4, ttl=10.0),
        },
        concurrency={"w1": 4},
        settled=True,
        backoff=PROFILES["default"],
    )
    assert judge(evidence) == []
    assert_kept(evidence)


def forged(index: int, **changes: Any) -> list[Event]:
    """The good history with one event changed."""
    return [replace(e, **changes) if i == index else e for i, e in enumerate(GOOD)]


PLANTED: dict[str, tuple[str, Evidence]] = {
    "an accepted job vanished": (
        "nothing_is_lost",
        Evidence(events=GOOD, accepted=["a", "gone"]),
    ),
    "an accepted job has a history but no record": (
        "nothing_is_lost",
        Evidence(
            events=[*GOOD, *history("b", "submit")],
            accepted=["a", "b"],
            jobs={"a": record(GOOD)},
        ),
    ),
    "a job is stuck": (
        "nothing_is_lost",
        Evidence(events=GOOD[:2], accepted=["a"], settled=True),
    ),
    "a client was told DONE for a job that is not": (
        "no_false_ok",
        Evidence(events=GOOD[:3], told_done=["a"]),
    ),
    "a worker was told accepted for a result that was not kept": (
        "no_false_ok",
        Evidence(events=RETRIED, confirmed=[Run("a", 1)]),
    ),
    "a refused job was written": (
        "no_false_ok",
        Evidence(events=GOOD, refused=["a"]),
    ),
    "two results were accepted": (
        "one_result",
        Evidence(events=[*GOOD, replace(GOOD[-1], version=5)]),
    ),
    "two reports were confirmed": (
        "one_result",
        Evidence(events=GOOD, confirmed=[Run("a", 1), Run("a", 1)]),
    ),
    "an event is missing": (
        "versions_without_gaps",
        Evidence(events=[GOOD[0], GOOD[1], GOOD[3]]),
    ),
    "an event was written twice": (
        "versions_without_gaps",
        Evidence(events=[*GOOD, GOOD[-1]]),
    ),
    "events came out of order": (
        "versions_without_gaps",
        Evidence(events=[GOOD[0], GOOD[2], GOOD[1], GOOD[3]]),
    ),
    "a job skipped ASSIGNED": (
        "allowed_transitions",
        Evidence(events=[GOOD[0], *forged(2, version=2, from_state=P)[2:3]]),
    ),
    "an edge carries another edge's reason": (
        "allowed_transitions",
        Evidence(events=forged(3, reason=Reason.RETRY_DUE)),
    ),
    "a DONE job went on": (
        "allowed_transitions",
        Evidence(
            events=[
                *GOOD,
                replace(GOOD[0], version=5, from_state=D, reason=Reason.MANUAL_RETRY, at=200.0),
            ]
        ),
    ),
    "an event leaves a state that the job was not in": (
        "allowed_transitions",
        Evidence(events=[*GOOD[:2], replace(GOOD[3], version=3)]),
    ),
    "the clock ran backwards": (
        "time_does_not_run_backwards",
        Evidence(events=forged(3, at=50.0)),
    ),
    "an attempt was counted twice": (
        "leases_are_disjoint",
        Evidence(events=[*RETRIED[:5], *(replace(e, attempt=1) for e in RETRIED[5:])]),
    ),
    "an old worker's report was accepted": (
        "leases_are_disjoint",
        Evidence(events=[*RETRIED[:7], replace(RETRIED[7], worker_id="w0")]),
    ),
    "a report was booked to an earlier attempt": (
        "leases_are_disjoint",
        Evidence(events=[*RETRIED[:7], replace(RETRIED[7], attempt=1)]),
    ),
    "a job was assigned to nobody": (
        "leases_are_disjoint",
        Evidence(events=forged(1, worker_id=None)),
    ),
    "a worker got more than its slots": (
        "no_worker_holds_too_much",
        Evidence(
            events=interleaved(GOOD, history("b", "submit", "assign", "start", "done")),
            concurrency={"w1": 1},
        ),
    ),
    "a queue ran more jobs than its limit": (
        "no_limit_is_exceeded",
        Evidence(
            events=interleaved(
                GOOD, history("b", "submit", ("assign", 1.5), "start"), history("c", "submit")
            ),
            running={"q": 1},
        ),
    ),
    "a key ran more jobs than its limit": (
        "no_limit_is_exceeded",
        Evidence(
            events=(
                of_keys := interleaved(
                    GOOD, history("b", "submit", ("assign", 1.5)), history("c", "submit", "assign")
                )
            ),
            jobs={
                "a": record(GOOD, concurrency_key="k"),
                "b": replace(record(of_keys[1:2], 2, concurrency_key="k"), id="b"),
            },
            key_running={"q": 1},
        ),
    ),
    "jobs started faster than their rate": (
        "starts_keep_their_rate",
        Evidence(
            events=interleaved(
                GOOD,
                history("b", "submit", "assign"),
                history("c", "submit", ("assign", 1.4)),
                history("d", "submit", ("assign", 2.8)),
            ),
            rates={"q": Rate(1.0, 2)},
        ),
    ),
    "jobs of a key started faster than their rate": (
        "starts_keep_their_rate",
        Evidence(
            events=interleaved(GOOD, history("b", "submit", "assign")),
            jobs={"a": record(GOOD, concurrency_key="k")}
            | {"b": replace(record(GOOD, 2, concurrency_key="k"), id="b")},
            key_rates={"q": Rate(1.0, 1)},
        ),
    ),
    "a record is behind its history": (
        "records_match",
        Evidence(events=GOOD, jobs={"a": record(GOOD, state=R, version=3)}),
    ),
    "a record does not say when it changed": (
        "records_match",
        Evidence(events=GOOD, jobs={"a": record(GOOD, updated_at=GOOD[0].at)}),
    ),
    "a record has no history": (
        "records_match",
        Evidence(events=[], jobs={"a": record(GOOD)}),
    ),
    "a result of a run that nobody saw": (
        "what_is_done_was_run",
        Evidence(events=GOOD, runs=[]),
    ),
    "a run that nobody assigned": (
        "what_is_done_was_run",
        Evidence(events=GOOD, runs=[Run("a", 1), Run("a", 2)]),
    ),
    "one attempt ran twice": (
        "what_is_done_was_run",
        Evidence(events=GOOD, runs=[Run("a", 1), Run("a", 1)]),
    ),
    "a job was given up in a run that had ample retries": (
        "nothing_is_given_up",
        Evidence(events=history("a", "submit", "expire"), dead_letters_allowed=False),
    ),
    "a retry too many": (
        "retries_are_counted",
        Evidence(events=RETRIED, jobs={"a": record(RETRIED, max_retries=0)}),
    ),
    "given up too early": (
        "retries_are_counted",
        Evidence(
            events=(early := history("a", "submit", "assign", "start", "fail", "exhaust")),
            jobs={"a": record(early, max_retries=2)},
        ),
    ),
    "a retry came back too soon": (
        "backoff_is_waited_out",
        Evidence(
            events=history("a", "submit", "assign", "start", "fail", ("due", 4.9)),
            backoff=PROFILES["default"],
        ),
    ),
    "the second retry waited no longer than the first": (
        "backoff_is_waited_out",
        Evidence(
            events=history(
                "a",
                *("submit", "assign", "start", "fail", ("due", 5.5)),
                *("assign", "start", "fail", ("due", 5.5)),
            ),
            backoff=PROFILES["default"],
        ),
    ),
    "handed out after its TTL": (
        "ttl_is_honoured",
        Evidence(
            events=(late := history("a", "submit", ("assign", 10.1))),
            jobs={"a": record(late, ttl=10.0)},
        ),
    ),
    "expired too early": (
        "ttl_is_honoured",
        Evidence(
            events=(soon := history("a", "submit", ("expire", 9.0))),
            jobs={"a": record(soon, ttl=10.0)},
        ),
    ),
    "expired although it had started": (
        "ttl_is_honoured",
        Evidence(
            events=(
                stale := history("a", "submit", "assign", "start", "fail", "due", ("expire", 20.0))
            ),
            jobs={"a": record(stale, ttl=10.0)},
        ),
    ),
    "expired without a TTL": (
        "ttl_is_honoured",
        Evidence(events=(endless := history("a", "submit", "expire")), jobs={"a": record(endless)}),
    ),
    "a lower priority went first": (
        "dispatch_is_in_order",
        Evidence(
            events=(
                overtaking := interleaved(
                    history("high", "submit", ("assign", 9.0)), history("low", "submit", "assign")
                )
            ),
            jobs={
                "high": record(overtaking[:1], 2, priority=9),
                "low": replace(record(overtaking[:1], 1), id="low"),
            },
            overtakes_allowed=0,
        ),
    ),
    "a later job of equal priority went first": (
        "dispatch_is_in_order",
        Evidence(
            events=(
                queue_jump := interleaved(
                    history("first", "submit", ("assign", 9.0)),
                    history("later", "submit", "assign"),
                )
            ),
            jobs={
                "first": record(queue_jump[:1], 1),
                "later": replace(record(queue_jump[:1], 2), id="later"),
            },
            overtakes_allowed=0,
        ),
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str):
    rule, evidence = PLANTED[bug]
    assert rule in caught(evidence)
    with pytest.raises(AssertionError, match=rule):
        assert_kept(evidence)


def test_every_rule_has_a_planted_bug():
    assert {rule for rule, _ in PLANTED.values()} == set(RULES)


def test_a_job_that_could_not_be_handed_out_is_not_overtaken():
    delayed = history("delayed", "submit", ("assign", 50.0))
    expired = history("expired", "submit", ("expire", 50.0))
    plain = history("plain", "submit", ("assign", 20.0))
    evidence = Evidence(
        events=interleaved(delayed, expired, plain),
        jobs={
            "delayed": record(delayed, 1, priority=9, run_at=150.0),
            "expired": record(expired, 2, ttl=5.0, expires_at=106.0),
            "plain": record(plain, 3),
        },
        overtakes_allowed=0,
    )
    assert judge(evidence) == []


def test_a_limit_that_is_just_kept_is_no_finding():
    one_after_the_other = interleaved(GOOD, history("b", "submit", ("assign", 3.0), "start"))
    assert GOOD[-1].at == next(
        e.at for e in one_after_the_other if (e.job_id, e.to_state) == ("b", A)
    )
    assert judge(Evidence(events=one_after_the_other, running={"q": 1})) == []
    spaced = [history(f"{n}", "submit", ("assign", pause)) for n, pause in enumerate((1, 1, 2, 5))]
    assert judge(Evidence(events=interleaved(*spaced), rates={"q": Rate(1.0, 2)})) == []


def test_overtaking_is_counted_against_the_bound():
    slow = history("slow", "submit", ("assign", 50.0))
    quick = [history(f"q{n}", "submit", ("assign", 2.0 + n)) for n in range(3)]
    jobs = {"slow": record(slow, 1)} | {
        f"q{n}": record(events, 2 + n) for n, events in enumerate(quick)
    }
    events = interleaved(slow, *quick)
    assert caught(Evidence(events=events, jobs=jobs, overtakes_allowed=2)) == {
        "dispatch_is_in_order"
    }
    assert caught(Evidence(events=events, jobs=jobs, overtakes_allowed=3)) == set()


def test_what_was_removed_on_purpose_is_not_missed():
    evidence = Evidence(
        events=[],
        accepted=["a"],
        told_done=["a"],
        confirmed=[Run("a", 1)],
        runs=[Run("a", 1)],
        removed=["a"],
        settled=True,
    )
    assert judge(evidence) == []


def test_a_database_that_crashed_may_have_forgotten_an_assignment():
    runs = [Run("a", 1), Run("a", 1), Run("a", 2)]
    assert judge(Evidence(events=GOOD, runs=runs, crashed=True)) == []
    assert judge(Evidence(events=GOOD, runs=[], crashed=True)), "but never a run behind a result"
