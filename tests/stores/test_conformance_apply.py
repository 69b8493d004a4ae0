"""Apply: the only write path. Fences, both transitions of a quick job, refusals."""

from __future__ import annotations

import itertools

import pytest

from jobqueue.core.job import Assignment, Refusal, Transition
from jobqueue.core.lifecycle import FENCED, PATHS, Move, Reason, State
from tests.stores.driver import Driver

P, A, R, D, F, X = State


@pytest.mark.req("jq:FR-029", "jq:FR-011")
async def test_a_job_runs_and_is_done(driver: Driver):
    assignment = await driver.assigned()
    driver.clock.advance(1.0)
    await driver.start(assignment)
    job = await driver.job(assignment.id)
    assert (job.state, job.version, job.started_at) == (R, 3, driver.clock.now())
    driver.clock.advance(2.0)
    outcome = await driver.do(
        Transition.succeeded(assignment.seq, assignment.lease, b'{"sum": 3}', 2.0)
    )
    assert (outcome.state, outcome.reason, outcome.job_id, outcome.queue) == (
        D,
        Reason.SUCCEEDED,
        assignment.id,
        "q",
    )
    assert (outcome.lease, outcome.worker_id) == (assignment.lease, "w")
    job = await driver.job(assignment.id)
    assert (job.state, job.version, job.result) == (D, 4, b'{"sum": 3}')
    assert job.completed_at == driver.clock.now()
    assert (job.error, job.reason, job.worker_id) == ("", Reason.SUCCEEDED, "w")
    assert await driver.edges(assignment.id) == [
        (P, Reason.SUBMITTED),
        (A, Reason.ASSIGNED),
        (R, Reason.STARTED),
        (D, Reason.SUCCEEDED),
    ]


@pytest.mark.req("jq:FR-029")
@pytest.mark.parametrize("result", [None, b"", b"\x00\xff", b"x" * 1_000_000])
async def test_results_are_opaque_and_may_be_empty(driver: Driver, result: bytes | None):
    assignment = await driver.running()
    await driver.succeed(assignment, result)
    assert ((await driver.job(assignment.id)).result or b"") == (result or b"")


@pytest.mark.req("jq:FR-030", "tq:RESULT")
@pytest.mark.parametrize("report", ["succeed", "fail"])
@pytest.mark.parametrize("ran_for", [9.0, 2.5, 2.0, 1.5, None])
async def test_a_job_began_when_its_worker_says_if_that_is_earlier(
    driver: Driver, report: str, ran_for: float | None
):
    """The store hears of the start a little later; what is shown covers the whole run.

    But a worker that tells tales does not make a job begin before it was submitted.
    """
    a = await driver.assigned()
    driver.clock.advance(1.0)
    await driver.start(a)
    heard = driver.clock.now()
    driver.clock.advance(2.0)
    await driver.do(
        Transition.succeeded(a.seq, a.lease, b"r", ran_for)
        if report == "succeed"
        else Transition.failed(a.seq, a.lease, "boom", retryable=False, ran_for=ran_for)
    )
    job = await driver.job(a.id)
    began = heard - {9.0: 1.0, 2.5: 0.5}.get(ran_for or 0.0, 0.0)
    assert job.started_at == pytest.approx(began, rel=0, abs=0.001)
    assert job.completed_at == pytest.approx(heard + 2.0, rel=0, abs=0.001)


@pytest.mark.req("jq:FR-010", "jq:FR-011")
@pytest.mark.parametrize("report", ["succeed", "fail", "time out", "acknowledge"])
async def test_a_report_on_an_unstarted_lease_writes_both_transitions(driver: Driver, report: str):
    a = await driver.assigned()
    driver.clock.advance(1.0)
    reports = {
        "succeed": Transition.succeeded(a.seq, a.lease, b"r", 0.1),
        "fail": Transition.failed(a.seq, a.lease, "boom", ran_for=0.1),
        "time out": Transition.timed_out(a.seq, a.lease, ran_for=0.1),
        "acknowledge": Transition.cancel_acknowledged(a.seq, a.lease, 0.1),
    }
    outcome = await driver.do(reports[report])
    edges = await driver.edges(a.id)
    assert edges[:3] == [(P, Reason.SUBMITTED), (A, Reason.ASSIGNED), (R, Reason.STARTED)]
    expected = {
        "succeed": [(D, Reason.SUCCEEDED)],
        "fail": [(F, Reason.HANDLER_FAILED)],
        "time out": [(F, Reason.TIMED_OUT)],
        "acknowledge": [(F, Reason.CANCELLED), (X, Reason.CANCELLED)],
    }[report]
    assert edges[3:] == expected
    job = await driver.job(a.id)
    assert (job.state, job.version) == (expected[-1][0], 3 + len(expected))
    assert outcome.state is job.state
    assert job.started_at is not None
    assert job.started_at == pytest.approx(driver.clock.now() - 0.1, rel=0, abs=0.001)


async def test_events_that_end_an_attempt_name_its_worker(driver: Driver):
    a = await driver.running()
    await driver.fail(a)
    b = await driver.assigned(payload=b"other")
    await driver.do(Transition.handed_back(b.seq, b.lease))
    for job_id in (a.id, b.id):
        events = await driver.store.reads.history(job_id)
        for event in events:
            if event.from_state in (A, R) or event.to_state is A:
                assert event.worker_id == "w", event


async def test_the_error_text_is_kept_with_the_job_and_its_event(driver: Driver):
    a = await driver.running()
    await driver.fail(a, "ValueError: naïve ✗")
    job = await driver.job(a.id)
    assert (job.error, job.result, job.completed_at) == ("ValueError: naïve ✗", None, None)
    event = (await driver.store.reads.history(a.id))[-1]
    assert (event.to_state, event.detail) == (F, "ValueError: naïve ✗")


@pytest.mark.parametrize("error", ["caf\udce9.txt: no such file", "nul \0 inside"], ids=ascii)
async def test_any_error_text_can_be_reported(driver: Driver, error: str):
    """Undecodable file names reach exceptions as lone surrogates; the job must still fail."""
    a = await driver.running(payload=b"a")
    b = await driver.running(payload=b"b")
    outcomes = await driver.apply(
        Transition.failed(a.seq, a.lease, error), Transition.succeeded(b.seq, b.lease, b"r")
    )
    assert [o.applied for o in outcomes] == [True, True]
    assert (await driver.job(a.id)).error
    (await driver.job(a.id)).error.encode()


def reports_on(a: Assignment, lease: int) -> list[Transition]:
    return [
        Transition.started(a.seq, lease),
        Transition.succeeded(a.seq, lease, b"late"),
        Transition.failed(a.seq, lease, "late"),
        Transition.timed_out(a.seq, lease),
        Transition.cancel_acknowledged(a.seq, lease),
        Transition.handed_back(a.seq, lease),
        Transition.worker_lost(a.seq, lease, "late"),
        Transition(a.seq, Move.TIME_OUT_ASSIGNMENT, lease),
    ]


async def unchanged(driver: Driver, job_id: str, *transitions: Transition) -> list[Refusal | None]:
    """Apply what must be refused; returns the refusals."""
    before = (await driver.job(job_id), await driver.store.reads.history(job_id))
    outcomes = await driver.apply(*transitions)
    assert (await driver.job(job_id), await driver.store.reads.history(job_id)) == before
    assert all(outcome.state is before[0].state for outcome in outcomes)
    return [outcome.refusal for outcome in outcomes]


@pytest.mark.req("jq:NFR-006")
async def test_a_stale_lease_is_refused_and_changes_nothing(driver: Driver):
    old = await driver.running()
    await driver.lose(old)
    await driver.after(1.0)
    new = await driver.claim_one(worker_id="w2")
    assert new.id == old.id
    refusals = await unchanged(driver, old.id, *reports_on(old, old.lease))
    assert set(refusals) == {Refusal.STALE_LEASE}
    await driver.start(new)
    refusals = await unchanged(driver, old.id, *reports_on(old, old.lease))
    assert set(refusals) == {Refusal.STALE_LEASE}
    await driver.succeed(new, b"the one")
    assert (await driver.job(old.id)).result == b"the one"
    refusals = await unchanged(driver, old.id, *reports_on(old, old.lease))
    assert set(refusals) == {Refusal.STALE_LEASE}


async def test_a_guessed_or_missing_lease_is_refused(driver: Driver):
    a = await driver.running()
    assert set(await unchanged(driver, a.id, *reports_on(a, a.lease ^ 1))) == {Refusal.STALE_LEASE}
    missing = [Transition(a.seq, move) for move in FENCED]
    assert set(await unchanged(driver, a.id, *missing)) == {Refusal.STALE_LEASE}


async def test_a_lease_of_another_job_is_refused(driver: Driver):
    a = await driver.running(payload=b"a")
    b = await driver.running(payload=b"b")
    assert await unchanged(driver, a.id, Transition.succeeded(a.seq, b.lease, b"r")) == [
        Refusal.STALE_LEASE
    ]


async def test_a_repeated_report_is_refused(driver: Driver):
    a = await driver.running()
    report = Transition.succeeded(a.seq, a.lease, b"r", 0.5)
    await driver.do(report)
    assert await unchanged(driver, a.id, report, report) == [Refusal.STALE_LEASE] * 2
    assert (await driver.stats()).succeeded == 1


async def test_a_repeated_start_is_refused_and_the_lease_still_stands(driver: Driver):
    a = await driver.running()
    assert await unchanged(driver, a.id, Transition.started(a.seq, a.lease)) == [
        Refusal.WRONG_STATE
    ]
    await driver.succeed(a)


async def test_two_reports_of_one_attempt_in_a_batch_apply_once(driver: Driver):
    a = await driver.assigned()
    outcomes = await driver.apply(
        Transition.started(a.seq, a.lease),
        Transition.succeeded(a.seq, a.lease, b"first"),
        Transition.succeeded(a.seq, a.lease, b"second"),
        Transition.failed(a.seq, a.lease, "third"),
    )
    assert [o.applied for o in outcomes] == [True, True, False, False]
    assert (await driver.job(a.id)).result == b"first"
    assert (await driver.job(a.id)).version == 4


async def test_a_batch_applies_item_by_item(driver: Driver):
    a = await driver.running(payload=b"a")
    b = await driver.running(payload=b"b")
    c = await driver.running(payload=b"c")
    outcomes = await driver.apply(
        Transition.succeeded(a.seq, a.lease, b"r"),
        Transition.succeeded(b.seq, a.lease, b"r"),
        Transition.succeeded(987_654_321, a.lease, b"r"),
        Transition.failed(c.seq, c.lease, "boom"),
    )
    assert [o.refusal for o in outcomes] == [
        None,
        Refusal.STALE_LEASE,
        Refusal.NO_SUCH_JOB,
        None,
    ]
    assert [await driver.state(x.id) for x in (a, b, c)] == [D, R, F]


async def test_nothing_to_apply_is_fine(driver: Driver):
    assert await driver.apply() == []


async def test_a_move_that_names_an_older_version_is_refused(driver: Driver):
    job = await driver.brought_to(P)
    stale = Transition(job.seq, Move.CANCEL, version=job.version - 1)
    assert await unchanged(driver, job.id, stale) == [Refusal.STALE_VERSION]
    await driver.do(Transition(job.seq, Move.CANCEL, version=job.version))


@pytest.mark.req("jq:FR-010")
@pytest.mark.parametrize(("move", "state"), [*itertools.product(Move, State)])
async def test_each_move_from_each_state_is_what_the_table_says(
    driver: Driver, move: Move, state: State
):
    job = await driver.brought_to(state, ttl=10.0)
    if move is Move.EXPIRE:
        driver.clock.advance(10.0)
    held = await driver.store.workers.held()
    lease = held[0].lease if held else 12345
    (outcome,) = await driver.apply(Transition(job.seq, move, lease))
    path = PATHS[move].get(state)
    if path is None:
        wrong_lease = move in FENCED and not held
        assert outcome.refusal is (Refusal.STALE_LEASE if wrong_lease else Refusal.WRONG_STATE)
        assert (await driver.job(job.id)) == job
        return
    assert outcome.applied
    after = (await driver.edges(job.id))[job.version :]
    assert after[: len(path)] == list(path)
    assert (await driver.job(job.id)).version == job.version + len(after)


IMPOSSIBLE = [-(2**63), -1, 0, 2**53, 2**63 - 1]  # numbers that no job has


@pytest.mark.parametrize("lease", [1, 2**62, 2**63 - 1])
async def test_reports_on_impossible_numbers_fail_no_others(driver: Driver, lease: int):
    a = await driver.assigned()
    odd = [
        made
        for seq in IMPOSSIBLE
        for made in (
            Transition.started(seq, lease),
            Transition.succeeded(seq, lease, b"r", 0.1),
            Transition.failed(seq, lease, "x"),
        )
    ]
    *refused, last = await driver.apply(*odd, Transition.succeeded(a.seq, a.lease, b"r", 0.1))
    assert {outcome.refusal for outcome in refused} == {Refusal.NO_SUCH_JOB}
    assert last.applied
    assert (await driver.job(a.id)).state is D


@pytest.mark.parametrize("wrong", [0, 1, 4])
async def test_many_reports_of_one_job_are_decided_in_order(driver: Driver, wrong: int):
    a = await driver.assigned()
    outcomes = await driver.apply(
        *(Transition.failed(a.seq, a.lease ^ (n + 1), "x") for n in range(wrong)),
        Transition.started(a.seq, a.lease),
        Transition.started(a.seq, a.lease),
        Transition.failed(a.seq, a.lease, "boom"),
        Transition.failed(a.seq, a.lease, "again"),
        Transition.succeeded(a.seq, a.lease, b"r", 0.1),
    )
    assert [one.applied for one in outcomes] == [False] * wrong + [True, False, True, False, False]
    job = await driver.job(a.id)
    assert (job.state, job.error, job.attempt) == (F, "boom", 1)
    assert await driver.edges(a.id) == [
        (P, Reason.SUBMITTED),
        (A, Reason.ASSIGNED),
        (R, Reason.STARTED),
        (F, Reason.HANDLER_FAILED),
    ]
    assert (await driver.store.reads.history(a.id))[-1].worker_id == "w"


async def test_many_reports_of_one_job_may_hand_it_back(driver: Driver):
    a = await driver.assigned()
    outcomes = await driver.apply(
        *(Transition.handed_back(a.seq, a.lease ^ (n + 1)) for n in range(3)),
        *(Transition.handed_back(a.seq, a.lease) for _ in range(3)),
    )
    assert [one.applied for one in outcomes] == [False, False, False, True, False, False]
    again = await driver.claim_one()
    assert (again.id, again.attempt) == (a.id, 2)
    await driver.succeed(again)
