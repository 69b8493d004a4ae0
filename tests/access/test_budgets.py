"""Calls, waits and streams under way."""

from __future__ import annotations

import logging

import pytest

from jobqueue.access.budgets import DEFAULTS, Budget, Budgets
from jobqueue.access.rules import BudgetKind
from jobqueue.core.errors import Unavailable

SMALL = {kind: Budget(3, 2) for kind in BudgetKind}


def test_a_caller_has_its_own_budget_and_all_share_one():
    budgets = Budgets(SMALL)
    first, _ = (
        budgets.enter(BudgetKind.CALL, "name ann"),
        budgets.enter(BudgetKind.CALL, "name ann"),
    )
    with pytest.raises(Unavailable, match="name ann has 2 calls under way already"):
        budgets.enter(BudgetKind.CALL, "name ann")
    budgets.enter(BudgetKind.CALL, "name bob")
    with pytest.raises(Unavailable, match="the server has 3 calls under way already"):
        budgets.enter(BudgetKind.CALL, "name bob")
    assert budgets.under_way(BudgetKind.CALL) == 3
    first.leave()
    assert budgets.under_way(BudgetKind.CALL, "name ann") == 1
    budgets.enter(BudgetKind.CALL, "name ann")


def test_each_kind_has_its_own_budget():
    budgets = Budgets(SMALL)
    for kind in BudgetKind:
        for _ in range(2):
            budgets.enter(kind, "name ann")
    assert [budgets.under_way(kind) for kind in BudgetKind] == [2] * len(BudgetKind)


def test_what_leaves_twice_is_counted_once():
    budgets = Budgets(SMALL)
    place, _ = (
        budgets.enter(BudgetKind.WAIT, "name ann"),
        budgets.enter(BudgetKind.WAIT, "name ann"),
    )
    place.leave()
    place.leave()
    assert budgets.under_way(BudgetKind.WAIT) == 1
    assert budgets.under_way(BudgetKind.WAIT, "name ann") == 1


def test_a_call_that_becomes_a_stream_is_counted_as_one():
    budgets = Budgets(SMALL)
    places = [budgets.enter(BudgetKind.CALL, "name ann") for _ in range(2)]
    for place in places:
        place.move(BudgetKind.STREAM)
        place.move(BudgetKind.STREAM)
    assert budgets.under_way(BudgetKind.CALL) == 0
    third = budgets.enter(BudgetKind.CALL, "name ann")
    with pytest.raises(Unavailable, match="2 streams"):
        third.move(BudgetKind.STREAM)
    assert third.kind is BudgetKind.CALL
    for place in (*places, third):
        place.leave()
        place.move(BudgetKind.WAIT)
    assert [budgets.under_way(kind) for kind in BudgetKind] == [0] * len(BudgetKind)
    assert budgets.under_way(BudgetKind.CALL, "name ann") == 0


def test_without_an_account_only_the_budget_in_all_counts():
    budgets = Budgets(SMALL)
    for _ in range(3):
        budgets.enter(BudgetKind.CALL, "")
    with pytest.raises(Unavailable, match="the server has 3"):
        budgets.enter(BudgetKind.CALL, "")


def test_accounts_that_have_nothing_under_way_are_forgotten():
    budgets = Budgets()
    for number in range(100):
        budgets.enter(BudgetKind.CALL, f"name {number}").leave()
    assert budgets._counts[BudgetKind.CALL].of == {}


def test_a_refusal_is_logged_once_until_it_is_over(caplog):
    caplog.set_level(logging.WARNING, "jobqueue.access")
    budgets = Budgets(SMALL)
    for _ in range(2):
        places = [budgets.enter(BudgetKind.STREAM, "name ann") for _ in range(2)]
        for _ in range(5):
            with pytest.raises(Unavailable):
                budgets.enter(BudgetKind.STREAM, "name ann")
        for place in places:
            place.leave()
    assert [record.getMessage()[:24] for record in caplog.records] == [
        "refusing further streams"
    ] * 2


def test_the_defaults_have_room_for_a_fleet():
    assert DEFAULTS[BudgetKind.STREAM].per_caller >= 2_000
    assert all(budget.per_caller * 2 <= budget.in_all for budget in DEFAULTS.values())
