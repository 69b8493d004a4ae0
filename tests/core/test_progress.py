"""What a handler may say of its progress."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.progress import MAX_PROGRESS_TEXT, Progress


@pytest.mark.parametrize(
    ("said", "kept"),
    [(0, 0.0), (1, 1.0), (0.25, 0.25), (Fraction(1, 4), 0.25), (1.0000001, 1.0), (-1e-9, 0.0)],
)
def test_a_value_is_a_fraction(said: object, kept: float) -> None:
    assert Progress.of(said, "").value == kept
    assert str(Progress.of(-0.0, "").value) == "0.0"


@pytest.mark.parametrize("said", [40, -0.5, 1.01, float("nan"), float("inf"), float("-inf")])
def test_a_value_out_of_range_is_refused(said: float) -> None:
    with pytest.raises(InvalidArgument, match=r"progress\.value: must be 0 to 1 \(0\.25 is 25 %\)"):
        Progress.of(said, "text")


@pytest.mark.parametrize("said", ["0.5", True, {"at": 1}, [1], Decimal("0.5"), 1j, b"1"])
def test_a_value_that_is_no_number_is_refused(said: object) -> None:
    with pytest.raises(InvalidArgument, match=r"progress\.value: expected a number, got "):
        Progress.of(said, "")


def test_a_text_that_is_none_is_refused() -> None:
    for said in (None, 7, b"x", {"step": 1}):
        with pytest.raises(InvalidArgument, match=r"progress\.text: expected a text, got "):
            Progress.of(0.5, said)


def test_nothing_said_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="progress: expected a value from 0 to 1, a text"):
        Progress.of(None, "")


def test_a_text_alone_will_do() -> None:
    assert Progress.of(None, "reading") == Progress(None, "reading")


def test_a_long_text_is_cut() -> None:
    exact = "ä" * MAX_PROGRESS_TEXT
    assert Progress.of(0, exact).text == exact
    cut = Progress.of(0, exact + "b").text
    assert len(cut) == MAX_PROGRESS_TEXT
    assert cut.endswith("ä…")


def test_a_text_becomes_one_line_that_can_be_stored_and_shown() -> None:
    text = Progress.of(0, "a\nb\tc\0d\x1b[31me\ud800f – ü 🚀").text
    assert text == "a b c d [31me f – ü 🚀"


def test_a_refusal_of_a_huge_value_is_short() -> None:
    for said in ("x" * 100_000, 10**5_000):
        with pytest.raises(InvalidArgument) as refused:
            Progress.of(said, "")
        assert len(str(refused.value)) < 200
