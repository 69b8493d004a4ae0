"""Write the files of a report: HTML, Markdown, plots and a summary."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from jobqueue.bench.cell import Cell
from jobqueue.bench.measures import ALL, measured
from jobqueue.bench.report.document import document
from jobqueue.bench.report.plots import Plot, all_plots
from jobqueue.bench.report.rendering import PLOTS, markdown, page
from jobqueue.bench.report.study import Study, read

SUMMARY = "summary.csv"
PAGE = "report.html"
MARKDOWN = "report.md"


def write(folders: Sequence[Path], into: Path) -> Path:
    """Write the report of these folders and return the path of its HTML page.

    Raises JobQueueError if a folder contains no results.
    """
    study = read(folders)
    plots = all_plots(study) if study.points else {}
    made = document(study, plots)
    into.mkdir(parents=True, exist_ok=True)
    _write_summary(into / SUMMARY, study)
    (into / PAGE).write_text(page(made), encoding="utf-8")
    (into / MARKDOWN).write_text(markdown(made), encoding="utf-8")
    _write_plots(into / PLOTS, [one for some in plots.values() for one in some])
    return into / PAGE


def _write_plots(folder: Path, plots: Sequence[Plot]) -> None:
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    for one in plots:
        (folder / f"{one.name}.svg").write_text(one.svg + "\n", encoding="utf-8")


def _write_summary(path: Path, study: Study) -> None:
    """Write a CSV file with a row for each figure: cell, measure, mean and interval."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        factors = list(study.every_run[0].cell.as_json())
        rows.writerow(["folder", *factors, "warm_up", "seconds", "measure", "unit", "mean",
                       "low", "high", "repetitions", "disturbed_runs", "disturbed",
                       "generator"])  # fmt: skip
        labels = {id(run): one.label for one in study.folders for run in one.records}
        for folder in study.folders:
            for one in measured(folder.records):
                ends = one.value
                rows.writerow(
                    [folder.label, *_values(one.runs[0].cell), "", "", one.last.name,
                     one.last.unit, _digits(ends.mean), _digits(ends.low), _digits(ends.high),
                     ends.count, sum(run.machine.disturbed for run in one.runs),
                     int(one.disturbed), ""]
                )  # fmt: skip
        for point in study.points:
            first = point.runs[0]
            left_out = sum(run.machine.disturbed for run in point.runs)
            for measure in ALL:
                figure = point.figure(measure)
                if figure:
                    rows.writerow(
                        [labels[id(first)], *_values(first.cell), first.warm_up, first.seconds,
                         measure.name, measure.unit, _digits(figure.mean), _digits(figure.low),
                         _digits(figure.high), figure.count, left_out, int(point.disturbed),
                         _digits(point.generator)]
                    )  # fmt: skip


def _values(cell: Cell) -> list[object]:
    mix = ":".join(f"{share} {method}" for method, share in cell.mix.items())
    return list({**cell.as_json(), "mix": mix}.values())


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
