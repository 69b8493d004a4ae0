"""Write the tables of a documentation page from kept results, so that no figure is typed by hand.

``<!-- jq-bench: NAME FOLDER -->`` begins a table, ``<!-- end -->`` ends it. FOLDER is relative to
the option --root, by default the current folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from jobqueue.bench import outages
from jobqueue.bench.cell import PRIMARY, Cell, Method
from jobqueue.bench.intervals import interval
from jobqueue.bench.measures import (
    COST,
    COST_OF_CALLER,
    COST_OF_REQUEST,
    JOBS,
    LISTED,
    MEMORY,
    REQUESTS,
    Measure,
    latency,
)
from jobqueue.bench.outages import Outage
from jobqueue.bench.records import FILE, TO_DONE
from jobqueue.bench.report import reading
from jobqueue.bench.report.reading import KEY, number, with_interval
from jobqueue.bench.report.study import Point, Study, read
from jobqueue.core.errors import InvalidArgument

_SERVICES, _NODES = "microservices", "nodes"
# Calls from the gateway to services that each method needs in design A; design B needs none.
INNER_CALLS = {Method.SUBMIT: 2, Method.STATUS: 1}
_MARKED = re.compile(r"(<!-- jq-bench: ([a-z]+) (\S+) -->)\n.*?(<!-- end -->)", re.DOTALL)
_Choice: TypeAlias = Callable[[Cell], bool]


def render(page: str, root: Path) -> str:
    """Return the page with all of its tables made anew.

    Raises InvalidArgument for a table whose name is not in ``TABLES``.
    """

    def table(found: re.Match[str]) -> str:
        begin, name, folder, end = found.groups()
        if name not in TABLES:
            raise InvalidArgument(
                "jq-bench", f"{name!r} is not a table's name; allowed: {', '.join(sorted(TABLES))}"
            )
        lines = TABLES[name](root / folder)
        return "\n".join([begin, *lines, end])

    return _MARKED.sub(table, page)


def _of_study(make: Callable[[Study], list[str]]) -> Callable[[Path], list[str]]:
    def lines(folder: Path) -> list[str]:
        study = read([folder]) if (folder / FILE).is_file() else None
        if study is None or not study.points:
            return _not_measured(folder)
        return make(study)

    return lines


def _not_measured(folder: Path) -> list[str]:
    return [f"There is no run in `{folder.parent.name}/{folder.name}`: `make evaluation` makes it."]


# -- what was measured -------------------------------------------------------------------------


def conditions(study: Study) -> list[str]:
    """Return lines that describe the machine, the load and the runs behind the tables."""
    (folder,) = study.folders
    known = folder.environment
    machine, versions = known.get("machine", {}), known.get("versions", {})
    runs = study.runs
    disturbed = sum(run.machine.disturbed for run in runs)
    lines = [
        f"- {_origin(known)}.",
        f"- Machine: {machine.get('cores', '?')} cores, {machine.get('processor', 'unknown')},"
        f" {machine.get('system', '')}; Python {versions.get('python', '?')}.",
        f"- Same in all runs: {study.same}.",
        f"- {len(runs)} runs, {runs[0].seconds:g} s counted in each after {runs[0].warm_up:g} s of"
        " warm-up; the mean over repetitions, in brackets its 95 % interval.",
    ]  # fmt: skip
    lines += [f"- {name}: {value}." for name, value in known.get("containers", {}).items()]
    if disturbed:
        lines.append(
            f"- **Provisional: something else used the processor during {disturbed} of {len(runs)}"
            " runs.** Figures of such runs only are marked †."
        )
    return lines


# -- who leads ---------------------------------------------------------------------------------


def leads(study: Study) -> list[str]:
    """Return sentences about the topologies that lead in the compared measures."""
    found = [
        f"- **{one.lead[:1].upper()}{one.lead[1:]}**: {one.text}"
        for contest in reading.contests(study)
        for one in [reading.in_short(contest), *reading.judged(contest, KEY)]
    ]
    return found or ["Nothing can be compared: one topology only, or one run of each."]


def loads(study: Study) -> list[str]:
    """Return a table of requests, jobs, times and costs at every load."""
    measures = (REQUESTS, JOBS, latency(Method.SUBMIT, 50), latency(Method.SUBMIT, 99),
                latency(TO_DONE, 50), latency(TO_DONE, 99), COST, MEMORY)  # fmt: skip
    return _by_spot(study, measures)


def listings(study: Study) -> list[str]:
    """Return a table of ListJobs times, which are measured separately."""
    return _by_spot(study, [LISTED])


def choosing(study: Study) -> list[str]:
    """Return a table with the measures that help to choose a topology."""
    measures = (REQUESTS, JOBS, latency(TO_DONE, 50), latency(TO_DONE, 99), COST, MEMORY)
    return _by_spot(study, measures)


def _by_spot(study: Study, measures: Sequence[Measure]) -> list[str]:
    rows = []
    for spot in study.spots:
        for subject in study.subjects:
            point = study.at(spot, subject)
            if point:
                rows.append([str(spot), str(subject), *(_shown(point, one) for one in measures)])
    heads = ["load", "topology", *(f"{one.name}, {one.unit}" for one in measures)]
    return _table(heads, rows, words=2)


# -- what it costs -----------------------------------------------------------------------------


def hops(study: Study) -> list[str]:
    """Return a table of times and costs at the load with the fewest callers.

    With so few callers no request waits for another request.
    """
    pair = _pair(study, _fewest_callers(study))
    if pair is None:
        return ["Not in these runs: it takes both designs at the same load."]
    services, nodes = pair
    rows = []
    for method, calls in INNER_CALLS.items():
        measure = latency(method, 50)
        there, here = _mean(services, measure), _mean(nodes, measure)
        each = "" if there is None or here is None else f"{number((there - here) / calls)} ms"
        rows.append([f"{method} p50, ms", str(calls), _shown(services, measure),
                     _shown(nodes, measure), each])  # fmt: skip
    for measure in (COST, COST_OF_REQUEST):
        there, here = _mean(services, measure), _mean(nodes, measure)
        ratio = f"{there / here:.1f}×" if there and here else ""
        name = f"{measure.name}, {measure.unit}"
        rows.append([name, "", _shown(services, measure), _shown(nodes, measure), ratio])
    heads = [f"at {services.spot.at}", "calls inside", _SERVICES, _NODES, "an inner call, or ratio"]
    return _table(heads, rows, words=1)


def routing(study: Study) -> list[str]:
    """Return a table of the client's processor time per request, including the choice of a node."""
    measures = (COST_OF_CALLER, REQUESTS, latency(Method.SUBMIT, 50), latency(Method.SUBMIT, 99))
    rows = [[*names, *(_shown(point, one) for one in measures)] for names, point in _keyed(study)]
    heads = ["submits", "topology", "client's processor time per request, µs", "requests, req/s",
             "submit p50, ms", "submit p99, ms"]  # fmt: skip
    return _table(heads, rows, words=2)


def skew(study: Study) -> list[str]:
    """Return a table of rates with skewed keys, and the busiest part's share of processor time."""
    measures = (REQUESTS, JOBS, latency(Method.SUBMIT, 99))
    rows = [
        [*names, *(_shown(point, one) for one in measures), *_busiest(point)]
        for names, point in _keyed(study)
    ]
    heads = ["submits", "topology", "requests, req/s", "jobs done, jobs/s", "submit p99, ms",
             "busiest part", "its share of the processor time"]  # fmt: skip
    return _table(heads, rows, words=2)


def _busiest(point: Point) -> tuple[str, str]:
    """Return the part that used the most processor time, and its share of all parts' time."""
    used: dict[str, float] = {}
    for run in point.used:
        for part, seconds in run.machine.cpu.items():
            if part != "generator":
                used[part] = used.get(part, 0.0) + seconds
    if not any(used.values()):
        return "not known", ""
    part = max(used, key=lambda one: used[one])
    kind = "a node" if point.subject.what.startswith(_NODES) else part
    shares = []
    for run in point.used:
        parts = [one for name, one in run.machine.cpu.items() if name != "generator"]
        shares.append(100 * max(parts) / sum(parts))
    return kind, f"{with_interval(interval(shares))} %"


# -- what dies ---------------------------------------------------------------------------------


def dead(folder: Path) -> list[str]:
    """Return a table of requests and jobs while a killed service or node was down."""
    if not (folder / outages.FILE).is_file():
        return _not_measured(folder)
    document = json.loads((folder / outages.FILE).read_text(encoding="utf-8"))
    rows = []
    for one in map(Outage.from_json, document["outages"]):
        rows.append([f"{one.topology}: {one.killed}", f"{one.answered():.0%}",
                     *(f"{one.answered(method):.0%}" for method in PRIMARY),
                     f"{one.accepted:,}", f"{one.open:,}"])  # fmt: skip
    heads = ["killed", "answered", *map(str, PRIMARY), "jobs accepted", "end not seen"]
    return [f"{_origin(document['environment'])}:", "", *_table(heads, rows, words=1)]


def _origin(environment: Mapping[str, Any]) -> str:
    command = environment.get("command", "a command that is not known")
    commit = str(environment.get("commit", "unknown"))[:12]
    return f"`{command}`, commit {commit}, begun {environment.get('began', 'at an unknown time')}"


# -- pieces ------------------------------------------------------------------------------------

_KEYED: Mapping[str, _Choice] = {
    "without a key": lambda cell: cell.key_ratio == 0,
    "every key new": lambda cell: cell.key_ratio == 1 and cell.key_skew == 0,
    "keys skewed": lambda cell: cell.key_ratio == 1 and cell.key_skew > 0,
}


def _keyed(study: Study) -> Iterator[tuple[list[str], Point]]:
    """Yield the kind of keys and the topology by name, and their runs."""
    for what, chosen in _KEYED.items():
        for topology in (_SERVICES, _NODES):
            if point := _point(study, topology, chosen):
                yield [what, topology], point


def _point(study: Study, topology: str, chosen: _Choice) -> Point | None:
    """Return the topology's runs that match ``chosen``, with the usual mix of methods."""
    keyed = [one for one in study.points if one.runs[0].cell.key_ratio == 1]
    callers = {one.runs[0].cell.callers for one in keyed}
    for point in study.points:
        cell = point.runs[0].cell
        plain = not cell.work_ms and cell.mix == _usual_mix(study)
        if cell.topology == topology and plain and chosen(cell) and cell.callers in callers:
            return point
    return None


def _usual_mix(study: Study) -> Mapping[Method, int]:
    mixes = [dict(one.runs[0].cell.mix) for one in study.points]
    return max(mixes, key=mixes.count)


def _fewest_callers(study: Study) -> _Choice:
    plain = [one.runs[0].cell for one in study.points if one.spot.load == "base"]
    fewest = min((cell.callers for cell in plain), default=0)
    return lambda cell: cell.callers == fewest


def _pair(study: Study, chosen: _Choice) -> tuple[Point, Point] | None:
    found = {
        point.runs[0].cell.topology: point
        for point in study.points
        if point.spot.load == "base" and chosen(point.runs[0].cell)
    }
    if _SERVICES in found and _NODES in found:
        return found[_SERVICES], found[_NODES]
    return None


def _mean(point: Point, measure: Measure) -> float | None:
    figure = point.figure(measure)
    return figure.mean if figure else None


def _shown(point: Point, measure: Measure) -> str:
    return reading.shown(point, measure) or "–"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: int) -> list[str]:
    lines = ["---" if n < words else "---:" for n in range(len(heads))]
    return [f"| {' | '.join(one)} |" for one in (heads, lines, *rows)]


TABLES: Mapping[str, Callable[[Path], list[str]]] = {
    "conditions": _of_study(conditions),
    "leads": _of_study(leads),
    "loads": _of_study(loads),
    "listings": _of_study(listings),
    "choosing": _of_study(choosing),
    "hops": _of_study(hops),
    "routing": _of_study(routing),
    "skew": _of_study(skew),
    "dead": dead,
}
