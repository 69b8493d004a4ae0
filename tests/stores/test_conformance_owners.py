"""A worker belongs to the caller that registered it, and a lease to the worker that holds it."""

from __future__ import annotations

import pytest

from jobqueue.core.errors import PermissionDenied, RateLimited
from jobqueue.core.job import IN_PROCESS, Outcome, Refusal, Transition, WorkerStatus
from jobqueue.core.lifecycle import REPORTABLE, Move, State
from jobqueue.core.progress import Progress
from jobqueue.core.store import Rules
from tests.stores.conftest import OpenDriver
from tests.stores.driver import Driver, worker

pytestmark = pytest.mark.req("inp:PROD")
P, A, R, D, F, X = State


async def owners(driver: Driver) -> dict[str, tuple[int, str]]:
    """The incarnation and the owner of each worker."""
    return {
        one.info.id: (one.info.incarnation, one.info.owner)
        for one in await driver.store.workers.all()
    }


async def test_the_store_remembers_who_registered_a_worker(driver: Driver):
    for worker_id, owner in (("a", "alice"), ("b", ""), ("c", IN_PROCESS), ("d", "dörte @ x/y")):
        await driver.store.workers.register(worker(worker_id, owner=owner))
    found = {worker_id: owner for worker_id, (_, owner) in (await owners(driver)).items()}
    assert found == {"a": "alice", "b": "", "c": IN_PROCESS, "d": "dörte @ x/y"}


@pytest.mark.parametrize("incarnation", [1, 2])
@pytest.mark.parametrize("status", [s for s in WorkerStatus if s is not WorkerStatus.OFFLINE])
async def test_another_owner_cannot_register_the_id(
    driver: Driver, incarnation: int, status: WorkerStatus
):
    await driver.store.workers.register(worker("w", 1, owner="alice"))
    a = await driver.running()
    await driver.store.workers.set_status("w", status)
    driver.clock.advance(5.0)
    with pytest.raises(PermissionDenied, match="'w'"):
        await driver.store.workers.register(worker("w", incarnation, owner="mallory"))
    (known,) = await driver.store.workers.all()
    assert (known.info.incarnation, known.info.owner, known.status) == (1, "alice", status)
    assert known.last_seen == pytest.approx(driver.clock.now() - 5.0)
    await driver.succeed(a)


async def test_the_owner_may_come_back_under_any_incarnation(driver: Driver):
    await driver.store.workers.register(worker("w", 1, owner="alice"))
    a = await driver.running()
    assert await driver.store.workers.register(worker("w", 1, owner="alice")) == []
    (lost,) = await driver.store.workers.register(worker("w", 2, owner="alice"))
    assert lost.lease == a.lease


async def test_the_id_of_an_offline_worker_can_be_taken_but_not_what_it_holds(driver: Driver):
    await driver.store.workers.register(worker("w", 1, owner="alice"))
    a = await driver.running()
    await driver.store.workers.set_status("w", WorkerStatus.OFFLINE)
    (lost,) = await driver.store.workers.register(worker("w", 1, owner="mallory"))
    assert (lost.seq, lost.lease) == (a.seq, a.lease)
    assert await owners(driver) == {"w": (1, "mallory")}
    with pytest.raises(PermissionDenied):
        await driver.store.workers.register(worker("w", 1, owner="alice"))


@pytest.mark.parametrize(("first", "then"), [("", "alice"), ("alice", ""), ("", "")])
async def test_without_a_name_on_one_side_the_id_is_taken_as_ever(
    driver: Driver, first: str, then: str
):
    await driver.store.workers.register(worker("w", 1, owner=first))
    a = await driver.running()
    assert await driver.store.workers.register(worker("w", 1, owner=then)) == []
    assert await owners(driver) == {"w": (1, then)}
    await driver.succeed(a)


async def test_who_has_the_store_open_takes_any_id(driver: Driver):
    """A caller with the id of a server's own pool must not keep the server from starting."""
    await driver.store.workers.register(worker("pool", 1, owner="mallory"))
    await driver.store.workers.register(worker("pool", 2, owner=IN_PROCESS))
    assert await owners(driver) == {"pool": (2, IN_PROCESS)}
    assert driver.store.workers.pulse("pool", 2, [], [], owner=IN_PROCESS).known
    with pytest.raises(PermissionDenied):
        await driver.store.workers.register(worker("pool", 3, owner="mallory"))


async def test_a_heartbeat_of_another_owner_has_no_effect(driver: Driver):
    await driver.store.workers.register(worker("w", 1, owner="alice"))
    a = await driver.running()
    driver.clock.advance(7.0)
    for incarnation in (1, 2):
        with pytest.raises(PermissionDenied, match="'w'"):
            driver.store.workers.pulse(
                "w", incarnation, [a.lease], [], {a.lease: Progress(0.5, "forged")}, owner="mallory"
            )
    (known,) = await driver.store.workers.all()
    assert known.last_seen == pytest.approx(driver.clock.now() - 7.0)
    assert (await driver.job(a.id)).progress is None
    for owner in ("alice", ""):
        assert driver.store.workers.pulse("w", 1, [a.lease], owner=owner).known
    assert driver.store.workers.pulse("nobody", 1, [], owner="mallory").known is False


async def test_another_owner_cannot_sign_a_worker_off(driver: Driver):
    await driver.store.workers.register(worker("w", 1, owner="alice"))
    for incarnation in (1, 2):
        with pytest.raises(PermissionDenied, match="'w'"):
            await driver.store.workers.retire("w", incarnation, owner="mallory")
    assert await owners(driver) == {"w": (1, "alice")}
    assert await driver.store.workers.retire("w", 1, owner="alice")
    assert await driver.store.workers.retire("w", 1, owner="mallory") is False


async def test_a_caller_has_so_many_workers_at_most(open_driver: OpenDriver):
    driver = await open_driver(Rules(workers_per_owner=2))
    for worker_id in ("a", "b"):
        await driver.store.workers.register(worker(worker_id, owner="alice"))
    with pytest.raises(RateLimited, match="workers_per_caller"):
        await driver.store.workers.register(worker("c", owner="alice"))
    await driver.store.workers.register(worker("a", 2, owner="alice"))
    for n in range(3):  # others are not concerned, nor who has no name
        await driver.store.workers.register(worker(f"open-{n}", owner=""))
        await driver.store.workers.register(worker(f"pool-{n}", owner=IN_PROCESS))
    await driver.store.workers.register(worker("m", owner="mallory"))
    assert await driver.store.workers.retire("b", 1, owner="alice")
    await driver.store.workers.register(worker("c", owner="alice"))
    alices = {one for one, (_, owner) in (await owners(driver)).items() if owner == "alice"}
    assert alices == {"a", "c"}


async def test_what_is_offline_makes_room_unless_it_holds_jobs(open_driver: OpenDriver):
    driver = await open_driver(Rules(workers_per_owner=2))
    for worker_id in ("w", "b"):
        await driver.store.workers.register(worker(worker_id, owner="alice"))
    a = await driver.running()
    await driver.store.workers.set_status("w", WorkerStatus.OFFLINE)
    with pytest.raises(RateLimited):
        await driver.store.workers.register(worker("c", owner="alice"))
    await driver.lose(a)
    await driver.store.workers.register(worker("c", owner="alice"))
    assert set(await owners(driver)) == {"b", "c"}


async def test_a_worker_taken_over_counts_for_its_new_owner(open_driver: OpenDriver):
    driver = await open_driver(Rules(workers_per_owner=1))
    await driver.store.workers.register(worker("w", owner="alice"))
    await driver.store.workers.set_status("w", WorkerStatus.OFFLINE)
    await driver.store.workers.register(worker("w", owner="mallory"))
    await driver.store.workers.register(worker("v", owner="alice"))
    with pytest.raises(RateLimited):
        await driver.store.workers.register(worker("x", owner="mallory"))


# -- leases --------------------------------------------------------------------------------


def said_by(worker_id: str, *reports: Transition) -> list[Transition]:
    for report in reports:
        report.worker_id = worker_id
    return list(reports)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("move", [move for move in Move if move in REPORTABLE])
async def test_a_report_counts_only_from_the_worker_that_holds_the_lease(
    driver: Driver, move: Move, started: bool
):
    for worker_id in ("w", "thief"):
        await driver.store.workers.register(worker(worker_id))
    a = await driver.running() if started else await driver.assigned()
    before = await driver.job(a.id)
    for thief in ("thief", "nobody", ""):
        (outcome,) = await driver.apply(*said_by(thief, Transition(a.seq, move, a.lease)))
        assert (outcome.refusal, outcome.state) == (Refusal.STALE_LEASE, before.state)
    assert await driver.job(a.id) == before
    (outcome,) = await driver.apply(*said_by("w", Transition.succeeded(a.seq, a.lease, b"r")))
    assert outcome.applied
    assert (await driver.job(a.id)).result == b"r"


async def test_reports_of_several_workers_in_one_write_are_fenced_one_by_one(driver: Driver):
    """As they come when the reports of many workers share a batch."""
    for worker_id in ("w", "v"):
        await driver.store.workers.register(worker(worker_id))
    for n in range(4):
        await driver.submit(b"%d" % n)
    a, b = await driver.claim(2, worker_id="w")
    c, d = await driver.claim(2, worker_id="v")
    await driver.start(b)
    outcomes: list[Outcome] = await driver.apply(
        *said_by("w", Transition.started(a.seq, a.lease)),
        *said_by("v", Transition.succeeded(b.seq, b.lease, b"forged")),
        *said_by("w", Transition.started(c.seq, c.lease)),
        *said_by("v", Transition.succeeded(d.seq, d.lease, b"own")),
        Transition.succeeded(a.seq, a.lease, b"nobody says whose it is"),
    )
    assert [one.applied for one in outcomes] == [True, False, False, True, True]
    assert [await driver.state(one.id) for one in (a, b, c, d)] == [D, R, A, D]
    (after,) = await driver.apply(*said_by("w", Transition.failed(b.seq, b.lease, "own")))
    assert after.applied


async def test_progress_of_another_workers_lease_is_not_kept(driver: Driver):
    for worker_id in ("w", "thief"):
        await driver.store.workers.register(worker(worker_id))
    a = await driver.running()
    pulse = driver.store.workers.pulse(
        "thief", 1, [a.lease], [a.lease], {a.lease: Progress(0.5, "forged")}
    )
    assert pulse.lost == [a.lease]
    assert (await driver.job(a.id)).progress is None
