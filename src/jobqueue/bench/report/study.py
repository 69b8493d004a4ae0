"""Group run records by measured topology and load, for reports.

A ``Subject`` is a measured topology. A ``Spot`` is a load with one value of the x axis of its
plots. A ``Point`` holds the runs of one subject at one spot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jobqueue.bench import records
from jobqueue.bench.cell import Cell
from jobqueue.bench.intervals import Interval, interval
from jobqueue.bench.measures import NEAR_LIMIT, Measure
from jobqueue.bench.records import Counts, RunRecord
from jobqueue.core.errors import InvalidArgument

ENVIRONMENT = "environment.json"
BASE = "base"  # the load whose factors have their most frequent values
LATE = 10.0  # ms: a report names open-loop requests that start later than this

_MEASURED = "fdatasync_ms"  # a measured value of a machine, different each time
# The x axis of plots is the first of these factors with more than one value.
_AXES = {
    "callers": "callers",
    "rate": "arrivals a second",
    "rows": "jobs there before",
    "workers": "workers",
    "servers": "servers",
    "batch": "jobs in a submit",
    "work_ms": "job duration, ms",
    "payload_bytes": "payload, bytes",
}
_WORDS = {
    "slots": "{} slot{s}",
    "callers": "{} caller{s}",
    "rate": "{} arrivals a second",
    "work_ms": "{} ms of work",
    "payload_bytes": "{} B of payload",
    "mix": "mix {}",
    "key_ratio": "{} keyed submits",
    "key_skew": "key skew {}",
    "batch": "{} job{s} in a submit",
    "rows": "{} job{s} before",
    "servers": "{} server{s}",
    "workers": "{} worker{s}",
    "warm_up": "{} s of warm-up",
    "seconds": "{} s counted",
    "topology": "{}",
    "place": "as {}",
}


@dataclass(frozen=True, slots=True)
class Folder:
    """Holds the content of one folder of results."""

    path: Path
    label: str
    environment: dict[str, Any]
    records: list[RunRecord]


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """Names what was measured: a topology with its size, and its folder or place."""

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.what}, {self.where}" if self.where else self.what


@dataclass(frozen=True, slots=True)
class Spot:
    """Names a load, and one value on the x axis of the load's plots."""

    load: str
    axis: str  # a factor of a cell
    value: float

    def __str__(self) -> str:
        return self.at if self.load == BASE else f"{self.load}, {self.at}"

    @property
    def at(self) -> str:
        """Return the value on the x axis in words, without the load."""
        return _words(self.axis, self.value)


@dataclass(slots=True)
class Point:
    """Holds the runs of one measured topology at one load."""

    subject: Subject
    spot: Spot
    runs: list[RunRecord] = field(default_factory=list)

    @property
    def calm(self) -> list[RunRecord]:
        """Return the runs that were not disturbed."""
        return [run for run in self.runs if not run.machine.disturbed]

    @property
    def used(self) -> list[RunRecord]:
        """Return the runs behind the figures: the undisturbed runs, else all runs."""
        return self.calm or self.runs

    @property
    def disturbed(self) -> bool:
        """Return True if all runs were disturbed."""
        return not self.calm

    @property
    def generator(self) -> float:
        """Return the largest share of a core that the generator used."""
        return max(run.machine.generator for run in self.used)

    @property
    def near_limit(self) -> bool:
        """Return True if the generator may have limited the figures."""
        return self.generator >= NEAR_LIMIT

    @property
    def late_ms(self) -> float:
        """Return how late requests of an open loop started, in ms.

        The value is the 99th percentile of the worst run.
        """
        return max(run.machine.late_ms for run in self.used)

    def figure(self, measure: Measure) -> Interval | None:
        """Return a measure's interval over the repetitions, or None if no run has a value."""
        values = [value for run in self.used if (value := measure.of(run)) is not None]
        return interval(values) if values else None

    def counts(self) -> dict[str, Counts]:
        """Return the request counts by method, including those of disturbed runs."""
        total: dict[str, Counts] = {}
        for run in self.runs:
            for method, one in run.counts.items():
                sums = total.setdefault(method, Counts())
                sums.ok += one.ok
                sums.unfinished += one.unfinished
                for into, codes in ((sums.soft, one.soft), (sums.errors, one.errors)):
                    for code, count in codes.items():
                        into[code] = into.get(code, 0) + count
        return total


@dataclass
class Study:
    """Holds the content of all result folders, in the order of the first runs."""

    folders: list[Folder]
    points: list[Point]
    same: str  # the factors that are the same in all runs, in words
    base: str  # the base load, in words

    @cached_property
    def subjects(self) -> list[Subject]:
        """Return all measured topologies, with their sizes and places."""
        return sorted({point.subject for point in self.points})

    @cached_property
    def loads(self) -> list[tuple[str, str]]:
        """Return every load with the factor on its x axis, the load with usual factors first."""
        found = dict.fromkeys((one.spot.load, one.spot.axis) for one in self.points)
        return sorted(found, key=lambda one: one[0] != BASE)

    @cached_property
    def spots(self) -> list[Spot]:
        """Return every load with every value on its x axis, sorted by load and value."""
        order = {load: n for n, load in enumerate(self.loads)}
        found = {point.spot for point in self.points}
        return sorted(found, key=lambda spot: (order[spot.load, spot.axis], spot.value))

    @cached_property
    def _by_place(self) -> dict[tuple[Spot, Subject], Point]:
        return {(point.spot, point.subject): point for point in self.points}

    def at(self, spot: Spot, subject: Subject) -> Point | None:
        """Return the runs of a topology at a load, or None if no run was made."""
        return self._by_place.get((spot, subject))

    @property
    def same_machine(self) -> bool:
        """Return True if all folders come from one machine, or if the study has a single folder."""
        machines = [
            {name: value for name, value in machine.items() if name != _MEASURED}
            if isinstance(machine := one.environment.get("machine"), dict)
            else None
            for one in self.folders
        ]
        return len(machines) == 1 or (None not in machines and machines[1:] == machines[:-1])

    @property
    def runs(self) -> list[RunRecord]:
        """Return all runs except the runs of scenarios."""
        return [run for point in self.points for run in point.runs]

    @property
    def every_run(self) -> list[RunRecord]:
        """Return all runs, including the runs of scenarios."""
        return [run for one in self.folders for run in one.records]


def read(paths: Sequence[Path]) -> Study:
    """Read folders of results. Raises JobQueueError if a folder has no records."""
    folders = []
    for path, label in zip(paths, _labels(paths), strict=True):
        kept = list(records.read([path]))
        if not kept:
            raise InvalidArgument(str(path / records.FILE), "is empty: no run has ended yet")
        folders.append(Folder(path, label, _environment(path), kept))
    return _ordered(folders)


def _loads(folder: Folder) -> list[RunRecord]:
    return [run for run in folder.records if not run.cell.scenario]


def _environment(folder: Path) -> dict[str, Any]:
    path = folder / ENVIRONMENT
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidArgument(str(path), f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(str(path), "is not a JSON object")
    return found


def _labels(paths: Sequence[Path]) -> list[str]:
    """Return the folders' names, or the differing parts of their paths where names are equal."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise InvalidArgument("DIR", "a folder is named twice")
    split = [path.resolve().parts for path in paths]
    if len(split) == 1:
        return [split[0][-1]]
    while len({parts[-1] for parts in split}) == 1:
        split = [parts[:-1] for parts in split]
    shown = [parts[-1] for parts in split]
    if len(set(shown)) == len(shown):
        return shown
    shortest = min(map(len, split)) - 1  # a folder may be inside of another
    common = next((n for n in range(shortest) if len({parts[n] for parts in split}) > 1), shortest)
    return ["/".join(parts[common:]) for parts in split]


def _ordered(folders: list[Folder]) -> Study:
    cells = [run.cell for one in folders for run in _loads(one)]
    if not cells:
        return Study(folders, [], "", "")
    every = [_factors(run) for one in folders for run in _loads(one)]
    varied = [name for name in every[0] if any(one[name] != every[0][name] for one in every)]
    usual = {name: _most_frequent(one[name] for one in every) for name in varied}
    axes = {closed: _axis([cell for cell in cells if (cell.rate is None) is closed], closed)
            for closed in (True, False)}  # fmt: skip
    sizes = [name for name in ("servers", "workers") if _varies_within_topology(cells, name)]
    # These factors give every cell its own spot, so that a point never mixes different cells.
    told = [name for name in varied if name not in ("topology", "place", "servers", "workers")]
    points: dict[tuple[Spot, Subject], Point] = {}
    for folder in folders:
        places = {run.cell.place for run in _loads(folder)}
        for run in _loads(folder):
            factors = _factors(run)
            axis = axes[run.cell.rate is None]
            load = [_words(name, factors[name]) for name in told
                    if name != axis and factors[name] != usual[name]]  # fmt: skip
            size = [_words(name, factors[name]) for name in sizes if name != axis]
            where = [folder.label] * (len(folders) > 1)
            where += [str(run.cell.place)] * (len(places) > 1)
            subject = Subject(", ".join([run.cell.topology, *size]), ", ".join(where))
            spot = Spot(", ".join(load) or BASE, axis, float(factors[axis]))
            point = points.setdefault((spot, subject), Point(subject, spot))
            point.runs.append(run)
    same = [_words(n, v) for n, v in every[0].items() if n not in varied]
    base = [_words(n, usual[n]) for n in told if n not in axes.values()]
    return Study(folders, list(points.values()), ", ".join(same), ", ".join(base))


def _most_frequent(values: Iterable[Any]) -> Any:
    """Return the most frequent value, the first of them if several are equally frequent."""
    found = list(values)
    return max(found, key=found.count)


def _factors(run: RunRecord) -> dict[str, Any]:
    """Return the factors of a run, with its warm-up and measured seconds."""
    factors = {**run.cell.as_json(), "warm_up": run.warm_up, "seconds": run.seconds}
    del factors["scenario"]
    return factors


def _axis(cells: Sequence[Cell], closed: bool) -> str:
    """Return the factor for the x axis of plots: the first factor with several values.

    If no factor varies, the result is the callers of a closed loop, or the rate of an open loop.
    """
    first = "callers" if closed else "rate"
    for name in (first, *_AXES):
        if _varies_within_topology(cells, name):
            return name
    return first


def _varies_within_topology(cells: Iterable[Cell], name: str) -> bool:
    """Return True if a factor has several values within one topology.

    A difference between topologies does not count: the name of the topology shows it.
    """
    values: dict[str, set[Any]] = {}
    for cell in cells:
        values.setdefault(cell.topology, set()).add(getattr(cell, name))
    return any(len(one) > 1 for one in values.values())


def _words(name: str, value: Any) -> str:
    if name == "rate" and value is None:
        return "each caller waits for its answer"
    if name == "mix":
        shown = " : ".join(f"{share} {method}" for method, share in value.items())
    elif name == "key_ratio":
        shown = f"{value:.0%}"
    elif isinstance(value, int | float):
        shown = f"{value:,.0f}" if value == int(value) else f"{value:g}"
    else:
        shown = str(value)
    words = _WORDS.get(name, name.replace("_", " ") + " {}")
    return words.format(shown, s="" if shown == "1" else "s")


def axis_words(name: str) -> str:
    """Return the text below the x axis of a plot."""
    return _AXES[name]
