"""Leadership: one at a time by the store's clock, and what is done under it is fenced."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.job import WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Term, TermEnded
from tests.stores.driver import Driver, worker

TTL = 10.0


async def test_the_lead_is_taken_renewed_and_refused_to_another(driver: Driver):
    first = await driver.store.leadership.lead(7, TTL)
    assert first is not None
    assert first.holder == 7
    driver.clock.advance(TTL - 1)
    assert await driver.store.leadership.lead(8, TTL) is None
    assert await driver.store.leadership.lead(7, TTL) == first
    driver.clock.advance(TTL - 1)  # counted from the renewal
    assert await driver.store.leadership.lead(8, TTL) is None


async def test_a_lead_that_ran_out_goes_to_another_under_a_higher_epoch(driver: Driver):
    first = await driver.store.leadership.lead(7, TTL)
    assert first is not None
    driver.clock.advance(TTL)
    second = await driver.store.leadership.lead(8, TTL)
    assert second is not None
    assert second.holder == 8
    assert second.epoch > first.epoch
    assert await driver.store.leadership.lead(7, TTL) is None
    driver.clock.advance(TTL)
    third = await driver.store.leadership.lead(7, TTL)
    assert third is not None
    assert third.epoch > second.epoch


async def test_a_holder_may_renew_late_if_nobody_came(driver: Driver):
    first = await driver.store.leadership.lead(7, TTL)
    driver.clock.advance(5 * TTL)
    assert await driver.store.leadership.lead(7, TTL) == first


async def test_a_resigned_lead_is_free_at_once_and_its_epoch_never_comes_back(driver: Driver):
    first = await driver.store.leadership.lead(7, TTL)
    assert first is not None
    await driver.store.leadership.resign(first)
    with pytest.raises(TermEnded):
        await driver.store.workers.retire_silent(1.0, first)
    second = await driver.store.leadership.lead(7, TTL)
    assert second is not None
    assert second.epoch > first.epoch
    await driver.store.leadership.resign(first)  # an old term gives nothing up
    assert await driver.store.leadership.lead(8, TTL) is None
    assert await driver.store.workers.retire_silent(1.0, second) == []


async def _old_term(driver: Driver, how: str) -> Term:
    term = await driver.store.leadership.lead(7, TTL)
    assert term is not None
    driver.clock.advance(TTL)
    if how == "taken over":
        assert await driver.store.leadership.lead(8, TTL) is not None
    elif how == "of another holder":
        assert await driver.store.leadership.lead(7, TTL) == term
        return Term(8, term.epoch)
    return term


@pytest.mark.parametrize("how", ["ran out", "taken over", "of another holder"])
@pytest.mark.req("jq:FR-020")
async def test_nobody_is_retired_under_an_old_term(driver: Driver, how: str):
    await driver.store.workers.register(worker())
    driver.clock.advance(100.0)
    term = await _old_term(driver, how)
    with pytest.raises(TermEnded):
        await driver.store.workers.retire_silent(30.0, term)
    assert [one.status for one in await driver.store.workers.all()] == [WorkerStatus.ONLINE]


@pytest.mark.parametrize("how", ["ran out", "taken over", "of another holder"])
async def test_nothing_is_pruned_under_an_old_term(driver: Driver, how: str):
    job = await driver.brought_to(State.DONE)
    term = await _old_term(driver, how)
    with pytest.raises(TermEnded):
        await driver.store.upkeep.prune_done(driver.clock.now(), 100, term)
    assert await driver.state(job.id) is State.DONE


async def test_an_old_term_is_refused_although_there_is_nothing_to_do(driver: Driver):
    term = await _old_term(driver, "taken over")
    with pytest.raises(TermEnded):
        await driver.store.workers.retire_silent(30.0, term)
    with pytest.raises(TermEnded):
        await driver.store.upkeep.prune_done(0.0, 100, term)


async def test_of_many_who_ask_at_once_one_leads(driver: Driver):
    terms = await asyncio.gather(*(driver.store.leadership.lead(n, TTL) for n in range(1, 20)))
    assert len([term for term in terms if term is not None]) == 1


async def test_a_registration_is_told_from_an_earlier_one_by_its_link(driver: Driver):
    await driver.store.workers.register(worker("w", 1, link=11))
    await driver.store.workers.register(worker("w", 1, link=12))
    assert [one.info.link for one in await driver.store.workers.all()] == [12]


async def test_who_leads_is_told(driver: Driver):
    store = driver.store
    assert await store.leadership.leader() is None
    began = driver.clock.now()
    first = await store.leadership.lead(7, TTL, "here:1")
    assert first is not None
    driver.clock.advance(TTL - 1)
    assert await store.leadership.lead(8, TTL, "there:2") is None
    assert await store.leadership.lead(7, TTL, "here:1") == first
    found = await store.leadership.leader()
    assert found is not None
    assert (found.name, found.epoch) == ("here:1", first.epoch)
    assert found.since == pytest.approx(began)  # of the term, not of its renewal

    driver.clock.advance(TTL)
    assert await store.leadership.leader() is None  # it ran out
    second = await store.leadership.lead(8, TTL, "there:2")
    assert second is not None
    found = await store.leadership.leader()
    assert found is not None
    assert (found.name, found.epoch) == ("there:2", second.epoch)
    assert found.since == pytest.approx(driver.clock.now())
    await store.leadership.resign(second)
    assert await store.leadership.leader() is None
