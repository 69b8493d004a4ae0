"""What the runs say: ratios to jobqueue first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from jobqueue.bench.peers.catalogue import Backing, Setting, System
from jobqueue.bench.peers.run import RATES, Run

PERCENTILES = {"p50": 0.50, "p99": 0.99}
MEASURES = {
    "single": "submit, 1 caller",
    "together": "submit, 50 callers",
    "batch": "batch submit",
    "drain": "drain",
    "p50": "submit→done p50",
    "p99": "p99",
}
HEADERS = ("system", "setting", *MEASURES.values(), "how", "keeps")


@dataclass(frozen=True, slots=True)
class Cell:
    """One measure of one system: jobs a second, or milliseconds."""

    value: float  # the median of the repetitions
    ratio: float | None  # times as fast as jobqueue; the median of the repetitions' ratios
    low: float | None  # the least and the greatest ratio of a repetition
    high: float | None


@dataclass(slots=True)
class Row:
    """One system in one setting."""

    system: System
    setting: Setting
    version: str
    cells: dict[str, Cell] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        kept = self.system.kept(self.setting)
        return {
            "system": self.system.name,
            "version": self.version,
            "backing": str(self.system.backing),
            "setting": str(self.setting),
            "how": kept.how,
            "keeps": kept.keeps,
            "measures": {
                name: {"ratio": cell.ratio, "low": cell.low, "high": cell.high, "value": cell.value}
                for name, cell in self.cells.items()
            },
        }


def rows(runs: Sequence[Run]) -> list[Row]:
    """A row for each system and setting, in the order of the first repetition."""
    grouped: dict[tuple[System, Setting], dict[int, Run]] = defaultdict(dict)
    for run in runs:
        if not run.failed:
            grouped[run.system, run.setting][run.repetition] = run
    made = []
    for (system, setting), mine in grouped.items():
        base = next((grouped[one] for one in grouped if _is_base(one, system, setting)), {})
        row = Row(system, setting, next(iter(mine.values())).version)
        for name in MEASURES:
            if (cell := _cell(name, mine, base)) is not None:
                row.cells[name] = cell
        made.append(row)
    return made


def _is_base(of: tuple[System, Setting], system: System, setting: Setting) -> bool:
    """jobqueue on the same server. Its own SQLite has no peers, and is compared with PostgreSQL."""
    backing = system.backing
    if system.is_ours and backing is Backing.SQLITE:
        backing = Backing.POSTGRES
    return of[0].is_ours and of[0].backing is backing and of[1] is setting


def _cell(name: str, mine: dict[int, Run], base: dict[int, Run]) -> Cell | None:
    values = {number: _value(name, run) for number, run in mine.items()}
    known = {number: value for number, value in values.items() if value}
    if not known:
        return None
    ratios = []
    for number, value in known.items():  # pairs of one repetition: the machine was the same
        if number in base and (other := _value(name, base[number])):
            ratios.append(other / value if name in PERCENTILES else value / other)
    if not ratios:
        return Cell(median(known.values()), None, None, None)
    return Cell(median(known.values()), median(ratios), min(ratios), max(ratios))


def _value(name: str, run: Run) -> float | None:
    if name in PERCENTILES:
        ordered = sorted(run.ms)
        if not ordered:
            return None
        return ordered[min(len(ordered) - 1, int(PERCENTILES[name] * len(ordered)))]
    assert name in RATES
    measured = run.rates.get(name)
    return measured["jobs"] / measured["seconds"] if measured and measured["seconds"] else None


def as_text(made: Sequence[Row]) -> list[list[str]]:
    """The cells of a table for people."""
    return [
        [
            f"{row.system.label} {row.version}",
            str(row.setting),
            *(_shown(name, row.cells.get(name)) for name in MEASURES),
            row.system.kept(row.setting).how,
            row.system.kept(row.setting).keeps,
        ]
        for row in made
    ]


def _shown(name: str, cell: Cell | None) -> str:
    if cell is None:
        return "-"
    ratio = "" if cell.ratio is None else f"{_digits(cell.ratio)}× "
    if name in PERCENTILES:
        return f"{ratio}({_digits(cell.value)} ms)"
    return f"{ratio}({cell.value:,.0f}/s)"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def failures(runs: Sequence[Run]) -> list[str]:
    """One line for each system that could not be measured."""
    return [
        f"not measured: {run.system.label}, {run.setting}: {run.failed}"
        for run in runs
        if run.failed
    ]


def absences(runs: Sequence[Run], workers: int) -> list[str]:
    """One line for each run in which fewer worker processes took part than were started."""
    return [
        f"{run.system.label}, {run.setting}, repetition {run.repetition + 1}: {run.processes} of"
        f" {workers} worker processes took part"
        for run in runs
        if not run.failed and run.processes < workers
    ]
