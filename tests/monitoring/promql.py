"""Just enough of PromQL's grammar to know which metrics and labels an expression names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

FUNCTIONS = {
    "absent", "delta", "deriv", "histogram_quantile", "increase", "label_values", "max", "min",
    "min_over_time", "rate", "sum",
}  # fmt: skip
GROUPING = {"by", "on"}
OPERATORS = {"and", "or", "unless"}
TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])
    |(?P<word>[A-Za-z_:][A-Za-z0-9_:]*)
    |(?P<number>\d+(?:\.\d+)?)
    |(?P<match>=~|!~|!=|==|>=|<=|[=><])
    |(?P<mark>[(){},+*/-])""",
    re.VERBOSE,
)


@dataclass
class Selector:
    """A metric, and what is asked of its labels: (name, operator, value)."""

    metric: str
    labels: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass
class Query:
    """What an expression names."""

    selectors: list[Selector] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)


def tokens(text: str) -> list[tuple[str, str]]:
    """Cut an expression up; ValueError where it cannot be read."""
    found, place = [], 0
    while place < len(text):
        match = TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"cannot read {text[place:][:30]!r} in {text!r}")
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match.group()))
        place = match.end()
    return found


def parse(text: str) -> Query:
    """Find selectors and grouping labels; ValueError for what is not understood."""
    left = tokens(text)
    query = Query()
    depth = 0
    while left:
        kind, word = left.pop(0)
        following = left[0][1] if left else ""
        if kind == "mark":
            depth += {"(": 1, ")": -1}.get(word, 0)
            if depth < 0 or word in "{}":
                raise ValueError(f"{word!r} is out of place in {text!r}")
        elif kind == "word" and word in GROUPING:
            query.grouped |= {name for kind, name in _until(left, "(", ")") if kind == "word"}
        elif kind == "word" and word in OPERATORS:
            continue
        elif (kind == "word" and following == "(") or word in FUNCTIONS:
            if word not in FUNCTIONS:
                raise ValueError(f"{word!r} is not a function known here, in {text!r}")
        elif kind == "word":
            query.selectors.append(Selector(word, _matchers(left) if following == "{" else []))
    if depth:
        raise ValueError(f"brackets do not match in {text!r}")
    return query


def _until(left: list[tuple[str, str]], begin: str, end: str) -> list[tuple[str, str]]:
    assert left.pop(0)[1] == begin
    inside = []
    while left[0][1] != end:
        inside.append(left.pop(0))
    left.pop(0)
    return inside


def _matchers(left: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    inside = [token for token in _until(left, "{", "}") if token[1] != ","]
    triples = list(zip(inside[::3], inside[1::3], inside[2::3], strict=True))
    for name, operator, value in triples:
        if (name[0], operator[0], value[0]) != ("word", "match", "string"):
            raise ValueError(f"not a matcher: {name[1]}{operator[1]}{value[1]}")
    return [(name[1], operator[1], value[1][1:-1]) for name, operator, value in triples]
