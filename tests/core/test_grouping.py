"""Dead letters are grouped by a few causes."""

from __future__ import annotations

import pytest

from jobqueue.core.grouping import BARS, error_key, group
from jobqueue.core.job import DeadLetterCause
from jobqueue.core.lifecycle import Reason


def letter(error: str = "boom", at: float = 0.0, **changes: object) -> DeadLetterCause:
    fields = {
        "seq": 1, "version": 3, "id": f"job-{at}", "queue": "q", "type": "t",
        "reason": Reason.RETRIES_EXHAUSTED, "error": error, "at": at, **changes,
    }  # fmt: skip
    return DeadLetterCause(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "key"),
    [
        ("KeyError: 'a'\n  File x, line 1", "KeyError: 'a'"),
        ("order 123: timed out after 30.5 s", "order …: timed out after ….… s"),
        ("no job 0be9df2c-5b0e-4d3c-9f0e-2b4f6f1c9a77 here", "no job … here"),
        ("at 0x7f3265ab0450 in deadbeefdeadbeef", "at … in …"),
        ("added a facade", "added a facade"),
        ("", ""),
        ("\n  \nlate", "late"),
        ("x" * 1_000, "x" * 200),
    ],
)
def test_errors_are_equal_without_numbers_and_ids(error: str, key: str):
    assert error_key(error) == key


def test_groups_describe_their_letters_and_the_largest_comes_first():
    letters = [
        letter("order 1: timed out", 0.0, queue="a"),
        letter("order 22: timed out", 50.0, queue="b"),
        letter("order 3: timed out", 100.0, queue="a"),
        letter("order 4: timed out", 60.0, type="other"),
        letter("", 70.0, reason=Reason.CANCELLED),
    ]
    first, *others = group(letters, 10)
    assert (first.type, first.error, first.part) == ("t", "order …: timed out", ": timed out")
    assert (first.jobs, first.queues, first.newest) == (3, ["a", "b"], "job-100.0")
    assert (first.first_at, first.last_at) == (0.0, 100.0)
    assert len(first.by_time) == BARS
    assert [place for place, jobs in enumerate(first.by_time) if jobs] == [0, 12, BARS - 1]
    assert [(one.reason, one.jobs) for one in others] == [
        (Reason.CANCELLED, 1),
        (Reason.RETRIES_EXHAUSTED, 1),
    ]
    assert others[0].part == ""
    assert len(group(letters, 1)) == 1
    assert group([], 10) == []


def test_the_part_of_a_group_is_in_every_error_of_it():
    errors = [f"{n}: cannot reach 10.0.0.{n}:5432 ({n} tries)" for n in range(5)]
    (found,) = group([letter(error, float(n)) for n, error in enumerate(errors)], 10)
    assert found.part
    assert all(found.part in error for error in errors)
