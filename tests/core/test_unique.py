"""The rules of unique jobs."""

from __future__ import annotations

import math

import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.unique import Holder, UniqueKey, in_the_way, read_unique


@pytest.mark.parametrize("state", State)
def test_the_state_of_the_holder_decides(state: State):
    holder = Holder("id", 1, 100.0, state)
    waits = state in (State.PENDING, State.FAILED)
    assert in_the_way(UniqueKey(key="k", scope="waiting"), holder, 1e9) is waits
    assert in_the_way(UniqueKey(key="k"), holder, 1e9) is (state not in TERMINAL)
    period = UniqueKey(key="k", period=10.0)
    assert in_the_way(period, holder, 109.9)
    assert not in_the_way(period, holder, 110.0)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"key": ""}, "unique.key"),
        ({"scope": ""}, "unique.scope"),
        ({"on_conflict": "Replace"}, "unique.on_conflict"),
        ({"on_conflict": "replace"}, "unique.on_conflict"),
        ({"on_conflict": "replace", "scope": "waiting", "period": 5.0}, "unique.on_conflict"),
        *(({"period": value}, "unique.period") for value in (0.0, -1.0, math.nan, math.inf)),
    ],
)
def test_values_that_do_not_fit_are_refused(fields: dict, field: str):
    with pytest.raises(InvalidArgument) as refused:
        UniqueKey(**{"key": "k", **fields}).check()
    assert refused.value.field == field


def test_stores_keep_all_of_it():
    said = UniqueKey(key="k", scope="waiting", period=2.5, on_conflict="reject", owner="ann")
    assert read_unique(said.as_list()) == said
    assert said.stored != UniqueKey(key="k").stored
    assert "owner" not in said.document()
