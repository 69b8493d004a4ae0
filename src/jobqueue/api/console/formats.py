"""Format values for people: times, durations, counts, sizes and JSON."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime
from itertools import accumulate
from urllib.parse import quote

import msgspec
from markupsafe import Markup

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.key_weights import key_weights_text
from jobqueue.core.queue import COUNTED_TO
from jobqueue.documents import rfc3339

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SIZES = ("KiB", "MiB", "GiB")
_AGE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_TIME = Markup('<time datetime="{}" title="{} UTC" data-as="{}">{}</time>')
_INDENT = 2
_LONGEST_INDENTED = 256 * 1024  # bytes
_MOST_SPACES = 4 * 1024 * 1024
_NO_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[^][{}"]+')
NOTHING = Markup('<span class="none" title="none">–</span>')


def moment(at: float | None) -> Markup:
    """Return a time as HTML, in UTC. A script shows it in the reader's zone."""
    if at is None:
        return NOTHING
    utc = _utc(at)
    return _TIME.format(rfc3339(at), utc, "time", f"{utc[:19]} UTC")


def ago(at: float | None) -> Markup:
    """Return how long ago a time was, as HTML."""
    if at is None:
        return NOTHING
    passed = time.time() - at
    text = f"in {span(-passed)}" if passed < 0 else f"{span(passed)} ago"
    return _TIME.format(rfc3339(at), _utc(at), "age", "now" if abs(passed) < 1 else text)


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def span(seconds: float | None) -> str:
    """Format a duration with its two largest units."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else f"{seconds * 1000:.2g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    left = round(seconds)
    parts = []
    for size, unit in _UNITS:
        amount, left = divmod(left, size)
        if amount:
            parts.append(f"{amount:,} {unit}")
        if len(parts) == 2 or (parts and not left):
            break
    return " ".join(parts)


def setting(value: object) -> str:
    """Format the value of a queue's setting without its unit."""
    if value is None:
        return ""
    if isinstance(value, dict):
        if any(isinstance(key, str) for key in value):
            return key_weights_text(value)
        return ", ".join(f"{priority}: {weight}" for priority, weight in sorted(value.items()))
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value)


def count(number: float) -> str:
    return f"{number:,.0f}"


def capped(number: int, most: int = COUNTED_TO) -> str:
    """Format a number that was counted to ``most`` at most."""
    return f"{most:,}+" if number >= most else f"{number:,}"


def size(number: float) -> str:
    """Format a number of bytes."""
    if number < 1024:
        return f"{number:,.0f} B"
    power = min(int(math.log(number, 1024)), len(_SIZES))
    return f"{number / 1024**power:,.1f} {_SIZES[power - 1]}"


def percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 or not share else f"{share:.1%}"


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def segment(text: str) -> str:
    """Quote a text as one segment of a path."""
    return quote(text, safe="")


def readable(content: bytes) -> tuple[str, str]:
    """Return the kind of some bytes (``JSON``, ``text`` or ``bytes``) and a text that shows them.

    JSON is indented, unless it is long or nested deeply, and its numbers keep all their digits.
    Bytes are shown as hexadecimal.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "bytes", content.hex(" ")
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
        if _can_be_indented(content):
            text = msgspec.json.format(content, indent=_INDENT).decode()
        return "JSON", text
    except (msgspec.DecodeError, RecursionError):
        return "text", text


def _can_be_indented(content: bytes) -> bool:
    """Return True if JSON that is indented is not much longer.

    Each line of a list that is nested a thousand levels deep begins with 2,000 spaces: without this
    check, 1 MiB of JSON takes 1 GiB.
    """
    if len(content) > _LONGEST_INDENTED:
        return False
    opened = content.count(b"[") + content.count(b"{")
    most = _MOST_SPACES // (_INDENT * (1 + content.count(b",") + 2 * opened))  # of levels
    return opened <= most or _depth(content) <= most


def _depth(content: bytes) -> int:
    """Return the number of levels of lists and objects in JSON."""
    levels = accumulate(1 if one in b"[{" else -1 for one in _NO_BRACKETS.sub(b"", content))
    return max(levels, default=0)


def read_span(text: str) -> float:
    """Parse a number of seconds, or a number with a unit. Raise ValueError for other texts."""
    if found := _AGE.fullmatch(text.strip()):
        return float(found[1]) * _SECONDS[found[2]]
    return float(text)


def read_time(text: str, field: str, now: float) -> float | None:
    """Parse a time of a filter: an age like ``2h``, or RFC 3339 with an offset. Empty is None."""
    text = text.strip()
    if not text:
        return None
    if _AGE.fullmatch(text):
        return now - read_span(text)
    try:
        parsed = datetime.fromisoformat(text.replace(" ", "+"))
        if parsed.tzinfo is not None:
            return parsed.timestamp()
    except ValueError:
        pass
    raise InvalidArgument(
        field,
        f"{text[:80]!r} is not a time; allowed: an age (90s, 15m, 2h, 7d), or RFC 3339 with an"
        " offset (2030-01-31T12:00:00Z)",
    )


def rounded(value: float) -> str:
    """Format a number with three digits, for axes and figures."""
    if not value or math.isnan(value):
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def sentence(text: str) -> str:
    """Return a text with a capital at its beginning and a full stop at its end."""
    return f"{text[:1].upper()}{text[1:]}."
