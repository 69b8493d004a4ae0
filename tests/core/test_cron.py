"""Schedules: what may be written, and every fire time against a search minute by minute."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobqueue.core.cron import Cron, utc_text
from jobqueue.core.errors import InvalidArgument
from tests.examples import examples

ZONES = (
    "UTC",
    "Europe/Zurich",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour of summer time
    "America/Santiago",  # changes at midnight
    "Asia/Kolkata",
)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def after(cron: str, start: str, count: int = 1, zone: str = "UTC") -> list[str]:
    parsed, moment = Cron.parse(cron, zone), at(start)
    found = []
    for _ in range(count):
        moment = parsed.next(moment)
        found.append(utc_text(moment)[:-4])  # whole minutes
    return found


# -- examples ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("* * * * *", ["2026-11-15T10:08", "2026-11-15T10:09"]),
        ("*/5 * * * *", ["2026-11-15T10:10", "2026-11-15T10:15"]),
        ("7 10 * * *", ["2026-11-16T10:07", "2026-11-17T10:07"]),
        ("0 3 * * *", ["2026-11-16T03:00", "2026-11-17T03:00"]),
        ("0,30 8-9 * * mon-fri", ["2026-11-16T08:00", "2026-11-16T08:30"]),
        ("0 0 1 JAN *", ["2027-01-01T00:00", "2028-01-01T00:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 0 * * 7", ["2026-11-22T00:00", "2026-11-29T00:00"]),
        ("0 0 * * fri-sun", ["2026-11-20T00:00", "2026-11-21T00:00"]),
        ("10/20 12 * * *", ["2026-11-15T12:10", "2026-11-15T12:30"]),
        ("10-40/15 12 * * *", ["2026-11-15T12:10", "2026-11-15T12:25"]),
        ("@hourly", ["2026-11-15T11:00", "2026-11-15T12:00"]),
        ("@DAILY", ["2026-11-16T00:00", "2026-11-17T00:00"]),
        ("@weekly", ["2026-11-22T00:00", "2026-11-29T00:00"]),
        ("@monthly", ["2026-12-01T00:00", "2027-01-01T00:00"]),
        ("@yearly", ["2027-01-01T00:00", "2028-01-01T00:00"]),
        # Both day fields: either is enough; one that begins with * restricts along.
        ("0 0 17 * mon", ["2026-11-16T00:00", "2026-11-17T00:00"]),
        ("0 0 */2 * mon", ["2026-11-23T00:00", "2026-12-07T00:00"]),
        # Impossible by date alone, but there are Mondays.
        ("0 0 31 2 mon", ["2027-02-01T00:00", "2027-02-08T00:00"]),
    ],
)
def test_next(cron: str, expected: list[str]) -> None:
    assert after(cron, "2026-11-15T10:07:30", 2) == expected  # a Sunday


def test_next_is_later_and_previous_is_not() -> None:
    cron = Cron.parse("*/5 * * * *")
    tick = at("2026-11-15T10:05")
    assert cron.next(tick - 0.001) == cron.previous(tick) == cron.previous(tick + 299.9) == tick
    assert cron.next(tick) == tick + 300
    assert cron.previous(tick - 0.001) == tick - 300


# -- summer time -------------------------------------------------------------------------------


def test_a_time_in_the_gap_runs_at_the_first_minute_after_it() -> None:
    # In Zurich 02:00 to 02:59 do not exist on 29 March 2026; 03:00 is 01:00 UTC.
    found = after("30 2 * * *", "2026-03-28T00:00", 3, "Europe/Zurich")
    assert found == ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"]


def test_all_times_in_the_gap_are_one_run() -> None:
    found = after("*/20 * * * *", "2026-03-29T00:30", 3, "Europe/Zurich")
    assert found == ["2026-03-29T00:40", "2026-03-29T01:00", "2026-03-29T01:20"]


def test_a_repeated_time_runs_once_the_first_time() -> None:
    # 02:00 to 02:59 come twice on 25 October 2026: from 00:00 and from 01:00 UTC.
    found = after("30 2 * * *", "2026-10-24T12:00", 2, "Europe/Zurich")
    assert found == ["2026-10-25T00:30", "2026-10-26T01:30"]
    found = after("*/30 * * * *", "2026-10-24T23:59", 3, "Europe/Zurich")
    assert found == ["2026-10-25T00:00", "2026-10-25T00:30", "2026-10-25T02:00"]


def test_previous_in_the_repeated_hour_is_of_its_first_pass() -> None:
    cron = Cron.parse("*/30 * * * *", "Europe/Zurich")
    assert cron.previous(at("2026-10-25T01:10")) == at("2026-10-25T00:30")


# -- against a search --------------------------------------------------------------------------


def field(low: int, high: int, names: tuple[str, ...] | None = None) -> st.SearchStrategy[str]:
    def show(value: int) -> st.SearchStrategy[str]:
        if names is None or value - (low if low else 0) >= len(names):
            return st.just(str(value))
        return st.sampled_from([str(value), names[value - (low if low else 0)]])

    value = st.integers(low, high)
    step = st.integers(1, high - low).map(str)
    span = st.tuples(value, value).map(sorted)
    item = st.one_of(
        value.flatmap(show),
        span.map(lambda s: f"{s[0]}-{s[1]}"),
        st.tuples(span, step).map(lambda s: f"{s[0][0]}-{s[0][1]}/{s[1]}"),
        step.map(lambda s: f"*/{s}"),
    )
    return st.one_of(st.just("*"), st.lists(item, min_size=1, max_size=3).map(",".join))


CRONS = st.tuples(
    field(0, 59), field(0, 23), field(1, 31), field(1, 12, MONTHS), field(0, 7, WEEKDAYS)
).map(" ".join)
# Mostly around the changes of summer time.
CHANGES = ["2026-03-29T01:00", "2026-10-25T01:00", "2026-03-08T07:00", "2026-11-01T06:00"]
CHANGES += ["2026-04-04T15:00", "2026-10-03T15:30", "2026-09-06T04:00", "2026-04-05T03:00"]
MOMENTS = st.one_of(
    st.integers(int(at("2026-01-01")), int(at("2027-01-01"))).map(float),
    st.tuples(st.sampled_from(CHANGES), st.floats(-7_200, 7_200)).map(lambda m: at(m[0]) + m[1]),
)


@functools.cache  # a search asks for the same few values of a field thousands of times
def holds(field: str, value: int, low: int, high: int, names: tuple[str, ...] = ()) -> bool:
    """A second reading of a field, by trying every item on one value."""

    def number(word: str) -> int:
        return names.index(word) + (1 if low else 0) if word in names else int(word)

    for item in field.split(","):
        span, _, step = item.partition("/")
        first, _, last = span.partition("-")
        a, b = (low, high) if span == "*" else (number(first), number(last or first))
        if a <= value <= b and (value - a) % int(step or 1) == 0:
            return True
    return False


@functools.cache
def shown(minute: int, zone: str) -> datetime:
    return datetime.fromtimestamp(minute * 60, ZoneInfo(zone)).replace(tzinfo=None)


def fires(cron: str, zone: str, minute: int) -> bool:
    """Whether the schedule runs at this minute since the epoch, by the rules as documented."""
    fields = cron.split()

    def wanted(local: datetime) -> bool:
        if not (
            holds(fields[0], local.minute, 0, 59)
            and holds(fields[1], local.hour, 0, 23)
            and holds(fields[3], local.month, 1, 12, MONTHS)
        ):
            return False
        weekday = local.isoweekday() % 7
        date = holds(fields[2], local.day, 1, 31)
        day = any(holds(fields[4], d, 0, 7, WEEKDAYS) for d in {weekday, weekday or 7})
        either = fields[2][0] != "*" and fields[4][0] != "*"
        return (date or day) if either else (date and day)

    local, before = shown(minute, zone), shown(minute - 1, zone)
    if local - before == timedelta(minutes=1):
        if not wanted(local):
            return False
        # Has the clock shown this before? Then it is the second pass of a repeated hour.
        return all(shown(minute - back, zone) != local for back in (30, 60))
    if local < before:  # the clock was set back
        return False
    skipped = int((local - before) / timedelta(minutes=1))
    return any(wanted(before + timedelta(minutes=n)) for n in range(1, skipped + 1))


@settings(max_examples=examples(100), deadline=None)
@given(CRONS, st.sampled_from(ZONES), MOMENTS)
def test_next_and_previous_are_what_a_search_finds(cron: str, zone: str, moment: float) -> None:
    try:
        parsed = Cron.parse(cron, zone)
    except InvalidArgument as error:
        assert "would never run" in error.message  # noqa: PT017
        leap_year = [datetime(2028, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(366)]
        _, _, days, months, _ = cron.split()
        assert not any(
            holds(days, day.day, 1, 31) and holds(months, day.month, 1, 12, MONTHS)
            for day in leap_year
        )
        return
    width = 2_000  # minutes searched on both sides
    minute = int(moment // 60)
    expected = next((m for m in range(minute + 1, minute + width) if fires(cron, zone, m)), None)
    found = parsed.next(moment) / 60
    assert found == expected if expected is not None else found >= minute + width
    expected = next((m for m in range(minute, minute - width, -1) if fires(cron, zone, m)), None)
    found = parsed.previous(moment) / 60
    assert found == expected if expected is not None else found <= minute - width


@settings(max_examples=examples(50), deadline=None)
@given(CRONS, st.sampled_from(ZONES), MOMENTS)
def test_next_and_previous_lead_back_to_each_other(cron: str, zone: str, moment: float) -> None:
    try:
        parsed = Cron.parse(cron, zone)
    except InvalidArgument:
        return
    tick = parsed.next(moment)
    assert parsed.previous(tick) == tick > moment
    assert parsed.previous(tick - 0.5) <= moment
    assert parsed.next(parsed.previous(moment)) == tick


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        ("", r"cron: '' has 0 fields; five are needed: minute hour"),
        ("* * * *", r"has 4 fields"),
        ("* * * * * *", r"has 6 fields"),
        ("60 * * * *", r"cron: minute '60': 60 is out of range; allowed: \*, 0 to 59"),
        ("* 24 * * *", r"cron: hour '24': 24 is out of range; allowed: \*, 0 to 23"),
        ("* * 0 * *", r"cron: day of month '0': 0 is out of range"),
        ("* * * 13 *", r"cron: month '13': 13 is out of range; allowed: .* or jan to dec"),
        ("* * * * 8", r"cron: day of week '8': 8 is out of range"),
        ("* * * foo *", r"cron: month 'foo': 'foo' is not a value"),
        ("* * * * jan", r"cron: day of week 'jan': 'jan' is not a value"),
        ("mon * * * *", r"cron: minute 'mon'"),
        ("5-1 * * * *", r"cron: minute '5-1': the range 5-1 runs backwards"),
        ("*/0 * * * *", r"cron: minute '\*/0': the step '0' is not 1 to 59"),
        ("*/90 * * * *", r"cron: minute '\*/90': the step '90' is not 1 to 59"),
        ("*/ * * * *", r"cron: minute '\*/': the step ''"),
        ("1,,2 * * * *", r"cron: minute '1,,2': a value is missing"),
        ("-1 * * * *", r"cron: minute '-1': a value is missing"),
        ("1.5 * * * *", r"cron: minute '1.5': '1.5' is not a value"),
        ("² * * * *", r"cron: minute '²'"),
        ("9999999999999999999 * * * *", r"cron: minute"),
        ("@reboot", r"cron: '@reboot' is unknown; allowed: @annually, @daily"),
        ("0 0 31 2 *", r"cron: day of month '31': no month of '2' has such a day"),
        ("0 0 31 apr,jun */2", r"day of month '31': no month of 'apr,jun' has such a day"),
        (5, r"cron: expected five fields as text, got 5"),
    ],
)
def test_what_is_wrong_is_refused_by_field(cron: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        Cron.parse(cron)
    assert caught.value.field == "cron"


@pytest.mark.parametrize("zone", ["Mars/Base", "Europe", "../etc/passwd", "/etc/localtime", "", 7])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidArgument, match=r"timezone: .* is not a time zone; allowed: names"):
        Cron.parse("* * * * *", zone)


def test_a_misspelt_time_zone_is_recognised() -> None:
    with pytest.raises(InvalidArgument, match=r"did you mean 'Europe/Zurich'\?"):
        Cron.parse("* * * * *", "Europe/Zürich")
