"""What was measured as figures, and both designs side by side. One way of counting for both."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.report import Figure, number, percentile
from bench.taskqueue.load import LISTING, Measured
from bench.taskqueue.profile import METHODS, Profile
from jobqueue.services.model import TOTAL_WORKER_SLOTS

PERCENTILES = (50, 95, 99)
TO_DONE = "submit→done"


@dataclass(frozen=True, slots=True)
class Result:
    """One design under one profile."""

    design: str
    profile: Profile
    measured: Measured
    cpu: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """One number."""

    measure: str
    value: float
    unit: str


def values(measured: Measured) -> list[Value]:
    """Rates, then percentiles of each method, then of whole jobs, then ListJobs on its own."""
    found = [
        Value("requests", measured.requests_a_second, "req/s"),
        Value("jobs done", measured.jobs_a_second, "jobs/s"),
    ]
    for method in METHODS:
        found += _percentiles(method, measured.latencies.get(method, []))
    found += _percentiles(TO_DONE, measured.to_done)
    found += _percentiles(f"{LISTING} (apart)", measured.latencies.get(LISTING, []))
    found.append(Value("failed requests", measured.errors.total(), ""))
    return found


def _percentiles(name: str, taken: list[float]) -> list[Value]:
    if not taken:
        return []
    return [Value(f"{name} p{one}", percentile(taken, one / 100), "ms") for one in PERCENTILES]


def figures(result: Result) -> list[Figure]:
    """For the file."""
    measured = result.measured
    how = f"{result.profile}; {TOTAL_WORKER_SLOTS} slots; {measured.jobs:,} jobs done"
    if measured.unfinished:
        how += f", {measured.unfinished:,} still not done two minutes later"
    if measured.errors:
        how += "; failed: " + ", ".join(f"{n} {what}" for what, n in measured.errors.items())
    if result.cpu:
        how += f"; {result.cpu}"
    return [
        Figure(
            f"{result.design}, {result.profile.concurrency} callers: {one.measure}",
            one.value,
            one.unit,
            None,
            how,
        )
        for one in values(measured)
    ]


def compare(title: str, results: list[Result], console: Console | None = None) -> None:
    """Print a table: the designs are columns, each measure at each concurrency is a row."""
    designs = list(dict.fromkeys(result.design for result in results))
    table = Table(title_justify="left")
    table.add_column("callers", justify="right")
    table.add_column("measure")
    for design in designs:
        table.add_column(design, justify="right")
    cells: dict[tuple[int, str], dict[str, str]] = {}
    for result in results:
        for one in values(result.measured):
            place = (result.profile.concurrency, one.measure)
            shown = f"{number(one.value)} {one.unit}".strip()
            cells.setdefault(place, {})[result.design] = shown
    before = None
    for (callers, measure), by_design in cells.items():
        if before not in (None, callers):
            table.add_section()
        table.add_row(
            str(callers) if callers != before else "",
            measure,
            *(by_design.get(design, "") for design in designs),
        )
        before = callers
    console = console or Console()
    if not console.is_terminal:
        console.width = 120
    console.print(title, table, sep="\n", soft_wrap=True)
