"""The owner of the canonical status: creation, keys, compare-and-set, times, room."""

from __future__ import annotations

import itertools
import uuid

import pytest

from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import (
    InvalidArgument,
    KeyConflict,
    NotFound,
    PermissionDenied,
    QueueFull,
)
from jobqueue.taskqueue.components.model import Actor, Applied, CreatedJob, Spec, Status
from jobqueue.taskqueue.components.state import JobLedger
from tests.taskqueue.protocols.rig import SPEC, Lines

Q, R, D, F, C = Status
ALLOWED = {
    (Q, R): Actor.COORDINATOR,
    (Q, C): Actor.GATEWAY,
    (R, D): Actor.COORDINATOR,
    (R, F): Actor.COORDINATOR,
    (R, C): Actor.COORDINATOR,
}
WAYS = {Q: [], R: [R], D: [R, D], F: [R, F], C: [R, C]}
_ids = itertools.count()


def rid() -> str:
    return f"r{next(_ids)}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger(clock: ManualClock) -> JobLedger:
    return JobLedger(clock=clock)


async def create(ledger: JobLedger, key: str = "", spec: Spec = SPEC) -> CreatedJob:
    return await ledger.create(spec, key, request_id=rid())


async def move(ledger: JobLedger, job_id: str, expected: Status, to: Status, reason: str = ""):
    return await ledger.transition(
        job_id, expected, to, actor=ALLOWED[expected, to], reason=reason, request_id=rid()
    )


async def at(ledger: JobLedger, status: Status) -> str:
    """A job that has come to this status."""
    job_id = (await create(ledger)).job_id
    now = Q
    for to in WAYS[status]:
        assert (await move(ledger, job_id, now, to)).applied
        now = to
    return job_id


@pytest.mark.req("tq:FR-1", "tq:LOCK-35")
async def test_a_job_begins_queued_with_a_new_uuid4(ledger: JobLedger):
    first, second = await create(ledger), await create(ledger)
    assert first.created
    assert first.status is Q
    assert first.job_id != second.job_id
    assert uuid.UUID(first.job_id).version == 4
    record = await ledger.get(first.job_id)
    assert record.spec == SPEC
    assert record.summary.job_type == SPEC.job_type
    assert not record.summary.cancel_requested


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.req("tq:DEDUP", "tq:LOCK-36")
async def test_the_same_key_and_spec_is_the_same_job_whatever_the_order_of_labels(ledger):
    spec = Spec("t", 1, 2, {"a": "1", "b": "2"})
    first = await create(ledger, "k", spec)
    again = await create(ledger, "k", Spec("t", 1, 2, {"b": "2", "a": "1"}))
    assert again == CreatedJob(first.job_id, Q, created=False)
    assert len(ledger) == 1


@pytest.mark.req("tq:DEDUP", "tq:LOCK-36")
@pytest.mark.parametrize(
    "other",
    [
        Spec("u", 1, 2, {"a": "1"}),
        Spec("t", 9, 2, {"a": "1"}),
        Spec("t", 1, 9, {"a": "1"}),
        Spec("t", 1, 2, {"a": "9"}),
        Spec("t", 1, 2, {}),
        Spec("t", 1, 2, {"a": "1", "b": ""}),
    ],
    ids=["type", "duration", "size", "label", "no label", "one label more"],
)
async def test_the_same_key_with_another_spec_is_a_conflict_and_changes_nothing(ledger, other):
    first = await create(ledger, "k", Spec("t", 1, 2, {"a": "1"}))
    with pytest.raises(KeyConflict, match="client_request_id") as caught:
        await create(ledger, "k", other)
    assert caught.value.job_id == first.job_id
    assert len(ledger) == 1


@pytest.mark.req("tq:DEDUP", "tq:LOCK-14")
async def test_without_a_key_every_create_is_a_new_job(ledger: JobLedger):
    assert (await create(ledger)).job_id != (await create(ledger)).job_id


@pytest.mark.req("tq:DEDUP")
async def test_a_duplicate_is_told_the_status_that_the_job_has_now(ledger: JobLedger):
    job_id = (await create(ledger, "k")).job_id
    await move(ledger, job_id, Q, R)
    assert await create(ledger, "k") == CreatedJob(job_id, R, created=False)


@pytest.mark.req("tq:DEDUP", "tq:LOCK-25")
async def test_the_oldest_key_is_forgotten_when_there_are_too_many(clock: ManualClock):
    ledger = JobLedger(max_dedup_keys=2, clock=clock)
    jobs = {key: (await create(ledger, key)).job_id for key in ("a", "b", "c")}
    assert (await create(ledger, "b")).job_id == jobs["b"]
    assert (await create(ledger, "c")).job_id == jobs["c"]
    again = await create(ledger, "a")
    assert again.created
    assert again.job_id != jobs["a"]
    assert await ledger.get(jobs["a"])  # only the key went


@pytest.mark.req("tq:DEDUP")
async def test_a_deleted_job_frees_its_key(ledger: JobLedger):
    job_id = (await create(ledger, "k")).job_id
    assert await ledger.delete_if(job_id, Q, request_id=rid()) == Applied(True, None)
    again = await create(ledger, "k", Spec("other"))
    assert again.created


async def test_a_delete_frees_no_key_that_another_job_has_by_now(clock: ManualClock):
    ledger = JobLedger(max_dedup_keys=1, clock=clock)
    old = (await create(ledger, "k")).job_id
    await create(ledger, "l")  # pushes out k
    new = (await create(ledger, "k")).job_id
    await ledger.delete_if(old, Q, request_id=rid())
    assert await create(ledger, "k") == CreatedJob(new, Q, created=False)


# -- delete ----------------------------------------------------------------------------------------


@pytest.mark.req("tq:CODES", "tq:SUBMIT", "tq:LOCK-1")
@pytest.mark.parametrize("status", [R, D, F, C])
async def test_a_delete_with_another_status_than_expected_does_nothing(ledger, status):
    job_id = await at(ledger, status)
    assert await ledger.delete_if(job_id, Q, request_id=rid()) == Applied(False, status)
    assert (await ledger.get(job_id)).summary.status is status


async def test_a_delete_of_nothing_is_told_so(ledger: JobLedger):
    assert await ledger.delete_if("gone", Q, request_id=rid()) == Applied(False, None)


async def test_what_is_deleted_is_not_counted_as_ended(ledger: JobLedger):
    job_id = await at(ledger, D)
    await create(ledger)
    await ledger.delete_if(job_id, D, request_id=rid())
    assert len(ledger) == 1
    assert ledger.unfinished == 1


# -- compare and set -------------------------------------------------------------------------------


@pytest.mark.req("tq:CODES", "tq:LOCK-4", "tq:LOCK-30", "tq:TERMINAL")
@pytest.mark.parametrize("move_", ALLOWED, ids=lambda m: f"{m[0].name}-{m[1].name}")
@pytest.mark.parametrize("current", Status, ids=lambda s: s.name)
async def test_a_transition_applies_only_from_the_status_it_expects(ledger, move_, current):
    expected, to = move_
    job_id = await at(ledger, current)
    before = await ledger.get(job_id)
    answer = await move(ledger, job_id, expected, to)
    if current is expected:
        assert answer == Applied(True, to)
        assert (await ledger.get(job_id)).summary.status is to
    else:
        assert answer == Applied(False, current)
        assert await ledger.get(job_id) == before


@pytest.mark.req("tq:TERMINAL", "tq:LOCK-4")
@pytest.mark.parametrize("first", [D, F, C], ids=lambda s: s.name)
@pytest.mark.parametrize("later", [D, F, C], ids=lambda s: s.name)
async def test_the_first_terminal_status_stays_and_the_later_one_is_logged(
    ledger, lines: Lines, first, later
):
    job_id = await at(ledger, first)
    assert await move(ledger, job_id, R, later) == Applied(False, first)
    (line,) = lines.of("expected_race", job_id)
    assert line.levelname == "WARNING"
    assert line.__dict__["current_status"] == first.name


@pytest.mark.req("tq:TERMINAL")
@pytest.mark.parametrize(
    "pair",
    [pair for pair in itertools.product(Status, Status) if pair not in ALLOWED],
    ids=lambda m: f"{m[0].name}-{m[1].name}",
)
async def test_what_the_table_does_not_list_is_refused_and_logged(ledger, lines: Lines, pair):
    expected, to = pair
    job_id = await at(ledger, expected)
    for actor in Actor:
        with pytest.raises(InvalidArgument, match=f"to_status.*{expected.name} to {to.name}"):
            await ledger.transition(job_id, expected, to, actor=actor, request_id=rid())
    assert len(lines.of("invalid_transition", job_id)) == len(Actor)
    assert (await ledger.get(job_id)).summary.status is expected


@pytest.mark.req("tq:MATRIX")
@pytest.mark.parametrize("pair", ALLOWED, ids=lambda m: f"{m[0].name}-{m[1].name}")
async def test_a_transition_is_its_actors_alone(ledger: JobLedger, pair):
    expected, to = pair
    job_id = await at(ledger, expected)
    for actor in [a for a in Actor if a is not ALLOWED[pair]]:
        with pytest.raises(PermissionDenied):
            await ledger.transition(job_id, expected, to, actor=actor, request_id=rid())
    assert (await ledger.get(job_id)).summary.status is expected


async def test_unknown_jobs_are_not_found(ledger: JobLedger):
    for call in (
        ledger.get("gone"),
        ledger.transition("gone", Q, R, actor=Actor.COORDINATOR, request_id=rid()),
        ledger.request_cancel("gone", "", request_id=rid()),
    ):
        with pytest.raises(NotFound, match="'gone'"):
            await call


async def test_a_message_about_a_long_id_is_short(ledger: JobLedger):
    with pytest.raises(NotFound) as caught:
        await ledger.get("x" * 100_000)
    assert len(caught.value.message) < 200


@pytest.mark.req("tq:FR-2")
async def test_a_failure_reason_is_there_when_the_job_failed_and_only_then(ledger: JobLedger):
    failed, done = await at(ledger, R), await at(ledger, R)
    await move(ledger, failed, R, F, "boom")
    await move(ledger, done, R, D, "boom")
    assert (await ledger.get(failed)).failure_reason == "boom"
    assert (await ledger.get(done)).failure_reason == ""


# -- cancel flag -----------------------------------------------------------------------------------


@pytest.mark.req("tq:CANCEL", "tq:LOCK-39")
@pytest.mark.parametrize("status", Status, ids=lambda s: s.name)
async def test_the_cancel_flag_is_set_while_the_job_has_not_ended(ledger, status):
    job_id = await at(ledger, status)
    for _ in range(2):
        answer = await ledger.request_cancel(job_id, "why", request_id=rid())
        assert answer == Applied(not status.terminal, status)
    summary = (await ledger.get(job_id)).summary
    assert summary.cancel_requested is not status.terminal
    assert summary.status is status


async def test_the_flag_stays_when_the_status_changes(ledger: JobLedger):
    job_id = await at(ledger, Q)
    await ledger.request_cancel(job_id, "", request_id=rid())
    await move(ledger, job_id, Q, R)
    assert (await ledger.get(job_id)).summary.cancel_requested


# -- times -----------------------------------------------------------------------------------------


@pytest.mark.req("tq:LOCK-8", "tq:LOCK-41")
async def test_the_ledger_stamps_creation_start_and_end(ledger: JobLedger, clock: ManualClock):
    began = int(clock.now() * 1000)
    job_id = (await create(ledger)).job_id
    clock.advance(1)
    await ledger.request_cancel(job_id, "", request_id=rid())
    await move(ledger, job_id, Q, R)
    assert (await ledger.get(job_id)).summary.finished_at_ms == 0
    clock.advance(1)
    await move(ledger, job_id, R, D)
    clock.advance(1)
    await move(ledger, job_id, R, F)  # too late: stamps nothing
    summary = (await ledger.get(job_id)).summary
    stamps = (summary.created_at_ms, summary.started_at_ms, summary.finished_at_ms)
    assert stamps == (began, began + 1000, began + 2000)


@pytest.mark.req("tq:LOCK-41")
async def test_what_was_canceled_while_queued_never_started(ledger, clock: ManualClock):
    job_id = (await create(ledger)).job_id
    clock.advance(1)
    await move(ledger, job_id, Q, C)
    summary = (await ledger.get(job_id)).summary
    assert summary.started_at_ms == 0
    assert summary.finished_at_ms == summary.created_at_ms + 1000


@pytest.mark.req("tq:LOCK-41")
async def test_a_clock_that_goes_back_does_not_take_the_times_with_it(ledger, clock: ManualClock):
    early = (await create(ledger)).job_id
    clock.advance(-60)
    late = (await create(ledger)).job_id
    times = [(await ledger.get(job)).summary.created_at_ms for job in (early, late)]
    assert times == sorted(times)


# -- room, and what a repeated request is told -----------------------------------------------------


async def test_the_job_that_ended_first_makes_room_and_frees_its_key(clock: ManualClock):
    ledger = JobLedger(max_jobs=3, clock=clock)
    waiting = (await create(ledger, "w")).job_id
    first, second = (await create(ledger, "f")).job_id, (await create(ledger, "s")).job_id
    for job_id in (second, first):
        await move(ledger, job_id, Q, C)
    await create(ledger)
    with pytest.raises(NotFound):
        await ledger.get(second)
    assert await ledger.get(first)
    assert await ledger.get(waiting)
    assert (await create(ledger, "s")).created
    assert ledger.unfinished == len(ledger) == 3


@pytest.mark.req("tq:NFR-5")
async def test_a_job_that_has_not_ended_never_makes_room(clock: ManualClock):
    ledger = JobLedger(max_jobs=2, clock=clock)
    job_ids = [(await create(ledger)).job_id for _ in range(2)]
    with pytest.raises(QueueFull, match="2 jobs"):
        await create(ledger)
    for job_id in job_ids:
        assert await ledger.get(job_id)


@pytest.mark.req("tq:CODES")
async def test_a_repeated_request_is_told_the_first_answer_and_changes_nothing(ledger):
    created = await ledger.create(SPEC, "", request_id="one")
    assert await ledger.create(SPEC, "", request_id="one") == created
    assert len(ledger) == 1
    job_id = created.job_id

    async def start() -> Applied:
        return await ledger.transition(job_id, Q, R, actor=Actor.COORDINATOR, request_id="two")

    assert await start() == Applied(True, R)
    assert await start() == Applied(True, R)
    await move(ledger, job_id, R, D)
    assert await ledger.delete_if(job_id, D, request_id="three") == Applied(True, None)
    assert await ledger.delete_if(job_id, D, request_id="three") == Applied(True, None)


@pytest.mark.req("tq:CODES")
async def test_an_id_that_was_used_for_another_request_is_no_repetition(ledger):
    other = Spec("other")
    created = [await ledger.create(spec, "", request_id="one") for spec in (SPEC, other)]
    assert [(await ledger.get(one.job_id)).spec for one in created] == [SPEC, other]
    for job_id in (one.job_id for one in created):
        started = await ledger.transition(job_id, Q, R, actor=Actor.COORDINATOR, request_id="two")
        assert started == Applied(True, R)
        assert (await ledger.get(job_id)).summary.status is R
        assert await ledger.request_cancel(job_id, "", request_id="three") == Applied(True, R)
        assert (await ledger.get(job_id)).summary.cancel_requested
        assert await ledger.delete_if(job_id, R, request_id="four") == Applied(True, None)
    assert len(ledger) == 0


async def test_unfinished_counts_what_has_not_ended(ledger: JobLedger):
    for status in Status:
        await at(ledger, status)
    assert len(ledger) == 5
    assert ledger.unfinished == 2
