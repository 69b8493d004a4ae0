"""Read and write the weights of concurrency keys as a text for people: ``tenant:1=5,*=1``.

A text that begins with ``{`` is a JSON object, because keys may contain commas and spaces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

_MOST_DIGITS = 18
EXAMPLE = "tenant:1=5,*=1"


def read_key_weights(text: str) -> dict[str, int] | None:
    """Return the weight of each key, or None if the text is empty.

    Raises ValueError, with what is wrong, if the text is something else. The weights are not
    checked otherwise.
    """
    if text.lstrip().startswith("{"):
        return _read_json(text)
    weights: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, _, weight = (part.strip() for part in item.rpartition("="))
        if not (key and weight.isdecimal() and len(weight) <= _MOST_DIGITS) or key in weights:
            raise ValueError(f"{item[:80]!r} is not KEY=WEIGHT, each key once, as in {EXAMPLE}")
        weights[key] = int(weight)
    return weights or None


def _read_json(text: str) -> dict[str, int] | None:
    try:
        weights = json.loads(text)
    except (ValueError, RecursionError):
        weights = None
    if not isinstance(weights, dict) or any(type(weight) is not int for weight in weights.values()):
        raise ValueError(f"{text[:80]!r} is not a JSON object of keys and weights")
    return weights or None


def key_weights_text(weights: Mapping[str, int]) -> str:
    """Return the weights as a text that ``read_key_weights`` reads."""
    # Backwards, because people expect "*" behind the keys that have names.
    ordered = dict(sorted(weights.items())[::-1])
    text = ",".join(f"{key}={weight}" for key, weight in ordered.items())
    try:
        if read_key_weights(text) == ordered:
            return text
    except ValueError:
        pass
    return json.dumps(ordered, ensure_ascii=False)
