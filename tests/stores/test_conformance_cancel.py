"""Cancel: at once where nothing runs, by a flag where something does."""

from __future__ import annotations

import pytest

from jobqueue.core.job import Refusal, Transition
from jobqueue.core.lifecycle import Reason, State
from tests.stores.driver import Driver, worker

P, A, R, D, F, X = State


@pytest.mark.req("jq:FR-012")
@pytest.mark.parametrize("state", [P, A, F])
async def test_what_does_not_run_is_cancelled_at_once(driver: Driver, state: State):
    job = await driver.brought_to(state)
    outcome = await driver.do(Transition.cancelled(job.seq))
    assert (outcome.state, outcome.reason) == (X, Reason.CANCELLED)
    after = await driver.job(job.id)
    assert (after.state, after.reason, after.version) == (X, Reason.CANCELLED, job.version + 1)
    assert await driver.claim(5) == []
    await driver.after(1_000.0)
    assert await driver.state(job.id) is X


@pytest.mark.req("jq:FR-012")
async def test_the_lease_of_a_cancelled_assignment_does_not_stand(driver: Driver):
    await driver.store.workers.register(worker())
    a = await driver.assigned()
    outcome = await driver.do(Transition.cancelled(a.seq))
    assert (outcome.lease, outcome.worker_id) == (a.lease, "w")
    assert await driver.store.workers.held() == []
    assert driver.store.workers.pulse("w", 1, [a.lease]).lost == [a.lease]
    (late,) = await driver.apply(Transition.started(a.seq, a.lease))
    assert late.refusal is Refusal.STALE_LEASE


@pytest.mark.parametrize("state", [R, D, X])
async def test_a_running_or_finished_job_is_not_cancelled_by_a_move(driver: Driver, state: State):
    job = await driver.brought_to(state)
    (outcome,) = await driver.apply(Transition.cancelled(job.seq))
    assert (outcome.refusal, outcome.state) == (Refusal.WRONG_STATE, state)


async def test_a_request_flags_a_running_job_without_a_transition(driver: Driver):
    a = await driver.running()
    held = await driver.store.jobs.request_cancel(a.seq)
    assert held is not None
    assert (held.seq, held.lease, held.worker_id, held.state) == (a.seq, a.lease, "w", R)
    assert held.cancel_requested
    job = await driver.job(a.id)
    assert (job.state, job.version, job.cancel_requested) == (R, 3, True)
    assert await driver.store.jobs.request_cancel(a.seq) is not None, "asking twice is fine"


@pytest.mark.parametrize("state", [P, A, D, F, X])
async def test_only_a_running_job_can_be_flagged(driver: Driver, state: State):
    job = await driver.brought_to(state)
    assert await driver.store.jobs.request_cancel(job.seq) is None
    assert await driver.job(job.id) == job


async def test_a_request_for_no_job_is_none(driver: Driver):
    assert await driver.store.jobs.request_cancel(987_654_321) is None


@pytest.mark.parametrize("report", ["succeed", "fail", "time out", "acknowledge", "lose"])
async def test_a_requested_cancel_wins_over_whatever_is_reported_later(driver: Driver, report: str):
    a = await driver.running()
    await driver.store.jobs.request_cancel(a.seq)
    outcome = await driver.do(
        {
            "succeed": Transition.succeeded(a.seq, a.lease, b"result"),
            "fail": Transition.failed(a.seq, a.lease, "boom"),
            "time out": Transition.timed_out(a.seq, a.lease),
            "acknowledge": Transition.cancel_acknowledged(a.seq, a.lease),
            "lose": Transition.worker_lost(a.seq, a.lease, "gone"),
        }[report]
    )
    assert (outcome.state, outcome.reason) == (X, Reason.CANCELLED)
    job = await driver.job(a.id)
    assert (job.state, job.reason, job.version, job.result) == (X, Reason.CANCELLED, 5, None)
    edges = await driver.edges(a.id)
    assert [state for state, _ in edges] == [P, A, R, F, X]
    assert edges[-1][1] is Reason.CANCELLED


async def test_a_heartbeat_names_the_leases_to_stop(driver: Driver):
    await driver.store.workers.register(worker())
    a = await driver.running(payload=b"a")
    b = await driver.running(payload=b"b")
    await driver.store.jobs.request_cancel(a.seq)
    pulse = driver.store.workers.pulse("w", 1, [a.lease, b.lease])
    assert (pulse.cancelled, pulse.lost) == ([a.lease], [])
    assert [
        h.cancel_requested for h in sorted(await driver.store.workers.held(), key=lambda h: h.seq)
    ] == [
        True,
        False,
    ]
