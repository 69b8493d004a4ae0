"""Draw plots as SVG text, so that a page with plots needs no other files."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import fmean
from textwrap import wrap
from typing import Any, TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from jobqueue.bench.intervals import Interval, interval
from jobqueue.bench.measures import (
    COST,
    JOBS,
    MEMORY,
    PERCENTILES,
    REQUESTS,
    TIMED,
    Measure,
    latency,
    memory_parts,
    parts,
    quantiles,
)
from jobqueue.bench.records import TO_DONE, RunRecord, histogram
from jobqueue.bench.report.reading import number
from jobqueue.bench.report.study import Point, Spot, Study, Subject, axis_words

_Load: TypeAlias = tuple[str, str]  # its name, and the axis of its plots

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_ACROSS = 3  # panels beside each other
_PANEL = (3.7, 2.7)  # inches
_LETTERS = 34  # in a line of a label
_PART_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb",
                 "#994455", "#997700", "#004488")  # fmt: skip
_SHARES = [n / 100 for n in range(1, 100)] + [0.995, 0.999]
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a dollar sign in a name does not start a formula
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "axes.titlesize": 9.5,
    "legend.frameon": False,
}
# Names that matplotlib gives to every part; nothing refers to them.
_UNUSED = re.compile(r' id="[A-Za-z0-9.]+_[0-9]+"')


@dataclass(frozen=True, slots=True)
class Plot:
    """Holds one picture. ``name`` is the name of its file, ``caption`` describes it."""

    name: str
    caption: str
    svg: str


def all_plots(study: Study) -> dict[str, list[Plot]]:
    """Return the plots of a study by section of the report."""
    with mpl.rc_context(_STYLE):
        return _Plotter(study).all()


class _Plotter:
    def __init__(self, study: Study) -> None:
        self._study = study
        looks = zip(cycle(COLOURS), cycle(_MARKERS), strict=False)
        self._looks = dict(zip(study.subjects, islice(looks, len(study.subjects)), strict=True))

    def all(self) -> dict[str, list[Plot]]:
        return {
            "throughput": [*self._measured("requests", REQUESTS), *self._measured("jobs", JOBS)],
            "percentiles": self._percentiles(),
            "curves": self._curves(),
            "cost": self._bars("cost", parts, COST.name, "µs per job, by part"),
            "memory": self._bars("memory", memory_parts, MEMORY.name, "MiB, by part"),
        }

    def _measured(self, name: str, measure: Measure) -> list[Plot]:
        """Plot a measure: loads with several values on the x axis as lines, other loads as dots."""
        lines, dots = self._split([measure])
        if not lines and not dots:
            return []
        with _panels(len(lines) + bool(dots)) as (figure, panels):
            for panel, (load, axis) in zip(panels, lines, strict=False):
                self._lines(panel, self._points(load, axis), measure)
                panel.set_title(load if len(lines) + len(dots) > 1 else "")
                panel.set_xlabel(axis_words(axis))
                panel.set_ylabel(measure.unit)
                panel.set_ylim(bottom=0)
            if dots:
                panel = panels[len(lines)]
                self._dots(panel, dots, measure)
                panel.set_title("other loads" if lines else "")
                panel.set_xlabel(measure.unit)
                panel.set_xlim(left=0)
            self._legend(figure)
            caption = f"{measure.name.capitalize()}: {measure.better}."
            return [Plot(name, caption, _svg(figure, name))]

    def _split(self, measures: Sequence[Measure]) -> tuple[list[_Load], list[_Load]]:
        """Return the loads with several values on their x axis, and the loads with a single value.

        Loads without any figure of these measures are left out.
        """
        lines: list[_Load] = []
        dots: list[_Load] = []
        for load, axis in self._study.loads:
            points = [one for some in self._points(load, axis).values() for one in some]
            if any(one.figure(measure) for one in points for measure in measures):
                values = {one.spot.value for one in points}
                (lines if len(values) > 1 else dots).append((load, axis))
        return lines, dots

    def _points(self, load: str, axis: str) -> dict[Subject, list[Point]]:
        spots = [one for one in self._study.spots if (one.load, one.axis) == (load, axis)]
        return {
            subject: [point for spot in spots if (point := self._study.at(spot, subject))]
            for subject in self._study.subjects
        }

    def _lines(self, panel: Axes, points: dict[Subject, list[Point]], measure: Measure) -> None:
        values = sorted({one.spot.value for some in points.values() for one in some})
        for subject, some in points.items():
            shown = [(one, figure) for one in some if (figure := one.figure(measure))]
            if not shown:
                continue
            colour, _ = self._looks[subject]
            at = [point.spot.value for point, _ in shown]
            means = [figure.mean for _, figure in shown]
            panel.errorbar(
                at, means, yerr=_bounds([one for _, one in shown]), color=colour, capsize=3, lw=1.4
            )
            for x, mean, (point, _) in zip(at, means, shown, strict=True):
                self._mark(panel, x, mean, point)
        if len(values) > 1 and values[0] > 0 and values[-1] / values[0] >= 4:
            panel.set_xscale("log", base=2)
        panel.set_xticks(values, [f"{one:,.0f}" if one >= 1 else f"{one:g}" for one in values])
        panel.minorticks_off()

    def _dots(self, panel: Axes, loads: Sequence[_Load], measure: Measure) -> None:
        """Plot a row for each load, with the topologies below each other."""
        names = []
        for row, (load, axis) in enumerate(loads):
            names.append(_folded(load))
            points = [one for some in self._points(load, axis).values() for one in some]
            for n, point in enumerate(points):
                figure = point.figure(measure)
                if figure:
                    y = row + (n + 0.5) / len(points) * 0.6 - 0.3
                    colour, _ = self._looks[point.subject]
                    panel.errorbar(
                        figure.mean, y, xerr=_bounds([figure]), color=colour, capsize=3, lw=1.4
                    )
                    self._mark(panel, figure.mean, y, point)
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.grid(visible=False, axis="y")

    def _mark(self, panel: Axes, x: float, y: float, point: Point) -> None:
        colour, marker = self._looks[point.subject]
        face = "white" if point.disturbed else colour
        panel.plot([x], [y], marker, ms=5, mec=colour, mfc=face)
        if point.near_limit:
            panel.plot([x], [y], "o", ms=11, mec="#777777", mfc="none")

    def _percentiles(self) -> list[Plot]:
        """Plot a row of panels for each method, with a column for each percentile."""
        every = {what: [latency(what, one) for one in PERCENTILES] for what in TIMED}
        lines, dots = self._split([one for some in every.values() for one in some])
        plots = [
            self._times(f"percentiles-{n}", f"load “{load}”", every, [(load, axis)], axis)
            for n, (load, axis) in enumerate(lines, 1)
        ]
        if dots:
            plots.append(self._times("percentiles-others", "other loads", every, dots))
        return plots

    def _times(
        self,
        name: str,
        title: str,
        every: Mapping[str, Sequence[Measure]],
        loads: Sequence[_Load],
        axis: str = "",
    ) -> Plot:
        points = [one for load in loads for some in self._points(*load).values() for one in some]
        shown = [
            what for what, some in every.items() if any(p.figure(m) for p in points for m in some)
        ]
        height = _PANEL[1] if axis else 0.8 + 0.35 * len(loads)
        with _panels(len(shown) * len(PERCENTILES), height) as (figure, panels):
            for n, measure in enumerate(m for what in shown for m in every[what]):
                panel, column = panels[n], n % len(PERCENTILES)
                last = n >= len(panels) - len(PERCENTILES)
                panel.set_title(measure.name)
                if axis:
                    self._lines(panel, self._points(*loads[0]), measure)
                    panel.set_ylim(bottom=0)
                    panel.set_ylabel("" if column else "ms")
                    panel.set_xlabel(axis_words(axis) if last else "")
                else:
                    self._dots(panel, loads, measure)
                    panel.set_xlim(left=0)
                    panel.set_xlabel("ms" if last else "")
                    if column:
                        panel.set_yticklabels([])
                if not any(one.figure(measure) for one in points):
                    panel.text(0.5, 0.5, "too few values", transform=panel.transAxes, ha="center")
            self._legend(figure)
            return Plot(name, f"Times, {title}: less is better.", _svg(figure, name))

    def _curves(self) -> list[Plot]:
        """Plot the share of jobs done within a time, for the largest x value of each load."""
        spots = [one for one in self._largest() if any(self._timed(one).values())]
        if not spots:
            return []
        with _panels(len(spots)) as (figure, panels):
            for panel, spot in zip(panels, spots, strict=True):
                for subject, runs in self._timed(spot).items():
                    if runs:
                        self._curve(panel, subject, runs)
                panel.set_title(_folded(str(spot)))
                panel.set_xscale("log")
                panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
                panel.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
                panel.minorticks_off()
                panel.set_xlabel("ms from submit to done")
                panel.set_ylabel("share of jobs")
            self._legend(figure)
            caption = "The share of jobs that are done after a time. Further left is better."
            return [Plot("to-done", caption, _svg(figure, "to-done"))]

    def _largest(self) -> list[Spot]:
        last = {(spot.load, spot.axis): spot for spot in self._study.spots}
        return list(last.values())

    def _timed(self, spot: Spot) -> dict[Subject, list[str]]:
        points = {one: self._study.at(spot, one) for one in self._study.subjects}
        return {
            subject: [run.latencies[TO_DONE] for run in point.used if TO_DONE in run.latencies]
            for subject, point in points.items()
            if point
        }

    def _curve(self, panel: Axes, subject: Subject, encoded: Sequence[str]) -> None:
        colour, _ = self._looks[subject]
        repetitions = [quantiles(histogram(one), _SHARES) for one in encoded]
        along = [interval(values) for values in zip(*repetitions, strict=True)]
        panel.plot([one.mean for one in along], _SHARES, color=colour, lw=1.5)
        if len(repetitions) > 1:
            # A logarithmic axis cannot show a bound of zero.
            low = [max(one.low or 0.0, one.mean / 10) for one in along]
            high = [one.high or one.mean for one in along]
            panel.fill_betweenx(_SHARES, low, high, color=colour, alpha=0.18, lw=0)

    def _bars(
        self, name: str, of: Callable[[RunRecord], dict[str, float]], title: str, unit: str
    ) -> list[Plot]:
        """Plot a stacked bar of parts for each topology, at the largest x value of each load."""
        bars = [
            (spot, subject, point)
            for spot in self._largest()
            for subject in self._study.subjects
            if (point := self._study.at(spot, subject)) and any(map(of, point.used))
        ]
        if not bars:
            return []
        kinds = list(dict.fromkeys(
            _kind(part) for _, _, point in bars for run in point.used for part in of(run)
        ))  # fmt: skip
        colours = dict(zip(kinds, cycle(_PART_COLOURS), strict=False))
        figure = Figure(figsize=(_PANEL[0] * _ACROSS, 0.9 + 0.32 * len(bars)), layout="constrained")
        panel = figure.subplots()
        labels = []
        for row, (spot, subject, point) in enumerate(bars):
            marks = "†" if point.disturbed else ""
            labels.append(f"{_folded(str(spot))} · {subject}{marks}")
            left = 0.0
            for kind in kinds:
                size = fmean(
                    sum(one for part, one in of(run).items() if _kind(part) == kind)
                    for run in point.used
                )
                panel.barh(row, size, left=left, color=colours[kind], height=0.7)
                left += size
            total = interval([sum(of(run).values()) for run in point.used])
            panel.errorbar(total.mean, row, xerr=_bounds([total]), color="#222222", capsize=3)
            end = total.high or total.mean
            panel.annotate(number(total.mean), (end, row), (6, 0), textcoords="offset points",
                           va="center")  # fmt: skip
        panel.set_yticks(range(len(labels)), labels)
        panel.set_ylim(len(labels) - 0.5, -0.5)
        panel.grid(visible=False, axis="y")
        panel.margins(x=0.1)
        panel.set_xlabel(unit)
        handles = [Patch(color=colours[kind], label=kind) for kind in kinds]
        figure.legend(handles=handles, loc="outside upper left", ncols=8)
        return [Plot(name, f"{title.capitalize()}: less is better.", _svg(figure, name))]

    def _legend(self, figure: Figure) -> None:
        handles = [
            Line2D([], [], color=colour, marker=marker, ms=5, label=str(subject))
            for subject, (colour, marker) in self._looks.items()
        ]
        points = self._study.points
        if any(point.disturbed for point in points):
            handles.append(Line2D([], [], ls="", marker="o", mec="#444444", mfc="white", ms=5,
                                  label="disturbed"))  # fmt: skip
        if any(point.near_limit for point in points):
            handles.append(Line2D([], [], ls="", marker="o", mec="#777777", mfc="none", ms=11,
                                  label="near the generator's limit"))  # fmt: skip
        figure.legend(handles=handles, loc="outside upper left", ncols=5)


def _kind(part: str) -> str:
    """Return a part's name without its number: "node" for "node 3"."""
    return re.sub(r"[ \-_]?\d+$", "", part) or part


def _folded(text: str) -> str:
    return "\n".join(wrap(text, _LETTERS))


def _bounds(figures: Sequence[Interval]) -> list[list[float]]:
    """Return how far each interval reaches below and above its mean."""
    return [
        [one.mean - (one.mean if one.low is None else one.low) for one in figures],
        [(one.mean if one.high is None else one.high) - one.mean for one in figures],
    ]


@contextmanager
def _panels(count: int, height: float = _PANEL[1]) -> Iterator[tuple[Figure, list[Axes]]]:
    """Yield a figure with exactly ``count`` panels."""
    across = min(count, _ACROSS)
    down = -(-count // across)
    figure = Figure(
        figsize=(max(_PANEL[0] * across, 6.0), height * down + 0.4), layout="constrained"
    )
    grid = figure.subplots(down, across, squeeze=False).flatten()
    for unused in grid[count:]:
        unused.remove()
    yield figure, list(grid[:count])


def _svg(figure: Figure, name: str) -> str:
    """Return the plot as SVG without the XML header. ``name`` makes the ids in the SVG unique."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = _UNUSED.sub("", svg[svg.index("<svg") :])
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return svg.strip()
