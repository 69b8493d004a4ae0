"""Define and check the progress that a handler reports for its running attempt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType

from jobqueue.core.errors import InvalidArgument

MAX_PROGRESS_TEXT = 200  # characters; a longer text is cut
_ROUNDING = 1e-6  # rounding may put a sum of fractions slightly below 0 or above 1


@dataclass(frozen=True, slots=True)
class Progress:
    """The latest progress of a running attempt. ``of`` creates it from untrusted values."""

    value: float | None = None  # 0 to 1; None: not known
    text: str = ""
    at: float = 0.0  # when the store received it, by its clock

    @classmethod
    def of(cls, value: object, text: object) -> Progress:
        """Check a reported value and text, and return them as a Progress.

        The text is reduced to one line of at most MAX_PROGRESS_TEXT characters. Raises
        InvalidArgument if the value is not from 0 to 1, or if both are missing.
        """
        if not isinstance(text, str):
            raise InvalidArgument("progress.text", f"expected a text, got {_short(text)}")
        if value is None and not text:
            raise InvalidArgument("progress", "expected a value from 0 to 1, a text, or both")
        return cls(None if value is None else _fraction(value), _line(text))


NO_PROGRESS: Mapping[int, Progress] = MappingProxyType({})
"""The progress, by lease, in a heartbeat that reports no progress."""


def _fraction(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidArgument("progress.value", f"expected a number, got {_short(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not -_ROUNDING <= number <= 1 + _ROUNDING:  # NaN is refused, too
        raise InvalidArgument(
            "progress.value", f"must be 0 to 1 (0.25 is 25 %), got {_short(value)}"
        )
    return math.copysign(min(max(number, 0.0), 1.0), 1.0)


def _short(value: object) -> str:
    try:
        said = repr(value)
    except Exception:  # a user's object, or a number of more digits than Python shows
        return f"a {type(value).__name__}"
    return said if len(said) <= 50 else f"{said[:49]}…"


def _line(text: str) -> str:
    if len(text) > MAX_PROGRESS_TEXT:
        text = text[: MAX_PROGRESS_TEXT - 1] + "…"
    if not text.isprintable():  # line breaks, NUL, escape sequences, lone surrogates
        text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text
