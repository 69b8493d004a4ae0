"""A job from its records: repeated ones change nothing, and a gap is noticed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobqueue.core.decide import (
    ASSIGNED,
    SUBMITTED,
    Live,
    accept,
    assign,
    begin,
    decide,
    event_of,
    events_of,
)
from jobqueue.core.job import Event, JobSpec, Refusal, Transition
from jobqueue.core.lifecycle import FENCED, Move, Reason, State
from jobqueue.core.queue import QueueSettings
from jobqueue.core.rebuild import Rebuilt, World, gather, standing
from jobqueue.core.retry import policy_of
from jobqueue.core.schedule import ScheduleSpec, Source, create, pause, ran_by_hand
from jobqueue.core.store import Rules
from jobqueue.core.stream import (
    CancelRequested,
    Created,
    Failed,
    JobDeleted,
    JobEvent,
    ScheduleChange,
    ScheduleEvent,
    job_event,
)
from tests.examples import examples
from tests.records import made


def fold(items: Iterable[JobEvent | CancelRequested]) -> Rebuilt:
    world = World()
    for item in items:
        world.add(item)
    return world.jobs["job"]


def event(version: int, before: State | None, after: State, reason: Reason, **more) -> JobEvent:
    return JobEvent(
        Event("job", version, before, after, reason, float(version), 1, "w", "", "q"), **more
    )


CREATED = made(
    Created, seq=1, type="t", payload=b"p", priority=0, max_retries=3, created_at=1.0, key="k",
    key_expires_at=99.0,
)  # fmt: skip
STORY = [
    event(1, None, State.PENDING, Reason.SUBMITTED, created=CREATED),
    event(2, State.PENDING, State.ASSIGNED, Reason.ASSIGNED),
    event(3, State.ASSIGNED, State.RUNNING, Reason.STARTED),
    event(4, State.RUNNING, State.FAILED, Reason.WORKER_LOST, failed=Failed(0, 2.5, 9.0)),
]


@pytest.mark.req("jq:FR-036")
def test_the_parts_of_events_make_the_job():
    rebuilt = fold(STORY)
    assert (rebuilt.job.state, rebuilt.job.started_at, rebuilt.job.next_retry_at) == (
        State.FAILED,
        2.5,
        9.0,
    )
    assert rebuilt.live.deaths == 1
    assert rebuilt.history == [one.event for one in STORY]


def test_no_job_began_before_it_was_there():
    """As the job itself says it, whatever its worker said."""
    failed = event(4, State.RUNNING, State.FAILED, Reason.WORKER_LOST, failed=Failed(0, 0.5, 9.0))
    assert fold([*STORY[:3], failed]).job.started_at == CREATED.created_at


def test_repeated_records_change_nothing():
    assert fold([*STORY[:3], *STORY[:2], *STORY]) == fold(STORY)


@pytest.mark.parametrize(
    "records", [STORY[1:], [STORY[0], STORY[2]], [], [CancelRequested("job", "q", 3, 3.0)]]
)
def test_a_gap_is_an_error(records: list[JobEvent | CancelRequested]):
    with pytest.raises(LookupError):
        fold(records)


@pytest.mark.parametrize(
    "damaged",
    [
        event(3, State.PENDING, State.ASSIGNED, Reason.ASSIGNED),  # it is not PENDING any more
        event(3, State.ASSIGNED, State.DONE, Reason.SUCCEEDED),  # it never started
        event(3, State.ASSIGNED, State.RUNNING, Reason.RETRY_DUE),  # for no such reason
    ],
)
def test_what_the_lifecycle_does_not_allow_is_an_error(damaged: JobEvent):
    with pytest.raises(LookupError, match=r"version 3 says .* but the job is ASSIGNED and cannot"):
        fold([*STORY[:2], damaged])


def test_a_cancel_counts_for_the_version_that_it_was_made_for():
    flag = CancelRequested("job", "q", 3, 3.5)
    assert fold([*STORY[:3], flag]).job.cancel_requested
    assert not fold([*STORY[:4], flag]).job.cancel_requested  # repeated, late


@pytest.mark.req("jq:FR-036")
@settings(max_examples=examples(100), deadline=None)
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from([*Move, "assign", "assign", "flag"]),
            st.sampled_from(["", "why"]),
            st.booleans(),
            st.sampled_from([None, 0.0, 0.5]),
        ),
        max_size=40,
    ),
    poison_after=st.sampled_from([0, 2]),
)
def test_what_the_rules_did_is_rebuilt_from_its_events(moves, poison_after):
    rules, now = Rules(poison_after=poison_after, hand_backs=2), 100.0
    asked = JobSpec(payload=b"p", queue="q", type="t", ttl=9_000.0, delay=1.0, timeout=50.0)
    new = accept(asked, QueueSettings(), now)
    live = begin(new.spec, new.expires_at, new.due, 1, Live)
    created = Created.at(now, 1, new.spec, now, None)
    items: list[JobEvent | CancelRequested] = []

    def wrote(before, steps, detail, worker) -> None:
        for entry in events_of(live, "job", "q", before, steps, now, detail, worker):
            retries, started_at, due, cancelled = entry[10:]
            if entry[3] is State.DONE:
                started_at = live.started_at  # nothing comes after it: stores read it there
            items.append(
                job_event(
                    event_of(entry), retries, started_at, due, cancelled,
                    created=created, result=live.result,
                )
            )  # fmt: skip

    wrote(None, SUBMITTED, "", None)
    for move, said, retryable, ran_for in moves:
        now += 1.0
        before = live.state
        if move == "assign" and before is State.PENDING:
            assign(live, "w", now, rules)
            wrote(before, ASSIGNED, "", "w")
        elif move == "flag" and before is State.RUNNING and not live.cancel_requested:
            live.cancel_requested = True
            items.append(CancelRequested("job", "q", live.version, now))
        elif isinstance(move, Move):
            lease = live.lease if move in FENCED else None
            # Of a start alone no event says that it was earlier than it was heard of.
            ran_for = None if move is Move.START else ran_for
            one = Transition(1, move, lease, error=said, retryable=retryable, ran_for=ran_for)
            one.result = b"r" if move is Move.SUCCEED else None
            decision = decide(live, one, now=now, rules=rules, policy=policy_of("default"))
            if not isinstance(decision, Refusal):
                wrote(before, decision.steps, one.error, decision.worker_id)
    rebuilt = fold(items)
    written = [item.event.at for item in items if isinstance(item, JobEvent)]
    assert rebuilt.job == live.job("job", new.spec, 100.0, written[-1])
    kept, ready = standing(rebuilt, now, rules, Live)
    held = live.state in (State.ASSIGNED, State.RUNNING)
    assert (kept.lease is not None) == held
    assert ready == (live.state is State.PENDING and (live.run_at or 0.0) <= now)
    # Leases are drawn anew, and the times of what is held begin anew.
    assert replace(kept, lease=None, due=None) == replace(live, lease=None, due=None)
    if live.state is State.FAILED:
        assert kept.due == live.due


def test_a_deleted_job_stays_deleted_and_leaves_its_key():
    world = World()
    for one in STORY:
        world.add(one)
    assert world.add(JobDeleted("job", "q", 4, 10.0, key_freed=False))
    for one in STORY:  # published again
        assert not world.add(one)
    assert not world.jobs
    assert [(key.key, key.expires_at) for key in world.keys] == [("k", 99.0)]


def test_a_schedule_is_rebuilt_from_its_records_in_any_order():
    job = JobSpec(payload=b"{}")
    first = create(ScheduleSpec(name="s", job=job, every=60), Source.CODE, 100.0, 0.0)
    second = create(ScheduleSpec(name="s", job=job, every=90), Source.OPERATOR, 200.0, 0.0)
    paused = pause(second, 210.0)
    assert paused is not None
    ran = ran_by_hand(paused, "job", 220.0)
    records = [
        ScheduleEvent.of(ScheduleChange.CREATED, first, 1, 100.0),
        ScheduleEvent.of(ScheduleChange.REMOVED, first, 2, 110.0),
        ScheduleEvent.of(ScheduleChange.CREATED, second, 4, 200.0),
        ScheduleEvent.of(ScheduleChange.CHANGED, paused, 5, 210.0),
        ScheduleEvent.of(ScheduleChange.TICKED, ran, 6, 220.0),
    ]
    for order in permutations(records):
        world = World()
        for item in (*order, *order):
            world.add(item)
        assert gather(world, published=True).schedules == [ran]
        assert world.last_number == 6
    world = World()
    for item in records[:2]:
        assert world.add(item)
        assert not world.add(item)
    assert gather(world, published=True).schedules == []
