"""Parse cron schedules with a time zone, and compute the moments of their runs.

The five fields mean the same as in cron(8). Every matching local time gives exactly one moment.
When summer time ends, one local hour happens twice; the first of the two moments counts. When
summer time begins, some local times do not exist; they give the first minute after the gap. So a
schedule runs at most once at a local time, a daily schedule runs every day, and all local times in
a gap give one run.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from jobqueue.core.errors import InvalidArgument

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # days of a month, in a leap year
_SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MAX_CRON_LENGTH = 1_000
"""The most characters of a cron expression. One that lists every single value has 400."""
_SHOWN = 80
_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS = range(2, 9999)  # a year less at both ends: no time zone leads out of datetime's range


@dataclass(frozen=True, slots=True)
class _Field:
    """Describes one of the five fields: its name in errors, its range, and the names of values."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def parse(self, text: str) -> frozenset[int]:
        """Parse a comma-separated list of values, ranges and steps into the matching values."""
        return frozenset(value for item in text.split(",") for value in self._item(item, text))

    def _item(self, item: str, text: str) -> range:
        span, slash, step_text = item.partition("/")
        step = self._step(step_text, text) if slash else 1
        first, dash, last = span.partition("-")
        if span == "*":
            low, high = self.low, self.high
        else:
            low = self._value(first, text)
            high = low
            if dash:
                high = self._value(last, text)
                if self.names is _WEEKDAYS and high == 0 < low:
                    high = 7  # fri-sun: a week may end with its Sunday
            elif slash:
                high = self.high
        if low > high:
            raise self._bad(text, f"the range {span} runs backwards")
        return range(low, high + 1, step)

    def _value(self, word: str, text: str) -> int:
        if word.isascii() and word.isdigit():
            value = int(word[:9])
            if not self.low <= value <= self.high:
                raise self._bad(text, f"{word[:9]} is out of range")
            return value
        lower = word.lower()
        if lower in self.names:
            return self.names.index(lower) + (1 if self.names is _MONTHS else 0)
        raise self._bad(text, f"{word[:_SHOWN]!r} is not a value" if word else "a value is missing")

    def _step(self, word: str, text: str) -> int:
        largest = self.high - self.low
        step = int(word[:9]) if word.isascii() and word.isdigit() else 0
        if not 1 <= step <= largest:
            raise self._bad(text, f"the step {word[:_SHOWN]!r} is not 1 to {largest}")
        return step

    def _bad(self, text: str, why: str) -> InvalidArgument:
        names = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return InvalidArgument(
            "cron",
            f"{self.name} {text[:_SHOWN]!r}: {why}; allowed: *, {self.low} to {self.high}{names},"
            " ranges a-b, steps */n, lists a,b",
        )


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _WEEKDAYS),  # 0 and 7 are Sunday
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed cron schedule. Create it with ``parse``. Its times are seconds since the epoch."""

    text: str
    timezone: str
    _zone: tzinfo = field(repr=False)
    _minutes: tuple[int, ...] = field(repr=False)
    _hours: tuple[int, ...] = field(repr=False)
    _days: frozenset[int] = field(repr=False)
    _months: frozenset[int] = field(repr=False)
    _weekdays: frozenset[int] = field(repr=False)
    _either_day: bool = field(repr=False)  # a day that matches one of the two fields is enough

    @classmethod
    def parse(cls, text: str, timezone: str = "UTC") -> Cron:
        """Parse five fields or a shorthand like ``@hourly``.

        Raises InvalidArgument with the name of the field that is not valid.
        """
        if not isinstance(text, str):
            raise InvalidArgument("cron", f"expected five fields as text, got {text!r:.80}")
        words = _words(text)
        minutes, hours, days, months, weekdays = (
            spec.parse(word) for spec, word in zip(_FIELDS, words, strict=True)
        )
        # cron(8): a day that matches one of the two day fields is enough, unless a day field begins
        # with *: then a day must match both.
        either = not words[2].startswith("*") and not words[4].startswith("*")
        if not either and not any(min(days) <= _LONGEST[month - 1] for month in months):
            raise InvalidArgument(
                "cron",
                f"day of month {words[2]!r}: no month of {words[3]!r} has such a day,"
                " so it would never run",
            )
        return cls(
            text=" ".join(text.split()),
            timezone=timezone,
            _zone=_find_zone(timezone),
            _minutes=tuple(sorted(minutes)),
            _hours=tuple(sorted(hours)),
            _days=days,
            _months=months,
            _weekdays=frozenset(day % 7 for day in weekdays),
            _either_day=either,
        )

    def next(self, after: float) -> float:
        """Return the time of the first run later than ``after``."""
        start = self._local(_whole_minute(after))
        for local in self._times(start, 1):
            moment = self._moment(local)
            if moment > after:
                return moment
        raise InvalidArgument("cron", f"{self.text!r} does not run again before the year 9999")

    def previous(self, until: float) -> float:
        """Return the time of the last run that is not later than ``until``."""
        start = _whole_minute(until)
        # In an hour that happens twice, the first pass had later local times than ``start``: search
        # backwards from the local time at the offset before the change.
        local = max(self._local(start), self._local(start - _DAY) + _DAY)
        for candidate in self._times(local, -1):
            moment = self._moment(candidate)
            if moment <= until:
                return moment
        raise InvalidArgument("cron", f"{self.text!r} has not run since the year 1")

    # -- local times, without a zone -------------------------------------------------------

    def _times(self, start: datetime, way: int) -> Iterator[datetime]:
        """Yield the matching local times from ``start`` on; ``way`` is 1 for later, -1 for earlier.

        ``start`` is included if it matches.
        """
        day = start.date()
        while day.year in _YEARS:
            if day.month not in self._months:
                # To the first day of the next month, or the last day of the one before.
                first = day.replace(day=1)
                day = first - _DAY if way < 0 else (first + 32 * _DAY).replace(day=1)
                continue
            if self._matches(day):
                for hour in self._hours[::way]:
                    if day == start.date() and (hour - start.hour) * way < 0:
                        continue
                    for minute in self._minutes[::way]:
                        local = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001
                        if local == start or (local > start) is (way > 0):
                            yield local
            day += way * _DAY

    def _matches(self, day: date) -> bool:
        by_date = day.day in self._days
        by_weekday = day.isoweekday() % 7 in self._weekdays
        return (by_date or by_weekday) if self._either_day else (by_date and by_weekday)

    # -- the zone --------------------------------------------------------------------------

    def _local(self, moment: datetime) -> datetime:
        return moment.astimezone(self._zone).replace(tzinfo=None, fold=0)

    def _moment(self, local: datetime) -> float:
        """Return the first moment with this local time, in seconds since the epoch.

        For a local time in a gap, return the first minute after the gap.
        """
        moment = local.replace(tzinfo=self._zone).astimezone(UTC)
        if self._local(moment) != local:
            moment = self._after_gap(local)
        return (moment - _EPOCH).total_seconds()

    def _after_gap(self, local: datetime) -> datetime:
        # fold=0 uses the offset before the gap and gives a moment after the gap; fold=1 gives a
        # moment before the gap. Bisect the time between them.
        late = local.replace(tzinfo=self._zone).astimezone(UTC)
        early = local.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        while late - early > _MINUTE:
            middle = early + ((late - early) // _MINUTE + 1) // 2 * _MINUTE
            if self._local(middle) < local:
                early = middle
            else:
                late = middle
        return late


def utc_text(moment: float) -> str:
    """Format a time in UTC, to the second, for texts and for idempotency keys of schedules."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _words(text: str) -> list[str]:
    if len(text) > MAX_CRON_LENGTH:
        raise InvalidArgument("cron", f"has {len(text)} characters; at most {MAX_CRON_LENGTH}")
    words = text.split()
    if len(words) == 1 and words[0].startswith("@"):
        if (full := _SHORTHANDS.get(words[0].lower())) is None:
            raise InvalidArgument(
                "cron", f"{text[:_SHOWN]!r} is unknown; allowed: {', '.join(sorted(_SHORTHANDS))}"
            )
        words = full.split()
    if len(words) != len(_FIELDS):
        raise InvalidArgument(
            "cron",
            f"{text[:_SHOWN]!r} has {len(words)} fields; five are needed:"
            " minute hour day-of-month month day-of-week, like '*/5 * * * *', or @hourly",
        )
    return words


def _find_zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # needs no database of time zones
    with suppress(KeyError, ValueError, OSError, TypeError):
        return ZoneInfo(name)
    known = _known_zones()
    close = difflib.get_close_matches(str(name)[:_SHOWN], known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    if not known:
        hint = "; this machine has no database of time zones: install the package tzdata"
    raise InvalidArgument(
        "timezone", f"{name!r:.80} is not a time zone; allowed: names like Europe/Zurich{hint}"
    )


@cache
def _known_zones() -> Sequence[str]:
    """Return the names of all time zones. To find them takes many reads of files."""
    return sorted(available_timezones())


def _whole_minute(moment: float) -> datetime:
    return datetime.fromtimestamp(moment // 60 * 60, UTC)
