"""The order of jobs of several keys: limits pass keys over, shares give each key its turn."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.core.limits import Limits, Rate
from jobqueue.core.turns import KeyAllowances, Turns

NOW = 1_800_000_000.0


@dataclass
class Jobs:
    """A line of numbered jobs."""

    key: str | None
    rank: int
    seqs: list[int] = field(default_factory=list)

    @property
    def seq(self) -> int | None:
        return self.seqs[0] if self.seqs else None


def lines(*jobs: tuple[str | None, int, int]) -> list[Jobs]:
    """Lines of jobs (key, rank, number)."""
    found: dict[tuple[str | None, int], Jobs] = {}
    for key, rank, seq in sorted(jobs, key=lambda one: one[2]):
        found.setdefault((key, rank), Jobs(key, rank)).seqs.append(seq)
    return list(found.values())


def pick(
    limits: Limits,
    jobs: list[Jobs],
    slots: int,
    held: dict[str | None, int] | None = None,
    weights: dict[int, int] | None = None,
    seed: int = 1,
) -> list[tuple[str | None, int]]:
    keys: KeyAllowances[str | None] = KeyAllowances(limits, held or {}, {}, NOW)
    turns = Turns(jobs, keys, limits.shares, weights, random.Random(seed))
    picked: list[tuple[str | None, int]] = []
    while len(picked) < slots and (line := turns.next()) is not None:
        picked.append((line.key, line.seqs.pop(0)))
        turns.took(line)
    return picked


def test_a_key_at_its_limit_is_passed_over():
    jobs = lines(("a", 0, 1), ("a", 0, 2), ("a", 0, 3), ("b", 0, 4), (None, 5, 5), ("a", 0, 6))
    picked = pick(Limits(key_max_running=2), jobs, 9, held={"a": 1})
    assert picked == [("a", 1), ("b", 4), (None, 5)]


def test_without_shares_priority_and_age_decide():
    jobs = lines(("a", 4, 1), ("b", 0, 2), ("a", 0, 3), (None, 0, 4), ("c", 0, 5))
    assert [seq for _, seq in pick(Limits(key_max_running=9), jobs, 9)] == [2, 3, 4, 5, 1]


def test_weights_of_priorities_hold_among_the_keys_that_may_start():
    jobs = lines(*((f"k{n % 7}", 9 * (n % 2), n) for n in range(600)))
    picked = pick(Limits(key_max_running=50), jobs, 200, weights={9: 3, 0: 1})
    urgent = [seq for _, seq in picked if seq % 2 == 0]
    assert 120 < len(urgent) < 180
    assert urgent == sorted(urgent)
    assert max(Counter(key for key, _ in picked).values()) <= 50


def test_with_shares_the_key_that_holds_the_fewest_is_next():
    flood = [("flood", 0, n) for n in range(50)]
    jobs = lines(*flood, ("b", 9, 90), ("c", 5, 91), ("c", 0, 92), (None, 9, 93))
    limits = Limits(key_weights={"*": 1})
    picked = pick(limits, jobs, 6, held={"flood": 3, "c": 1})
    assert set(picked[:2]) == {("b", 90), (None, 93)}
    assert picked[2:5] == [("c", 92), ("c", 91), ("flood", 0)]


def test_shares_follow_the_weights_as_closely_as_whole_jobs_allow():
    jobs = lines(*((key, 0, n) for n in range(300) for key in "abc"))
    picked = pick(Limits(key_weights={"a": 3, "b": 2, "*": 1}), jobs, 60)
    counts = Counter(key for key, _ in picked)
    assert counts["a"] == pytest.approx(30, abs=2)
    assert counts["b"] == pytest.approx(20, abs=2)
    assert counts["c"] == pytest.approx(10, abs=2)


def test_where_nothing_runs_keys_draw_lots_by_their_weights():
    limits = Limits(key_weights={"a": 3, "b": 1})
    first = Counter(
        pick(limits, lines(("a", 0, 1), ("b", 0, 2)), 1, seed=seed)[0][0] for seed in range(400)
    )
    assert 260 < first["a"] < 340


def test_limits_and_shares_hold_together():
    jobs = lines(*(("a", 0, n) for n in range(9)), *(("b", 0, n) for n in range(9, 12)))
    limits = Limits(key_max_running=2, key_rate=Rate(1.0, 9), key_weights={"a": 100})
    picked = pick(limits, jobs, 9)
    assert Counter(key for key, _ in picked) == {"a": 2, "b": 2}


def test_what_keys_may_still_start_is_told():
    limits = Limits(key_max_running=2, key_rate=Rate(2.0, 3))
    keys: KeyAllowances[str | None] = KeyAllowances(limits, {"a": 2}, {"b": NOW + 6}, NOW)
    assert (keys.of("c").left, keys.opens_in, keys.spent) == (2, None, {})
    assert (keys.of("b").left, keys.opens_in) == (0, 2.0)
    assert (keys.of("a").left, keys.opens_in) == (0, 2.0)
    keys.of("c").started = 2
    assert keys.spent == {"c": NOW + 4}
    keys.of(None).started = 99
    assert keys.of(None).left > 0


@given(
    jobs=st.lists(
        st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(0, 9)), max_size=60
    ),
    held=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 5)),
    most=st.one_of(st.none(), st.integers(1, 6)),
    burst=st.one_of(st.none(), st.integers(1, 6)),
    shares=st.sampled_from([None, {"*": 1}, {"a": 5, "b": 2}]),
    weights=st.sampled_from([None, {9: 5, 0: 1}]),
    slots=st.integers(0, 40),
)
def test_no_job_is_taken_twice_or_out_of_turn_and_no_slot_stays_empty(
    jobs, held, most, burst, shares, weights, slots
):
    limits = Limits(key_max_running=most, key_rate=burst and Rate(60.0, burst), key_weights=shares)
    numbered = [(key, rank, n) for n, (key, rank) in enumerate(jobs)]
    picked = pick(limits, lines(*numbered), slots, held=held, weights=weights)
    taken = {seq for _, seq in picked}
    assert len(taken) == len(picked) <= slots
    ranks = {seq: (key, rank) for key, rank, seq in numbered}
    started = Counter(key for key, _ in picked)
    for key, count in started.items():
        if key is not None:
            assert most is None or held.get(key, 0) + count <= most
            assert burst is None or count <= burst
    for key, rank, seq in numbered:
        if seq in taken:
            continue
        # Of its key and priority, nothing younger went before it.
        assert not any(ranks[other] == (key, rank) and other > seq for other in taken)
        open_key = key is None or (
            (most is None or held.get(key, 0) + started[key] < most)
            and (burst is None or started[key] < burst)
        )
        assert not (open_key and len(picked) < slots)
