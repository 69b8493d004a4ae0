"""Format the table of a comparison with peers. Ratios to jobqueue come first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from textwrap import wrap
from typing import Any

from jobqueue.bench.intervals import CONFIDENCE, Interval, interval
from jobqueue.bench.peers.catalogue import Backing, Fsync, PeerSetup, System
from jobqueue.bench.peers.run import RATES, PeerRun


@dataclass(frozen=True, slots=True)
class PeerMeasure:
    """Describes a column of the table: jobs per second, or a time in milliseconds."""

    name: str
    heads: tuple[str, str]  # two lines over its column
    times: str = ""  # the field of a run with the times; empty for a rate
    share: float = 0.0  # the share of the times that lie below the figure

    @property
    def title(self) -> str:
        """Return the column's heading in one line."""
        return " ".join(self.heads)

    def of(self, run: PeerRun) -> float | None:
        """Return the figure of one run, or None if the run does not have it."""
        if self.times:
            ordered = sorted(getattr(run, self.times))
            if not ordered:
                return None
            return float(ordered[min(len(ordered) - 1, int(self.share * len(ordered)))])
        measured = run.rates.get(self.name)
        return measured["jobs"] / measured["seconds"] if measured and measured["seconds"] else None


MEASURES = (
    PeerMeasure("single", ("submit", "by 1")),
    PeerMeasure("together", ("submit", "by 50")),
    PeerMeasure("batch", ("batch", "submit")),
    PeerMeasure("drain", ("drain", "")),
    PeerMeasure("start_p50", ("to start", "p50"), "started_ms", 0.50),
    PeerMeasure("start_p95", ("to start", "p95"), "started_ms", 0.95),
    PeerMeasure("done_p50", ("to done", "p50"), "done_ms", 0.50),
)
assert {one.name for one in MEASURES if not one.times} == set(RATES)

WIDTH = 100
NONE = "-"
_NAME, _SLOTS, _CELL = 22, 7, 10  # columns
_SMALL = 0.1  # a smaller ratio is shown with one digit more
_THOUSAND = 1000


@dataclass(frozen=True, slots=True)
class PeerCell:
    """Holds one measure of one system: its value, and its ratio to jobqueue."""

    value: Interval  # jobs a second, or milliseconds
    ratio: Interval | None  # times as fast as jobqueue, over the pairs of one repetition

    def as_json(self) -> dict[str, Any]:
        """Return the value and the ratio as a JSON object."""
        ratio = None if self.ratio is None else _bounds(self.ratio)
        return {"ratio": ratio, "value": _bounds(self.value)}


def _bounds(one: Interval) -> dict[str, Any]:
    return {"mean": one.mean, "low": one.low, "high": one.high, "repetitions": one.count}


@dataclass(slots=True)
class PeerRow:
    """Holds the measures of one system in one setup."""

    system: System
    setup: PeerSetup
    version: str
    slots: int  # 0: no bound
    disturbed: int = 0  # runs
    cells: dict[str, PeerCell] = field(default_factory=dict)

    @property
    def is_base(self) -> bool:
        """Return True if the other rows are compared with this row."""
        return self.system.is_ours and self.system.backing is not Backing.SQLITE

    def as_json(self, fsync: Fsync) -> dict[str, Any]:
        """Return the row as a JSON object."""
        kept = self.system.kept(self.setup.setting)
        return {
            "system": self.system.name,
            "version": self.version,
            "backing": str(self.system.backing),
            "setting": str(self.setup.setting),
            "slots_asked": self.setup.slots,
            "slots": self.slots,
            "how": kept.how,
            "keeps": kept.keeps,
            "worker_dies": kept.lost,
            "server_crashes": str(self.system.durability(self.setup.setting, fsync)),
            "disturbed_runs": self.disturbed,
            "measures": {name: cell.as_json() for name, cell in self.cells.items()},
        }


def rows(runs: Sequence[PeerRun]) -> list[PeerRow]:
    """Return a row for each system and setup, sorted by setup and server, jobqueue first."""
    grouped: dict[tuple[System, PeerSetup], dict[int, PeerRun]] = defaultdict(dict)
    for run in runs:
        if not run.failed:
            grouped[run.system, run.setup][run.repetition] = run
    made = []
    for (system, setup), mine in grouped.items():
        base = next((grouped[one] for one in grouped if _is_base(one, system, setup)), {})
        first = next(iter(mine.values()))
        row = PeerRow(system, setup, first.version, first.slots)
        row.disturbed = sum(run.disturbed for run in mine.values())
        for measure in MEASURES:
            if (cell := _cell(measure, mine, base)) is not None:
                row.cells[measure.name] = cell
        made.append(row)
    servers = list(Backing)
    setups = list(dict.fromkeys(row.setup for row in made))
    # The order says nothing about speed: jobqueue first, then by name.
    made.sort(
        key=lambda row: (
            setups.index(row.setup),
            servers.index(row.system.backing),
            not row.system.is_ours,
        )
    )
    return made


def _is_base(of: tuple[System, PeerSetup], system: System, setup: PeerSetup) -> bool:
    """Return True if ``of`` is jobqueue on the same server in the same setup.

    No peer uses SQLite, so jobqueue on SQLite is compared with jobqueue on PostgreSQL.
    """
    backing = system.backing
    if system.is_ours and backing is Backing.SQLITE:
        backing = Backing.POSTGRES
    return of[0].is_ours and of[0].backing is backing and of[1] == setup


def _cell(
    measure: PeerMeasure, mine: Mapping[int, PeerRun], base: Mapping[int, PeerRun]
) -> PeerCell | None:
    found = {number: measure.of(run) for number, run in mine.items()}
    values = {number: value for number, value in found.items() if value}
    if not values:
        return None
    ratios = []
    for number, value in values.items():  # pairs of one repetition: the machine was the same
        if number in base and (other := measure.of(base[number])):
            ratios.append(other / value if measure.times else value / other)
    return PeerCell(interval(list(values.values())), interval(ratios) if ratios else None)


def as_text(made: Sequence[PeerRow], fsync: Fsync) -> Iterator[str]:
    """Yield the lines of the table for a terminal: each system's ratios, figures and guarantees."""
    for (setup, backing), some in groupby(made, lambda row: (row.setup, row.system.backing)):
        title = f"{backing}, {setup.setting} settings"
        wanted = "" if setup.slots is None else f"{setup.slots} slots"
        yield _line(title.upper(), "", [one.heads[0] for one in MEASURES])
        yield _line(wanted.upper(), "slots", [one.heads[1] for one in MEASURES])
        yield "─" * WIDTH
        for row in some:
            yield from _as_text(row, fsync)
        yield ""


def _as_text(row: PeerRow, fsync: Fsync) -> Iterator[str]:
    mark = "†" if row.disturbed else ""
    cells = [row.cells.get(one.name) for one in MEASURES]
    ratios = [NONE if cell is None else _ratio(row, cell) for cell in cells]
    figures = [
        NONE if cell is None else _short(cell.value, "s" if one.times else "k")
        for one, cell in zip(MEASURES, cells, strict=True)
    ]
    slots = f"{row.slots:,}" if row.slots else "any"
    yield _line(f"{row.system.name} {row.version}{mark}", slots, ratios)
    yield _line("", "", figures)
    told = [row.system.told(row.setup.setting, fsync)]
    if row.setup.slots is None:
        told.insert(0, row.system.kept(row.setup.setting).how)
    yield from (f"  {line}" for line in wrap(" | ".join(told), WIDTH - 2))


def _line(name: str, slots: str, cells: Sequence[str]) -> str:
    left = f"{name:<{_NAME}}{slots:>{_SLOTS}}" if slots else f"{name:<{_NAME + _SLOTS}}"
    return (left + "".join(f"{cell:>{_CELL}}" for cell in cells)).rstrip()


def _ratio(row: PeerRow, cell: PeerCell) -> str:
    if row.is_base:
        return "1"
    if cell.ratio is None:
        return NONE
    if cell.ratio.mean < _SMALL:
        return _with_half(cell.ratio, 3)
    return _short(cell.ratio, "k")


def _short(one: Interval, thousands: str) -> str:
    """Format a mean with three significant digits and half of its interval: "5.21±.30k"."""
    unit = ""
    if one.mean >= _THOUSAND:
        low, high = (None if bound is None else bound / _THOUSAND for bound in (one.low, one.high))
        one, unit = Interval(one.mean / _THOUSAND, low, high, one.count), thousands
    return _with_half(one, 2 if one.mean < 10 else 1 if one.mean < 100 else 0, unit)


def _with_half(one: Interval, digits: int, unit: str = "") -> str:
    """Format a mean and half of its interval, with fewer digits if the column is too narrow."""
    text = f"{one.mean:.{digits}f}"
    if one.mean < _SMALL:
        text = text.removeprefix("0")
    if one.high is not None:
        half = f"{one.high - one.mean:.{digits}f}"
        text += f"±{half.removeprefix('0') if digits else half}"
    if digits and len(text + unit) >= _CELL:
        return _with_half(one, digits - 1, unit)
    return text + unit


def in_words(one: Interval, *, timed: bool) -> str:
    """Format a figure with its unit and its bounds."""
    digits = 0 if one.mean >= 100 else 2
    unit = " ms" if timed else "/s"
    if one.low is None or one.high is None:
        return f"{one.mean:,.{digits}f}{unit}"
    return f"{one.mean:,.{digits}f}{unit} ({one.low:,.{digits}f}–{one.high:,.{digits}f})"


LEGEND = (
    "First line: times as fast as jobqueue on the same server in the same setup, above 1 is faster"
    " (SQLite: as jobqueue on PostgreSQL). Second line: jobs/s, k for thousands; times in ms from"
    f" before the submit. ±: half of the {CONFIDENCE:.0%} interval over the repetitions. slots:"
    " jobs at once in all workers. †: something else had a part of the machine during a run."
)


def failures(runs: Sequence[PeerRun]) -> list[str]:
    """Return one line for each system that could not be measured."""
    return [f"not measured: {run.which}: {run.failed}" for run in runs if run.failed]


def absences(runs: Sequence[PeerRun], workers: int) -> list[str]:
    """Return one line for each run in which fewer worker processes took part than were started."""
    return [
        f"{run.which}, repetition {run.repetition + 1}: {run.processes} of"
        f" {workers} worker processes took part"
        for run in runs
        if not run.failed and run.processes < workers
    ]
