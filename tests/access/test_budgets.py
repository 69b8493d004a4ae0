"""Calls, waits and streams under way."""

from __future__ import annotations

import logging

import pytest

from jobqueue.access.budgets import DEFAULTS, Budget, Budgets
from jobqueue.access.rules import Kind
from jobqueue.core.errors import Unavailable

SMALL = {kind: Budget(3, 2) for kind in Kind}


def test_a_caller_has_its_own_budget_and_all_share_one():
    budgets = Budgets(SMALL)
    first, _ = budgets.enter(Kind.CALL, "name ann"), budgets.enter(Kind.CALL, "name ann")
    with pytest.raises(Unavailable, match="name ann has 2 calls under way already"):
        budgets.enter(Kind.CALL, "name ann")
    budgets.enter(Kind.CALL, "name bob")
    with pytest.raises(Unavailable, match="the server has 3 calls under way already"):
        budgets.enter(Kind.CALL, "name bob")
    assert budgets.under_way(Kind.CALL) == 3
    first.leave()
    assert budgets.under_way(Kind.CALL, "name ann") == 1
    budgets.enter(Kind.CALL, "name ann")


def test_each_kind_has_its_own_budget():
    budgets = Budgets(SMALL)
    for kind in Kind:
        for _ in range(2):
            budgets.enter(kind, "name ann")
    assert [budgets.under_way(kind) for kind in Kind] == [2] * len(Kind)


def test_what_leaves_twice_is_counted_once():
    budgets = Budgets(SMALL)
    place, _ = budgets.enter(Kind.WAIT, "name ann"), budgets.enter(Kind.WAIT, "name ann")
    place.leave()
    place.leave()
    assert budgets.under_way(Kind.WAIT) == 1
    assert budgets.under_way(Kind.WAIT, "name ann") == 1


def test_a_call_that_becomes_a_stream_is_counted_as_one():
    budgets = Budgets(SMALL)
    places = [budgets.enter(Kind.CALL, "name ann") for _ in range(2)]
    for place in places:
        place.move(Kind.STREAM)
        place.move(Kind.STREAM)
    assert budgets.under_way(Kind.CALL) == 0
    third = budgets.enter(Kind.CALL, "name ann")
    with pytest.raises(Unavailable, match="2 streams"):
        third.move(Kind.STREAM)
    assert third.kind is Kind.CALL
    for place in (*places, third):
        place.leave()
        place.move(Kind.WAIT)
    assert [budgets.under_way(kind) for kind in Kind] == [0] * len(Kind)
    assert budgets.under_way(Kind.CALL, "name ann") == 0


def test_without_an_account_only_the_budget_in_all_counts():
    budgets = Budgets(SMALL)
    for _ in range(3):
        budgets.enter(Kind.CALL, "")
    with pytest.raises(Unavailable, match="the server has 3"):
        budgets.enter(Kind.CALL, "")


def test_accounts_that_have_nothing_under_way_are_forgotten():
    budgets = Budgets()
    for number in range(100):
        budgets.enter(Kind.CALL, f"name {number}").leave()
    assert budgets._counts[Kind.CALL].of == {}


def test_a_refusal_is_logged_once_until_it_is_over(caplog):
    caplog.set_level(logging.WARNING, "jobqueue.access")
    budgets = Budgets(SMALL)
    for _ in range(2):
        places = [budgets.enter(Kind.STREAM, "name ann") for _ in range(2)]
        for _ in range(5):
            with pytest.raises(Unavailable):
                budgets.enter(Kind.STREAM, "name ann")
        for place in places:
            place.leave()
    assert [record.getMessage()[:18] for record in caplog.records] == ["streams are refuse"] * 2


def test_the_defaults_have_room_for_a_fleet():
    assert DEFAULTS[Kind.STREAM].per_caller >= 2_000
    assert all(budget.per_caller * 2 <= budget.in_all for budget in DEFAULTS.values())
