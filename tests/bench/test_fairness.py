"""A comparison that is not fair is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.bench.cell import Cell, RunPlace
from jobqueue.bench.fairness import Unfair, check_records, check_slots, overlap
from jobqueue.bench.records import RunRecord
from jobqueue.bench.targets import Fate, InstantTarget, LoadWork, SeenJob


class Slots(InstantTarget):
    """Runs its jobs in so many slots, by its own times; each slot begins later than the last."""

    def __init__(self, slots: int, later: float = 0.0) -> None:
        super().__init__()
        self._free = [number * later for number in range(slots)]
        self._jobs: dict[str, SeenJob] = {}

    async def submit(self, work: LoadWork, keys: Sequence[str]) -> list[str]:
        made = await super().submit(work, keys)
        for job_id in made:
            begin = min(self._free)
            end = begin + work.milliseconds / 1000
            self._free[self._free.index(begin)] = end
            self._jobs[job_id] = SeenJob(Fate.DONE, begin, end)
        return made

    async def end(self, job_id: str, patience: float) -> SeenJob:
        return self._jobs[job_id]


@pytest.mark.req("tq:FAIR", "tq:NFR-6")
@pytest.mark.parametrize("slots", [1, 6])
async def test_a_topology_with_the_slots_of_the_profile_is_measured(slots: int) -> None:
    await check_slots(Slots(slots), slots, "nodes")


async def test_a_busy_machine_that_starts_jobs_one_by_one_is_given_time() -> None:
    await check_slots(Slots(6, later=0.4), 6, "nodes")


@pytest.mark.req("tq:FAIR", "tq:NFR-6")
@pytest.mark.parametrize("has", [5, 7, 12])
async def test_a_topology_with_other_slots_is_refused(has: int) -> None:
    with pytest.raises(Unfair, match=f"nodes ran {has} jobs at once instead of 6"):
        await check_slots(Slots(has), 6, "nodes")


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9))))
def test_overlap_is_the_most_that_share_a_moment(drawn: list[tuple[int, int]]) -> None:
    stretches = [(begin, begin + length) for begin, length in drawn]
    most = max((sum(b <= t < e for b, e in stretches) for t in range(30)), default=0)
    assert overlap(stretches) == most


def record(**other: object) -> RunRecord:
    made = RunRecord("parity", Cell("nodes"), 1, 1, 5, "", 1.0, 3.0)
    return replace(made, **other)  # type: ignore[arg-type]


@pytest.mark.req("tq:FAIR")
@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seconds": 4.0}, "differ in profile, warm-up or seconds"),
        ({"warm_up": 0.0}, "differ in profile, warm-up or seconds"),
        ({"profile": "smoke"}, "differ in profile, warm-up or seconds"),
        ({"seed": 6}, "different seeds"),
        ({"cell": Cell("microservices", RunPlace.CONTAINERS)}, "others containers"),
    ],
)
def test_runs_that_were_not_made_alike_are_not_compared(
    other: dict[str, object], said: str
) -> None:
    with pytest.raises(Unfair, match=said):
        check_records([record(), record(**{"cell": Cell("microservices"), **other})])


@pytest.mark.req("tq:FAIR")
def test_runs_that_were_made_alike_are_compared() -> None:
    check_records([record(), record(cell=Cell("microservices")), record(repetition=2, seed=8)])
    check_records([record(), record(cell=Cell("nodes", callers=1), seed=9)])
