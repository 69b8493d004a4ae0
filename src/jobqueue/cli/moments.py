"""Parse the points in time that people type."""

from __future__ import annotations

import re
import time
from datetime import datetime

from jobqueue.core.errors import InvalidArgument

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")


def parse_moment(text: str | None, field: str) -> float | None:
    """Return the time that a text describes, or None if ``text`` is None.

    ``2h`` means two hours ago. Any other text must be a date or a time in ISO 8601, which is local
    unless it has a UTC offset. Raise InvalidArgument for ``field`` if the text is not a time.
    """
    if text is None:
        return None
    ago = _AGO.fullmatch(text.strip().lower())
    if ago is not None:
        return max(0.0, time.time() - float(ago[1]) * _UNITS[ago[2]])
    try:
        return datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise InvalidArgument(
            field,
            f"{text[:80]!r} is not a time; allowed: 30m, 2h or 7d (ago), 2030-01-31,"
            " 2030-01-31T12:00 (local) or 2030-01-31T12:00:00Z",
        ) from None
