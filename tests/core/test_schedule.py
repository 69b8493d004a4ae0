"""The rules of schedules: the ticks that are submitted or skipped, and the recorded state."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.core.errors import InvalidArgument, QueueFull, Unavailable
from jobqueue.core.job import JobSpec
from jobqueue.core.schedule import (
    MAX_EVERY,
    MAX_PAYLOAD_BYTES,
    FixedInterval,
    Overlap,
    Schedule,
    ScheduleSpec,
    ScheduleState,
    Source,
    TickOutcome,
    TickPlan,
    TickRules,
    create,
    pause,
    plan,
    ran_by_hand,
    redefine,
    resume,
    settle,
)

HOUR = 3600.0
RULES = TickRules()
JOB = JobSpec(payload=b"{}", type="make")


def at(text: str) -> float:
    return datetime.fromisoformat(f"2026-11-15T{text}+00:00").timestamp()


START = at("10:07:30")


def spec(**fields: Any) -> ScheduleSpec:
    fields.setdefault("name", "report")
    if "every" not in fields:
        fields.setdefault("cron", "* * * * *")
    return ScheduleSpec(job=fields.pop("job", JOB), **fields)


def schedule(state: ScheduleState | None = None, **fields: Any) -> Schedule:
    """A schedule that an operator made at 10:07:30."""
    made = create(spec(**fields), Source.OPERATOR, START, 0.0)
    return made if state is None else replace(made, state=state)


def due(
    next_at: str, now: str, *, busy: bool = False, rules: TickRules = RULES, **fields: Any
) -> TickPlan:
    """The plan for a schedule whose next tick is ``next_at``."""
    waiting = fields.pop("waiting", None)
    state = ScheduleState(next_at=at(next_at), waiting_at=None if waiting is None else at(waiting))
    return plan(schedule(state, **fields), at(now), rules, busy=busy)


def ticks(made: TickPlan) -> list[str]:
    return [datetime.fromtimestamp(tick, UTC).strftime("%H:%M:%S") for tick in made.ticks]


# -- what is valid -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"cron": ""}, "cron"),
        ({"cron": "* * * *"}, "cron"),
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"cron": "* * * * *", "every": 5}, "cron"),
        ({"every": 0}, "every"),
        ({"every": MAX_EVERY + 1}, "every"),
        ({"every": 1.5}, "every"),
        ({"every": True}, "every"),
        ({"every": 5, "timezone": "Europe/Zurich"}, "timezone"),
        ({"timezone": "Mars/Base"}, "timezone"),
        ({"catch_up": -1.0}, "catch_up"),
        ({"catch_up": float("nan")}, "catch_up"),
        ({"job": replace(JOB, payload=b"x" * (MAX_PAYLOAD_BYTES + 1))}, "payload"),
        ({"job": replace(JOB, key="k")}, "idempotency_key"),
        ({"job": replace(JOB, run_at=1.0)}, "run_at"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        spec(**fields).check()
    assert caught.value.field == field


def test_the_job_of_a_tick_has_its_key_and_its_label() -> None:
    job = spec(job=replace(JOB, labels={"team": "a"})).tick(at("10:08"))
    assert job.key == "cron:report:2026-11-15T10:08:00Z"
    assert job.labels == {"team": "a", "cron": "report"}
    assert (job.type, job.payload) == ("make", b"{}")


@given(st.integers(1, MAX_EVERY), st.floats(0, 4e9))
def test_intervals_meet_the_multiples_of_their_length(every: int, now: float) -> None:
    interval = FixedInterval(every)
    following, before = interval.next(now), interval.previous(now)
    assert before <= now < following
    assert following % every == before % every == 0
    assert following - before == every


# -- a new schedule ----------------------------------------------------------------------------


def test_an_operators_schedule_begins_with_its_next_tick() -> None:
    assert schedule().state == ScheduleState(next_at=at("10:08"))


def test_a_declared_schedule_submits_its_newest_missed_tick() -> None:
    hourly = spec(cron="@hourly")
    assert create(hourly, Source.CODE, START, HOUR).state.next_at == at("10:00")
    assert create(hourly, Source.CODE, START, 60.0).state.next_at == at("11:00")
    assert create(hourly, Source.CODE, START, 0.0).state.next_at == at("11:00")


# -- ticks as time passes ----------------------------------------------------------------------


def test_nothing_is_due_before_the_tick() -> None:
    made = due("10:08", "10:07:59")
    assert (made.ticks, made.state.next_at) == ((), at("10:08"))


def test_a_tick_is_submitted_once() -> None:
    made = due("10:08", "10:08:00")
    assert ticks(made) == ["10:08:00"]
    after = settle(ScheduleState(next_at=at("10:08")), made, [TickOutcome("j1")])
    assert (after.last_at, after.last_job_id, after.next_at) == (at("10:08"), "j1", at("10:09"))
    assert plan(schedule(after), at("10:08:30"), RULES, busy=False).ticks == ()


def test_every_tick_of_a_change_of_the_leader_is_submitted() -> None:
    made = due("10:08:00", "10:08:10", every=1)
    assert ticks(made) == [f"10:08:{second:02}" for second in range(11)]
    assert (made.state.next_at, made.state.skipped, made.notes) == (at("10:08:11"), 0, ())


def test_of_missed_ticks_the_newest_is_submitted() -> None:
    made = due("10:08", "13:30:40")
    assert ticks(made) == ["13:30:00"]
    assert (made.state.next_at, made.state.skipped) == (at("13:31"), 202)
    assert made.state.skipped_at == at("13:29")
    assert "202 ticks from 2026-11-15T10:08:00Z to 2026-11-15T13:29:00Z" in made.notes[0]


def test_ticks_on_time_make_older_ones_superfluous() -> None:
    made = due("10:07:00", "10:08:00", every=5)
    assert ticks(made) == ["10:07:45", "10:07:50", "10:07:55", "10:08:00"]
    assert (made.state.skipped, made.state.skipped_at) == (9, at("10:07:40"))


def test_a_tick_that_is_too_late_is_skipped() -> None:
    made = due("11:00", "11:10:01", cron="@hourly", catch_up=600.0)
    assert (made.ticks, made.state.next_at) == ((), at("12:00"))
    assert (made.state.skipped, made.state.skipped_at) == (1, at("11:00"))
    assert "more than 600 s late" in made.state.skipped_why
    assert ticks(due("11:00", "11:10", cron="@hourly", catch_up=600.0)) == ["11:00:00"]


def test_without_catching_up_a_tick_may_be_late_by_a_moment_only() -> None:
    assert ticks(due("11:00", "11:00:15", cron="@hourly", catch_up=0.0)) == ["11:00:00"]
    assert ticks(due("11:00", "11:00:16", cron="@hourly", catch_up=0.0)) == []


def test_the_servers_catch_up_applies_to_schedules_without_one() -> None:
    def late(rules: TickRules) -> list[str]:
        return ticks(due("11:00", "11:10", cron="@hourly", rules=rules))

    assert late(TickRules(catch_up=600.0)) == ["11:00:00"]
    assert late(TickRules(catch_up=599.0)) == []
    # Later its key could be free again, and a second job of the tick be accepted.
    assert late(TickRules(key_ttl=599.0)) == []


def test_ten_years_of_silence_are_counted_to_a_thousand() -> None:
    before = schedule(ScheduleState(next_at=at("10:08")))
    made = plan(before, START + 10 * 365 * 86_400, RULES, busy=False)
    assert (len(made.ticks), made.state.skipped) == (1, 999)
    assert "999" in made.notes[0]


def test_a_clock_that_was_ahead_costs_no_tick() -> None:
    made = due("17:31", "10:09:03")
    assert ticks(made) == ["10:09:00"]  # its key says if it was submitted before
    assert made.state.next_at == at("10:10")
    assert "the clock was set back" in made.notes[0]


def test_a_leader_whose_clock_is_a_little_behind_waits() -> None:
    made = due("10:08:10", "10:08:03", every=1)
    assert (made.ticks, made.state.next_at) == ((), at("10:08:10"))


# -- overlap -----------------------------------------------------------------------------------


def test_allow_submits_whatever_runs() -> None:
    assert ticks(due("10:08", "10:08:00", busy=True)) == ["10:08:00"]


def test_skip_leaves_a_tick_out_while_the_last_job_is_unfinished() -> None:
    made = due("10:08", "10:08:00", busy=True, overlap=Overlap.SKIP)
    assert (made.ticks, made.state.next_at, made.state.skipped) == ((), at("10:09"), 1)
    assert (made.state.skipped_at, made.state.skipped_why) == (
        at("10:08"),
        "the last job is unfinished",
    )
    assert ticks(due("10:08", "10:08:00", overlap=Overlap.SKIP)) == ["10:08:00"]


def test_skip_submits_the_first_of_several_late_ticks() -> None:
    """A leader that died may have submitted the first tick and no other."""
    made = due("10:08:00", "10:08:03", every=1, overlap=Overlap.SKIP)
    assert ticks(made) == ["10:08:00"]
    assert (made.state.skipped, made.state.skipped_at) == (3, at("10:08:03"))


def test_queue_lets_one_tick_wait_and_skips_the_others() -> None:
    made = due("10:08:00", "10:08:02", busy=True, every=1, overlap=Overlap.QUEUE)
    assert made.ticks == ()
    assert (made.state.waiting_at, made.state.skipped) == (at("10:08:00"), 2)
    assert made.state.due_at == at("10:08:00")  # so that the leader looks again
    again = plan(
        schedule(made.state, every=1, overlap=Overlap.QUEUE), at("10:08:02.5"), RULES, busy=True
    )
    assert (again.ticks, again.state) == ((), made.state)


def test_a_tick_that_waited_is_submitted_when_the_last_job_has_ended() -> None:
    made = due("10:09", "10:08:30", waiting="10:08", overlap=Overlap.QUEUE)
    assert ticks(made) == ["10:08:00"]
    assert (made.state.waiting_at, made.state.next_at) == (None, at("10:09"))
    made = due("10:09", "10:09:00", waiting="10:08", overlap=Overlap.QUEUE)
    assert (ticks(made), made.state.waiting_at) == (["10:08:00"], at("10:09"))


def test_a_tick_that_waits_is_submitted_if_the_policy_changes() -> None:
    assert ticks(due("10:09", "10:08:30", waiting="10:08", busy=True)) == ["10:08:00"]


# -- refused ticks -----------------------------------------------------------------------------


def test_a_tick_that_is_refused_for_now_is_due_again() -> None:
    before = ScheduleState(next_at=at("10:08"))
    made = plan(schedule(before), at("10:08"), RULES, busy=False)
    after = settle(before, made, [TickOutcome(error=QueueFull("queue 'q' is full", 1.0))])
    assert after == replace(before, problem="queue 'q' is full")
    again = plan(schedule(after), at("10:08:01"), RULES, busy=False)
    assert settle(after, again, [TickOutcome("j")]).problem == ""


def test_ticks_before_the_refused_one_are_recorded() -> None:
    before = ScheduleState(next_at=at("10:08:00"))
    made = plan(schedule(before, every=1), at("10:08:02"), RULES, busy=False)
    outcomes = [TickOutcome("j0"), TickOutcome(error=Unavailable("away")), TickOutcome("j2")]
    after = settle(before, made, outcomes)
    assert (after.next_at, after.last_at, after.last_job_id) == (
        at("10:08:01"),
        at("10:08:00"),
        "j0",
    )


def test_a_tick_that_can_never_be_accepted_is_skipped() -> None:
    before = ScheduleState(next_at=at("10:08"))
    made = plan(schedule(before), at("10:08"), RULES, busy=False)
    after = settle(before, made, [TickOutcome(error=InvalidArgument("payload", "too large"))])
    assert (after.next_at, after.skipped) == (at("10:09"), 1)
    assert after.problem == "payload: too large"


# -- changes -----------------------------------------------------------------------------------


def test_a_pause_skips_the_ticks_until_it_ends() -> None:
    running = schedule(ScheduleState(next_at=at("10:08"), waiting_at=at("10:07")))
    paused = pause(running, START)
    assert paused is not None
    assert (paused.state.paused, paused.state.next_at, paused.state.waiting_at) == (
        True,
        None,
        None,
    )
    assert (paused.state.skipped, paused.revision, paused.state.due_at) == (1, 2, None)
    assert pause(paused, START) is None
    assert plan(paused, at("12:00"), RULES, busy=False).ticks == ()
    resumed = resume(paused, at("12:00"))
    assert resumed is not None
    assert (resumed.state.paused, resumed.state.next_at, resumed.revision) == (
        False,
        at("12:01"),
        3,
    )
    assert resume(resumed, at("12:00")) is None


def test_a_definition_that_is_declared_again_changes_nothing() -> None:
    assert redefine(schedule(), spec(), at("11:00")) is None


def test_another_definition_keeps_the_pause_and_the_last_tick() -> None:
    paused = pause(schedule(ScheduleState(next_at=at("10:08"), last_job_id="j")), START)
    assert paused is not None
    changed = redefine(paused, spec(cron="@hourly"), at("10:30"))
    assert changed is not None
    assert (changed.spec.cron, changed.state, changed.revision) == ("@hourly", paused.state, 3)
    resumed = resume(changed, at("10:30"))
    assert resumed is not None
    assert resumed.state.next_at == at("11:00")


def test_other_times_begin_with_the_next_tick_and_other_work_at_once() -> None:
    before = schedule(ScheduleState(next_at=at("10:08")))
    later = redefine(before, spec(cron="@hourly"), at("10:07:40"))
    assert later is not None
    assert later.state.next_at == at("11:00")
    other = redefine(before, spec(job=replace(JOB, priority=9)), at("10:07:40"))
    assert other is not None
    assert other.state == before.state


def test_a_run_by_hand_is_the_last_job() -> None:
    after = ran_by_hand(schedule(), "j", START + 0.7)
    assert (after.state.last_at, after.state.last_job_id) == (START, "j")
    assert after.state.next_at == at("10:08")
