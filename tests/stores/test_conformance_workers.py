"""Workers: registration, incarnations, heartbeats, leases in force."""

from __future__ import annotations

import itertools
import threading

import pytest

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.decide import answer_heartbeat
from jobqueue.core.job import Pulse, Transition, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.progress import Progress
from tests.stores.driver import Driver, spec, worker

P, A, R, D, F, X = State


@pytest.mark.req("jq:FR-018")
async def test_a_registered_worker_is_known_with_what_it_said(driver: Driver):
    info = worker("w1", 77, hostname="box", pid=4242, concurrency=9, queues=("a", "b"))
    assert await driver.store.workers.register(info) == []
    (known,) = await driver.store.workers.all()
    assert known.info == info
    assert (known.status, known.running) == (WorkerStatus.ONLINE, 0)
    assert known.registered_at == known.last_seen == driver.clock.now()


async def test_workers_are_listed_by_id_with_the_jobs_they_hold(driver: Driver):
    for worker_id in ("w2", "w1"):
        await driver.store.workers.register(worker(worker_id))
    for n in range(3):
        await driver.submit(b"%d" % n)
    first, _ = await driver.claim(2, worker_id="w1")
    await driver.start(first)
    await driver.claim(1, worker_id="w2")
    assert [(w.info.id, w.running) for w in await driver.store.workers.all()] == [
        ("w1", 2),
        ("w2", 1),
    ]
    await driver.succeed(first)
    assert [w.running for w in await driver.store.workers.all()] == [1, 1]


@pytest.mark.req("jq:NFR-007")
async def test_a_new_incarnation_gets_the_leases_that_the_old_one_lost(driver: Driver):
    await driver.store.workers.register(worker("w", 1))
    a = await driver.running(payload=b"a")
    b = await driver.assigned(payload=b"b")
    lost = await driver.store.workers.register(worker("w", 2))
    assert {(h.seq, h.lease, h.state) for h in lost} == {(a.seq, a.lease, R), (b.seq, b.lease, A)}
    assert len(await driver.store.workers.all()) == 1
    outcomes = await driver.apply(
        *(Transition.worker_lost(h.seq, h.lease, "restarted") for h in lost)
    )
    assert all(o.applied for o in outcomes)
    assert await driver.store.workers.register(worker("w", 3)) == []


async def test_the_same_incarnation_may_register_again_and_loses_nothing(driver: Driver):
    await driver.store.workers.register(worker("w", 1))
    a = await driver.running()
    await driver.store.workers.set_status("w", WorkerStatus.OFFLINE)
    assert await driver.store.workers.register(worker("w", 1)) == []
    assert [w.status for w in await driver.store.workers.all()] == [WorkerStatus.ONLINE]
    await driver.succeed(a)


@pytest.mark.req("jq:FR-023")
async def test_a_reconnect_does_not_undo_a_drain_but_a_new_process_is_fresh(driver: Driver):
    await driver.store.workers.register(worker("w", 1))
    await driver.store.workers.set_status("w", WorkerStatus.DRAINING)
    await driver.store.workers.register(worker("w", 1))
    assert [w.status for w in await driver.store.workers.all()] == [WorkerStatus.DRAINING]
    await driver.store.workers.register(worker("w", 2))
    assert [w.status for w in await driver.store.workers.all()] == [WorkerStatus.ONLINE]


async def test_another_workers_leases_are_not_lost(driver: Driver):
    await driver.store.workers.register(worker("w", 1))
    await driver.store.workers.register(worker("v", 1))
    await driver.running()
    assert await driver.store.workers.register(worker("v", 2)) == []


# -- heartbeats ----------------------------------------------------------------------------


@pytest.mark.req("jq:FR-019")
async def test_a_heartbeat_is_recorded_by_the_stores_clock(driver: Driver):
    await driver.store.workers.register(worker())
    driver.clock.advance(7.0)
    assert driver.store.workers.pulse("w", 1, []) == Pulse(True, WorkerStatus.ONLINE)
    (known,) = await driver.store.workers.all()
    assert known.last_seen == pytest.approx(driver.clock.now())
    assert known.registered_at == pytest.approx(driver.clock.now() - 7.0)


@pytest.mark.req("jq:FR-021")
async def test_a_heartbeat_tells_how_many_slots_are_overrun(driver: Driver):
    """Until another one tells something else, or the worker registers again."""

    async def overrun() -> int:
        (known,) = await driver.store.workers.all()
        return known.overrun

    await driver.store.workers.register(worker())
    assert await overrun() == 0
    driver.store.workers.pulse("w", 1, [], overrun=2**32 - 1)
    assert await overrun() == 2**32 - 1
    driver.store.workers.pulse("w", 1, [])
    assert await overrun() == 2**32 - 1
    driver.store.workers.pulse("w", 2, [], overrun=5)  # another incarnation
    assert await overrun() == 2**32 - 1
    driver.store.workers.pulse("w", 1, [], overrun=0)
    assert await overrun() == 0
    driver.store.workers.pulse("w", 1, [], overrun=1)
    await driver.store.workers.register(worker())
    assert await overrun() == 0


async def test_open_breakers_are_kept_until_the_worker_registers_again(driver: Driver):
    """Each call replaces all breakers, and only the registered incarnation may call."""
    workers = driver.store.workers

    async def known() -> tuple[OpenBreaker, ...]:
        (one,) = await workers.all()
        return one.breakers

    await workers.register(worker())
    assert await known() == ()
    breakers = (OpenBreaker("a\0\ud800", 3, 1_800_000_000.25), OpenBreaker("", 12, 7.0, 2**31))
    await workers.set_breakers("w", 1, breakers)
    assert await known() == breakers
    workers.pulse("w", 1, [])
    await workers.set_breakers("w", 2, [])  # another incarnation
    await workers.set_breakers("nobody", 1, [])
    assert await known() == breakers
    await workers.set_breakers("w", 1, breakers[1:])
    assert await known() == breakers[1:]
    await workers.register(worker())
    assert await known() == ()
    await workers.set_breakers("w", 1, breakers)
    await workers.set_breakers("w", 1, [])
    assert await known() == ()


async def test_a_heartbeat_of_a_stranger_is_answered_with_register_again(driver: Driver):
    assert driver.store.workers.pulse("nobody", 1, []).known is False
    await driver.store.workers.register(worker("w", 1))
    assert driver.store.workers.pulse("w", 2, []).known is False
    assert driver.store.workers.pulse("w", 1, []).known is True


async def test_the_old_incarnation_cannot_keep_its_successor_alive(driver: Driver):
    await driver.store.workers.register(worker("w", 1))
    await driver.store.workers.register(worker("w", 2))
    driver.clock.advance(60.0)
    assert driver.store.workers.pulse("w", 1, []).known is False
    assert await driver.store.workers.retire_silent(30.0, await driver.term()) == ["w"]


async def test_a_heartbeat_names_listed_leases_that_do_not_stand(driver: Driver):
    await driver.store.workers.register(worker())
    a = await driver.running(payload=b"a")
    b = await driver.running(payload=b"b")
    await driver.succeed(b)
    pulse = driver.store.workers.pulse("w", 1, [a.lease, b.lease, 4711])
    assert sorted(pulse.lost) == sorted([b.lease, 4711])
    assert pulse.cancelled == []


async def test_a_lease_of_another_worker_does_not_stand(driver: Driver):
    await driver.store.workers.register(worker("w"))
    await driver.store.workers.register(worker("thief"))
    a = await driver.running()
    assert driver.store.workers.pulse("thief", 1, [a.lease]).lost == [a.lease]


@pytest.mark.req("jq:FR-023")
async def test_a_heartbeat_tells_what_the_operator_wants(driver: Driver):
    await driver.store.workers.register(worker())
    assert await driver.store.workers.set_status("w", WorkerStatus.DRAINING)
    assert driver.store.workers.pulse("w", 1, []).status is WorkerStatus.DRAINING
    assert [w.status for w in await driver.store.workers.all()] == [WorkerStatus.DRAINING]
    assert await driver.store.workers.set_status("w", WorkerStatus.STOPPING)
    assert driver.store.workers.pulse("w", 1, []).status is WorkerStatus.STOPPING
    assert not await driver.store.workers.set_status("nobody", WorkerStatus.DRAINING)


@pytest.mark.req("jq:FR-023", "jq:FR-024")
async def test_a_drain_is_taken_back_and_a_stop_is_not(driver: Driver):
    await driver.store.workers.register(worker())
    assert await driver.store.workers.set_status("w", WorkerStatus.ONLINE)
    assert await driver.store.workers.set_status("w", WorkerStatus.DRAINING)
    assert await driver.store.workers.set_status("w", WorkerStatus.ONLINE)
    assert driver.store.workers.pulse("w", 1, []).status is WorkerStatus.ONLINE
    for end in (WorkerStatus.STOPPING, WorkerStatus.OFFLINE):
        assert await driver.store.workers.set_status("w", end)
        for back in (WorkerStatus.ONLINE, WorkerStatus.DRAINING):
            assert not await driver.store.workers.set_status("w", back)
            assert [w.status for w in await driver.store.workers.all()] == [end]
    assert not await driver.store.workers.set_status("nobody", WorkerStatus.ONLINE)


async def test_a_heartbeat_works_from_any_thread(driver: Driver):
    await driver.store.workers.register(worker())
    a = await driver.running()
    driver.clock.advance(5.0)
    answers: list[Pulse] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(driver.store.workers.pulse("w", 1, [a.lease]))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)  # the loop is blocked meanwhile: a heartbeat must not need it
    assert [(p.known, p.lost) for p in answers] == [(True, [])] * 4
    (known,) = await driver.store.workers.all()
    assert known.last_seen == driver.clock.now()


async def test_many_leases_fit_into_one_heartbeat(driver: Driver):
    await driver.store.workers.register(worker())
    leases = list(range(1, 5_001))
    assert sorted(driver.store.workers.pulse("w", 1, leases).lost) == leases


@pytest.mark.req("jq:FR-020")
async def test_silent_workers_are_retired_by_the_stores_clock(driver: Driver):
    for worker_id in ("quiet", "lively", "gone"):
        await driver.store.workers.register(worker(worker_id))
    await driver.store.workers.set_status("gone", WorkerStatus.OFFLINE)
    driver.clock.advance(25.0)
    driver.store.workers.pulse("lively", 1, [])
    driver.clock.advance(10.0)
    assert await driver.store.workers.retire_silent(40.0, await driver.term()) == []
    assert await driver.store.workers.retire_silent(30.0, await driver.term()) == ["quiet"]
    assert await driver.store.workers.retire_silent(30.0, await driver.term()) == []
    status = {w.info.id: w.status for w in await driver.store.workers.all()}
    assert status["quiet"] is WorkerStatus.OFFLINE
    assert status["lively"] is WorkerStatus.ONLINE


async def test_a_goodbye_removes_that_incarnation_only_and_only_if_it_holds_nothing(
    driver: Driver,
):
    await driver.store.workers.register(worker("w", 1))
    await driver.store.workers.register(worker("w", 2))
    assert not await driver.store.workers.retire("w", 1)
    a = await driver.assigned()
    await driver.store.workers.register(worker(a.worker_id, 2))
    assert not await driver.store.workers.retire(a.worker_id, 2)
    await driver.do(Transition.succeeded(a.seq, a.lease, None))
    assert await driver.store.workers.retire(a.worker_id, 2)
    assert a.worker_id not in {w.info.id for w in await driver.store.workers.all()}


@pytest.mark.req("jq:FR-016")
async def test_an_execution_that_has_begun_is_not_timed_out_as_unstarted(driver: Driver):
    """A handler that blocks the loop keeps its start from being told, not from being listed."""
    a = await driver.assigned(payload=b"begun")
    b = await driver.assigned(payload=b"only listed")
    await driver.store.workers.register(worker(a.worker_id, 1))
    driver.clock.advance(driver.rules.assignment_timeout - 1)
    driver.store.workers.pulse(a.worker_id, 1, [a.lease, b.lease], [a.lease])
    driver.clock.advance(2)
    assert [t.seq for t in (await driver.store.upkeep.due(10)).transitions] == [b.seq]
    driver.clock.advance(driver.rules.assignment_timeout)
    assert {t.seq for t in (await driver.store.upkeep.due(10)).transitions} == {a.seq, b.seq}


async def test_a_lease_that_a_heartbeat_lists_twice_counts_once(driver: Driver):
    a = await driver.assigned()
    await driver.store.workers.register(worker(a.worker_id, 1))
    driver.clock.advance(driver.rules.assignment_timeout - 1)
    answer = driver.store.workers.pulse(a.worker_id, 1, [a.lease] * 2, [a.lease] * 2)
    assert (answer.known, answer.lost, answer.unlisted) == (True, [], [])
    driver.clock.advance(2)
    assert not (await driver.store.upkeep.due(10)).transitions
    await driver.succeed(a)


async def test_a_heartbeat_is_answered_and_kept_as_the_core_decides(driver: Driver):
    """Leases that stand, that have ended and that are another's; told of or not, begun or not."""
    for name in ("w", "other"):
        await driver.store.workers.register(worker(name))
    ways = list(itertools.product((True, False), repeat=4))  # running, listed, begun, progress
    await driver.results(*(spec() for _ in range(len(ways) + 2)))
    *own, ended = await driver.claim(len(ways) + 1)
    (others,) = await driver.claim(1, worker_id="other")
    driver.clock.advance(40.0)
    for a, (runs, _, _, _) in zip(own, ways, strict=True):
        if runs:
            await driver.start(a)
    for a in own[::3]:
        await driver.store.jobs.request_cancel(a.seq)
    await driver.succeed(ended)
    standing = {one.lease: one for one in await driver.store.workers.held("w")}
    assert standing.keys() == {a.lease for a in own}
    said = [*zip(own, ways, strict=True), *((a, (True,) * 4) for a in (ended, others))]
    listed = [a.lease for a, (_, lists, _, _) in said if lists]
    begun = [a.lease for a, (_, _, begins, _) in said if begins]
    told = {a.lease: Progress.of(0.5, a.id) for a, (_, _, _, tells) in said if tells}
    answer = answer_heartbeat(WorkerStatus.ONLINE, listed, begun, told, standing)
    got = driver.store.workers.pulse("w", 1, listed, begun, told)
    assert sorted(got.cancelled) == sorted(answer.pulse.cancelled) != []
    assert sorted(got.lost) == sorted(answer.pulse.lost) == sorted([ended.lease, others.lease])
    by_lease = {one.lease: one for one in answer.pulse.unlisted}
    assert {one.lease: one for one in got.unlisted} == by_lease
    assert (got.known, got.status) == (True, WorkerStatus.ONLINE)
    driver.clock.advance(30.0)  # beyond the assignment timeout, unless it began anew
    late = {one.lease for one in (await driver.store.upkeep.due(100)).transitions}
    unstarted = {lease for lease, one in standing.items() if one.state is A}
    assert late == unstarted - {one.lease for one in answer.begun} | {others.lease}
    driver.clock.advance(40.0)  # what runs has no timeout, begun or not
    late = {one.lease for one in (await driver.store.upkeep.due(100)).transitions}
    assert late == unstarted | {others.lease}
    for a in own:
        await driver.apply(Transition.started(a.seq, a.lease))
        assert ((await driver.job(a.id)).progress is not None) == (a.lease in answer.told)


async def test_an_offline_worker_must_register_again(driver: Driver):
    await driver.store.workers.register(worker())
    await driver.store.workers.set_status("w", WorkerStatus.OFFLINE)
    assert driver.store.workers.pulse("w", 1, []).known is False


async def test_only_an_offline_worker_is_forgotten(driver: Driver):
    await driver.store.workers.register(worker())
    assert not await driver.store.workers.forget("w")
    await driver.store.workers.set_status("w", WorkerStatus.OFFLINE)
    assert await driver.store.workers.forget("w")
    assert await driver.store.workers.all() == []
    assert not await driver.store.workers.forget("w")


# -- leases in force -----------------------------------------------------------------------


async def test_held_lists_the_leases_in_force(driver: Driver):
    a = await driver.assigned(payload=b"a")
    r = await driver.running(payload=b"r")
    await driver.brought_to(F, payload=b"f")
    await driver.brought_to(D, payload=b"d")
    await driver.submit()
    other = await driver.claim_one(worker_id="v")
    everything = {(h.seq, h.lease, h.worker_id, h.state) for h in await driver.store.workers.held()}
    assert everything == {
        (a.seq, a.lease, "w", A),
        (r.seq, r.lease, "w", R),
        (other.seq, other.lease, "v", A),
    }
    assert [h.lease for h in await driver.store.workers.held("v")] == [other.lease]
    assert await driver.store.workers.held("nobody") == []


async def test_workers_are_listed_with_and_without_their_names(driver: Driver):
    named = worker("a", types=frozenset({"mail", ""}), queues=("q", "other"), owner="fleet", link=7)
    await driver.store.workers.register(named)
    await driver.store.workers.register(worker("b"))
    await driver.store.workers.set_breakers("a", 1, [OpenBreaker("mail", 3, 7.0)])
    await driver.submit()
    await driver.claim_one(worker_id="b")
    full = await driver.store.workers.all()
    assert [one.info for one in full] == [named, worker("b")]
    short = await driver.store.workers.all(names=False)
    assert [(one.info.queues, one.info.types) for one in short] == [((), None)] * 2
    for one, whole in zip(short, full, strict=True):
        one.info = whole.info
    assert short == full
    found = await driver.store.workers.infos(["b", "nobody", "a"])
    assert sorted(found, key=lambda one: one.id) == [named, worker("b")]
    assert await driver.store.workers.infos([]) == []


async def test_the_status_of_a_worker(driver: Driver):
    workers = driver.store.workers
    assert await workers.status("w") is None
    await workers.register(worker("w"))
    assert await workers.status("w") is WorkerStatus.ONLINE
    await workers.set_status("w", WorkerStatus.DRAINING)
    assert await workers.status("w") is WorkerStatus.DRAINING
