"""Weights of keys as a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.core.key_weights import key_weights_text, read_key_weights

KEYS = st.text(min_size=1, max_size=9)


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("tenant:1=5, *=1", {"tenant:1": 5, "*": 1}),
        ("a=b=2,", {"a=b": 2}),
        ("", None),
        (" , ", None),
        ('{"a, b": 3}', {"a, b": 3}),
        ("{}", None),
    ],
)
def test_a_text_is_read(text, weights):
    assert read_key_weights(text) == weights


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a", "'a' is not KEY=WEIGHT"),
        ("=1", "'=1' is not KEY=WEIGHT"),
        ("a=one", "'a=one' is not KEY=WEIGHT"),
        ("a=-1", "'a=-1' is not KEY=WEIGHT"),
        ("a=1,a=2", "each key once"),
        ("a=" + "1" * 5_000, "is not KEY=WEIGHT"),
        ('{"a": 1.5}', "is not a JSON object of keys and weights"),
        ('{"a": true}', "is not a JSON object of keys and weights"),
        ("{" * 100_000, "is not a JSON object of keys and weights"),
        ('{"a": 1', "is not a JSON object of keys and weights"),
    ],
)
def test_another_text_is_refused(text, says):
    with pytest.raises(ValueError, match="is not") as error:
        read_key_weights(text)
    assert says in str(error.value)
    assert len(str(error.value)) < 200


@given(st.dictionaries(KEYS, st.integers(1, 1_000_000), min_size=1))
def test_what_is_written_can_be_read(weights):
    assert read_key_weights(key_weights_text(weights)) == weights


def test_plain_keys_are_shown_plainly():
    assert key_weights_text({"*": 1, "a:1": 5}) == "a:1=5,*=1"
