"""Show the figures of topologies side by side on a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median

from rich.table import Table

from jobqueue.bench.cell import PRIMARY, Cell, Method
from jobqueue.bench.measures import measured
from jobqueue.bench.records import TO_DONE, RunRecord, histogram
from jobqueue.bench.run import described

PERCENTILES = (50, 95, 99)
_NAMES = (*PRIMARY, TO_DONE, Method.LIST)  # listings last: they are measured separately


def values(record: RunRecord) -> dict[str, tuple[float, str]]:
    """Return every figure of a run with its unit, by name."""
    found = {
        "requests": (record.requests_a_second, "/s"),
        "jobs done": (record.jobs.a_second, "/s"),
    }
    for name in _NAMES:
        if encoded := record.latencies.get(name):
            taken = histogram(encoded)
            if not taken.get_total_count():
                continue
            shown = f"{name} (apart)" if name == Method.LIST else str(name)
            for one in PERCENTILES:
                milliseconds = taken.get_value_at_percentile(one) / 1000
                found[f"{shown} p{one}"] = (milliseconds, "ms")
    if record.jobs.done and len(record.machine.cpu) > 1:
        cost = sum(record.machine.cpu.values()) / record.jobs.done * 1e3
        found["processor time a job"] = (cost, "ms")
    failed = sum(sum(one.errors.values()) + one.unfinished for one in record.counts.values())
    found["failed requests"] = (failed, "")
    found["jobs still open"] = (record.jobs.open, "")
    return found


def compare(records: Sequence[RunRecord]) -> Table:
    """Return a table with a column for each topology and a section for each load.

    A figure is the median over the repetitions.
    """
    records = [record for record in records if not record.cell.scenario]
    shapes = list(dict.fromkeys(_shape(record.cell) for record in records))
    table = Table(title_justify="left", show_header=True)
    table.add_column("measure")
    for shape in shapes:
        table.add_column(shape, justify="right")
    loads: dict[str, list[RunRecord]] = {}
    for record in records:
        loads.setdefault(json.dumps(record.cell.load, sort_keys=True), []).append(record)
    for _, found in sorted(loads.items(), key=lambda one: (_rank(one[1][0].cell), one[0])):
        table.add_section()
        table.add_row(f"[bold]{described(found[0].cell)}[/bold]")
        measures: dict[str, dict[str, list[tuple[float, str]]]] = {}
        for record in found:
            for name, value in values(record).items():
                by_shape = measures.setdefault(name, {})
                by_shape.setdefault(_shape(record.cell), []).append(value)
        for name, by_shape in measures.items():
            table.add_row(f"  {name}", *(_shown(by_shape.get(shape, [])) for shape in shapes))
    return table


def scenarios(records: Sequence[RunRecord]) -> Table:
    """Return a table with the mean and the interval of each scenario's figures."""
    table = Table(title_justify="left", show_header=True)
    for name in ("scenario", "measure"):
        table.add_column(name)
    for name in ("mean", "interval", "target"):
        table.add_column(name, justify="right")
    for one in measured(records):
        cell, unit = one.runs[0].cell, one.last.unit
        ends = [end for end in (one.value.low, one.value.high) if end is not None]
        table.add_row(
            f"{cell.topology} {cell.scenario}",
            one.last.name,
            _shown([(one.value.mean, unit)]),
            " to ".join(f"{end:,.0f}" if end >= 100 else f"{end:.2f}" for end in ends),
            f"{one.target} {'✓' if one.met else '✗'}" if one.target else "",
            style=None if one.met else "red",
        )
    return table


def _rank(cell: Cell) -> tuple[float, ...]:
    """Return a sort key that puts small loads first, because runs are made in random order."""
    return (cell.rate or 0.0, cell.work_ms, cell.key_ratio, cell.key_skew, cell.callers)


def _shape(cell: Cell) -> str:
    several = cell.topology in ("replicated", "streaming")
    return f"{cell.topology} {cell.servers}+{cell.workers}" if several else cell.topology


def _shown(found: list[tuple[float, str]]) -> str:
    if not found:
        return ""
    value, unit = median(one for one, _ in found), found[0][1]
    if not unit:
        return f"{value:,.0f}"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2f} {unit}"
