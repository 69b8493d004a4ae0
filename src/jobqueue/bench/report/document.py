"""Build the content of a report, before it becomes HTML or Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from jobqueue.bench.cell import Method
from jobqueue.bench.intervals import CONFIDENCE
from jobqueue.bench.measures import (
    COST,
    COST_OF_REQUEST,
    JOBS,
    LISTINGS,
    MEMORY,
    NEAR_LIMIT,
    PERCENTILES,
    REQUESTS,
    TIMED,
    Measure,
    latency,
    measured,
    memory_parts,
    parts,
)
from jobqueue.bench.report import reading
from jobqueue.bench.report.plots import Plot
from jobqueue.bench.report.reading import BY_METHOD, KEY, Contest, Statement, number, with_interval
from jobqueue.bench.report.study import BASE, Study

UNKNOWN = "not known"
_FIRST = ("command", "commit", "began", "place")  # of an environment
_HIDDEN = "profile"  # not listed, because the report shows the factors elsewhere


@dataclass(frozen=True, slots=True)
class Text:
    """Holds a paragraph of a report."""

    text: str


@dataclass(frozen=True, slots=True)
class Commands:
    """Holds command lines of a report."""

    lines: list[str]


@dataclass(frozen=True, slots=True)
class TableCell:
    """Holds one field of a table. ``subject`` is the number of the topology that leads there."""

    text: str
    subject: int | None = None
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Holds rows under headers.

    The first ``words`` columns are text, the other columns are numbers.
    """

    headers: list[str]
    rows: list[list[TableCell]]
    words: int = 1


@dataclass(frozen=True, slots=True)
class Findings:
    """Holds sentences of a report, each with its topic in front."""

    items: list[Statement]


@dataclass(frozen=True, slots=True)
class Folded:
    """Holds details that the report shows collapsed, because few readers need them."""

    title: str
    blocks: list[Block]


Block: TypeAlias = Text | Commands | Table | Findings | Folded | Plot


@dataclass(frozen=True, slots=True)
class ReportSection:
    """Holds a part of the report with a heading."""

    title: str
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Document:
    """Holds the title and the sections of a report."""

    title: str
    sections: list[ReportSection]


def document(study: Study, plots: dict[str, list[Plot]]) -> Document:
    """Build the report: first the leaders, then the figures, then how far to trust the figures."""
    sections = [
        *_loads(study, plots),
        _scenarios(study),
        *_trust(study),
        _runs(study),
        _how_to_read(),
        _conditions(study),
    ]
    first, *others = [one for one in sections if one.blocks]
    first = ReportSection(first.title, [*_asked(study), *first.blocks])
    return Document(_title(study), [first, *others])


def _loads(study: Study, plots: dict[str, list[Plot]]) -> list[ReportSection]:
    """Return the sections about requests, none if only scenarios were measured."""
    if not study.points:
        return []
    compared = reading.contests(study)
    return [
        ReportSection("Who wins where", [
            Findings(reading.winners(study, compared)), *_by_method(compared), _load(study),
        ]),
        *_who_leads(study, compared),
        _figures("Throughput", study, plots["throughput"], [REQUESTS, JOBS]),
        _figures("Times", study, [*plots["percentiles"]],
                 [latency(what, one) for what in TIMED for one in PERCENTILES]),
        ReportSection("From submit to done", list(plots["curves"])),
        _costs(study, plots),
        _listings(study),
        _outcomes(study),
    ]  # fmt: skip


def _trust(study: Study) -> list[ReportSection]:
    if not study.points:
        return []
    return [ReportSection("How far to trust it", [Findings(reading.trust(study))])]


def _title(study: Study) -> str:
    profiles = ", ".join(dict.fromkeys(run.profile for run in study.every_run))
    whom = list(dict.fromkeys(one.what for one in study.subjects))
    if not whom:
        topologies = dict.fromkeys(run.cell.topology for run in study.every_run)
        return f"Scenarios of {' and '.join(topologies)} (profile {profiles})"
    shown = f"{', '.join(whom[:-1])} and {whom[-1]} compared" if len(whom) > 1 else whom[0]
    return f"{shown[:1].upper()}{shown[1:]} (profile {profiles})"


def _asked(study: Study) -> list[Block]:
    """Return the profile's description, and a warning if most runs were disturbed."""
    told = []
    for one in study.folders:
        profile = one.environment.get("profile")
        if isinstance(profile, dict) and profile.get("about"):
            told.append(str(profile["about"]))
    texts: list[Block] = [Text(one) for one in dict.fromkeys(told)]
    runs = study.every_run
    disturbed = sum(run.machine.disturbed for run in runs)
    if disturbed > len(runs) / 2:
        texts.append(
            Text(
                f"Provisional: something else used the processor during {disturbed} of"
                f" {len(runs)} runs. Measure again on a quiet machine."
            )
        )
    return texts


def _load(study: Study) -> Text:
    """Return a paragraph with the factors equal in all runs, and the usual values of others."""
    usual = f"Equal in all runs: {study.same}."
    if study.base:
        usual += f" Load “{BASE}”: {study.base}; other loads name what they change."
    return Text(usual)


def _scenarios(study: Study) -> ReportSection:
    """Return a section with a table of scenario figures for each folder."""
    blocks: list[Block] = []
    for folder in study.folders:
        rows = [
            [f"{one.runs[0].cell.topology} {one.runs[0].cell.scenario}", one.last.name,
             one.last.how, f"{with_interval(one.value)} {one.last.unit}{'†' * one.disturbed}",
             f"{one.target}{'' if one.met else ', missed'}"]
            for one in measured(folder.records)
        ]  # fmt: skip
        if rows and len(study.folders) > 1:
            blocks.append(Text(folder.label))
        if rows:
            headers = ["scenario", "measure", "conditions", "mean and interval", "target"]
            blocks.append(_table(headers, rows, words=3))
    return ReportSection("Scenarios", blocks)


def _conditions(study: Study) -> ReportSection:
    commands = [str(one.environment.get("command", UNKNOWN)) for one in study.folders]
    blocks: list[Block] = [Commands(list(dict.fromkeys(commands)))]
    dates = sorted(run.began for run in study.every_run)
    rows = [["runs", f"{len(dates)}, from {dates[0]} to {dates[-1]}"]]
    blocks.append(_table(["condition", ""], rows, words=2))
    flat = {one.label: _flat(one.environment) for one in study.folders}
    names = [name for name in dict.fromkeys(n for one in flat.values() for n in one)
             if name != "command"]  # fmt: skip
    if names:
        table = [[name, *(one.get(name, UNKNOWN) for one in flat.values())] for name in names]
        shown = _table(["", *flat], table, words=1 + len(flat))
        blocks.append(Folded("The machine and the versions", [shown]))
    missing = [str(one.path) for one in study.folders if not one.environment]
    if missing:
        blocks.append(Text(f"No environment.json in {', '.join(missing)}: its conditions are"
                           " not known."))  # fmt: skip
    if len(study.folders) > 1:
        differing = [name for name in names if len({one.get(name) for one in flat.values()}) > 1]
        blocks.append(Text("The folders differ in: " + (", ".join(differing) or "nothing") + "."))
    return ReportSection("Conditions", blocks)


def _flat(environment: dict[str, Any], before: str = "") -> dict[str, str]:
    """Return nested values as text, with dots between the nested names."""
    found: dict[str, str] = {}
    order = sorted(environment, key=lambda one: one not in _FIRST)
    for name in order:
        value = environment[name]
        if not before and name == _HIDDEN:
            continue
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = str(value)
    return found


def _by_method(compared: Sequence[Contest]) -> list[Block]:
    found = [one for contest in compared for one in reading.judged(contest, BY_METHOD)]
    return [Folded("The same for the times of each method", [Findings(found)])] if found else []


def _who_leads(study: Study, compared: Sequence[Contest]) -> list[ReportSection]:
    """Return sections with a table of the leading topologies, by load and measure."""
    sections = []
    for contest in compared:
        measures = [one for one in KEY if one in contest.verdicts]
        if not measures:
            continue
        numbers = {subject: study.subjects.index(subject) for subject in contest.names}
        rows = []
        for spot in study.spots:
            row = [TableCell(str(spot))]
            for measure in measures:
                verdict = next((v for v in contest.verdicts[measure] if v.spot == spot), None)
                if verdict is None:
                    row.append(TableCell(""))
                elif verdict.leader is None:
                    row.append(TableCell(verdict.shown, quiet=True))
                else:
                    name = contest.names[verdict.leader]
                    row.append(TableCell(f"{name} {verdict.shown}", numbers[verdict.leader]))
            if any(one.text for one in row[1:]):
                rows.append(row)
        title = f"Load by load, {contest.title}" if contest.title else "Load by load"
        text = Text(
            "The leader and by how much, over the next. Where intervals overlap, none leads."
        )
        headers = ["load", *(f"{one.name}" for one in measures)]
        sections.append(ReportSection(title, [text, Table(headers, rows)]))
    return sections


def _figures(
    title: str, study: Study, plots: Sequence[Plot], measures: Sequence[Measure]
) -> ReportSection:
    """Return a section with plots, and a table of the plotted figures."""
    table = _figure_table(study, measures)
    blocks: list[Block] = list(plots)
    if table.rows:
        blocks.append(Folded(f"{title} as a table, with intervals", [table]))
    return ReportSection(title, blocks)


def _figure_table(study: Study, measures: Sequence[Measure]) -> Table:
    rows = []
    for measure in measures:
        for spot in study.spots:
            points = [study.at(spot, one) for one in study.subjects]
            shown = [reading.shown(point, measure) if point else "" for point in points]
            if any(shown):
                rows.append([f"{measure.name}, {measure.unit}", str(spot), *shown])
    return _table(["measure", "load", *map(str, study.subjects)], rows, words=2)


def _costs(study: Study, plots: dict[str, list[Plot]]) -> ReportSection:
    blocks: list[Block] = [*plots["cost"], *plots["memory"]]
    sums = _figure_table(study, [COST, COST_OF_REQUEST, MEMORY])
    if sums.rows:
        blocks.append(Folded("Costs as a table, with intervals", [sums]))
    rows = []
    for point in study.points:
        by_part: dict[str, list[list[float]]] = {}
        for n, of in enumerate((parts, memory_parts)):
            for run in point.used:
                for part, value in of(run).items():
                    by_part.setdefault(part, [[], []])[n].append(value)
        for part, columns in by_part.items():
            means = [number(sum(one) / len(one)) if one else "" for one in columns]
            rows.append([str(point.spot), str(point.subject), part, *means])
    if rows:
        headers = ["load", "subject", "part", "µs per job", "MiB at the peak"]
        blocks.append(Folded("Costs by part", [_table(headers, rows, words=3)]))
    database = []
    for point in study.points:
        names = dict.fromkeys(name for run in point.used for name in run.machine.database)
        for name in names:
            values = [run.machine.database[name] for run in point.used
                      if name in run.machine.database]  # fmt: skip
            mean = number(sum(values) / len(values))
            database.append([str(point.spot), str(point.subject), name, mean])
    if database:
        headers = ["load", "subject", "in the database", "mean"]
        blocks.append(Folded("What the database did", [_table(headers, database, words=3)]))
    return ReportSection("Cost per job", blocks)


def _listings(study: Study) -> ReportSection:
    measures = [LISTINGS, *(latency(Method.LIST, one) for one in PERCENTILES)]
    table = _figure_table(study, measures)
    if not table.rows:
        return ReportSection("ListJobs, apart")
    text = Text(
        "Listing is not part of the comparison: nodes may answer with their own jobs only. It is in"
        " none of the figures above."
    )
    return ReportSection("ListJobs, apart", [text, table])


def _outcomes(study: Study) -> ReportSection:
    rows = []
    for point in sorted(study.points, key=lambda one: study.spots.index(one.spot)):
        for method, one in point.counts().items():
            rows.append([str(point.spot), str(point.subject), method, f"{one.total:,}",
                         f"{one.ok:,}", _codes(one.soft), _codes(one.errors),
                         f"{one.unfinished:,}" if one.unfinished else ""])  # fmt: skip
    headers = ["load", "subject", "method", "begun", "ok", "soft", "errors", "unfinished"]
    requests = _table(headers, rows, words=3)
    rows = []
    for subject in study.subjects:
        jobs = [run.jobs for p in study.points if p.subject == subject for run in p.runs]
        sums = [sum(getattr(one, name) for one in jobs)
                for name in ("submitted", "done", "failed", "canceled", "open")]  # fmt: skip
        rows.append([str(subject), *(f"{one:,}" for one in sums)])
    jobs_table = _table(["subject", "submitted", "done", "failed", "canceled", "open"], rows)
    return ReportSection(
        "Outcomes",
        [
            Text("Every request is counted once, and submitted jobs are those ended + open."),
            jobs_table,
            Folded("Requests by method", [requests]),
        ],
    )


def _codes(codes: dict[str, int]) -> str:
    return ", ".join(f"{code} {count:,}" for code, count in sorted(codes.items()))


def _runs(study: Study) -> ReportSection:
    """Return the section that lists disturbed runs and the notes of runs."""
    rows = [
        [str(point.spot), str(point.subject), str(run.repetition), f"{run.machine.others:.2f}",
         f"{run.machine.stolen:.2f}", "left out" if point.calm else "used, marked †"]
        for point in study.points for run in point.runs if run.machine.disturbed
    ]  # fmt: skip
    rows += [
        [one.cell.scenario, one.cell.topology, str(one.repetition), f"{one.machine.others:.2f}",
         f"{one.machine.stolen:.2f}", "left out where another is calm"]
        for one in study.every_run if one.cell.scenario and one.machine.disturbed
    ]  # fmt: skip
    blocks: list[Block] = []
    if rows:
        headers = ["load", "subject", "repetition", "others, cores", "stolen, cores", "figures"]
        blocks.append(_table(headers, rows, words=2))
    notes = Counter(note for run in study.every_run for note in run.notes)
    if notes:
        listed = [[note, f"{count:,}"] for note, count in notes.most_common()]
        blocks.append(Folded("Notes of the runs", [_table(["note", "runs"], listed)]))
    return ReportSection("Disturbed runs and notes", blocks)


def _how_to_read() -> ReportSection:
    return ReportSection(
        "How to read this",
        [
            Text(
                f"A figure is the mean over repetitions; in brackets and as bars its"
                f" {CONFIDENCE:.0%} interval. Two figures differ for certain only where their"
                " intervals do not overlap."
            ),
            Text(
                "† of disturbed runs only: something else used the processor. ‡ the generator used"
                f" {NEAR_LIMIT:.0%} of a core or more: the system may do better."
            ),
            Text(
                "Requests a second are answers of submit, status, result and cancel; errors do not"
                " count. p50, p95 and p99: half, 95 % and 99 % take no longer. Times of an open"
                " loop count from the intended start. Processor time is that of the system's parts,"
                " without the generator's. A percentile is shown where"
                " enough was measured for it. All figures: summary.csv; all runs: records.jsonl."
            ),
        ],
    )


def _table(headers: list[str], rows: Iterable[Sequence[str]], words: int = 1) -> Table:
    return Table(headers, [[TableCell(text) for text in row] for row in rows], words)
