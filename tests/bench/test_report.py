"""Reports from records: what is shown, what is concluded, and what is not."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from jobqueue.bench.cell import Cell, Method, RunPlace
from jobqueue.bench.measures import COST, JOBS, REQUESTS, latency
from jobqueue.bench.records import FILE, TO_DONE, RunRecord, histogram
from jobqueue.bench.report import reading
from jobqueue.bench.report.document import document
from jobqueue.bench.report.reading import Why
from jobqueue.bench.report.rendering import page
from jobqueue.bench.report.study import Study, read
from jobqueue.bench.report.writing import write
from jobqueue.cli import bench_report
from jobqueue.cli.program import run_program
from jobqueue.core.errors import InvalidArgument, NotFound
from tests.bench import synthetic
from tests.bench.synthetic import NODES, SERVICES, Noise, record

QUIET = Noise(rate=0.01, cpu=0.01, bursts=0)
MACHINE = {"processor": "an example", "cores": 2, "fdatasync_ms": 0.8}
ENVIRONMENT: dict[str, object] = {
    "command": "jq-bench run parity",
    "commit": "abc1234",
    "machine": MACHINE,
    "generator_limit": {"over_grpc_requests_a_second": 4100},
}
MIX = {**synthetic.MIX, Method.LIST: 1}
CALLERS = (1, 8, 32)
SECTIONS = ("throughput", "percentiles", "curves", "cost", "memory")


def runs(callers=CALLERS, repetitions=3, noise=QUIET, builds=None, **factors) -> list[RunRecord]:
    """Both designs, side by side."""
    random = Random(4)
    builds = builds or {"services": SERVICES, "nodes": NODES}
    return [
        record(Cell(name, callers=one, **{"mix": MIX, **factors}), build, n, random, noise)
        for n in range(1, repetitions + 1)
        for one in callers
        for name, build in builds.items()
    ]


def judged(tmp_path: Path, made: list[RunRecord], measure=REQUESTS):
    study = read([synthetic.write(tmp_path / "results", made)])
    (contest,) = reading.contests(study)
    return contest.verdicts[measure]


def mean_requests(made: Iterable[RunRecord]) -> float:
    return fmean(value for run in made if (value := REQUESTS.of(run)) is not None)


def said(tmp_path: Path, made: list[RunRecord], environment=None) -> dict[str, str]:
    study = read([synthetic.write(tmp_path / "results", made, environment)])
    return {one.lead: one.text for one in whole_reading(study)}


def whole_reading(study: Study) -> list[reading.Statement]:
    return [*reading.winners(study, reading.contests(study)), *reading.trust(study)]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A folder with a report: two designs, three numbers of callers and one other load."""
    folder = tmp_path_factory.mktemp("parity")
    made = runs() + runs(callers=(8,), work_ms=50)
    made[0].machine.disturbed = True
    made[1].counts["submit"].errors = {"UNAVAILABLE": 7}
    made[1].counts["status"].unfinished = 2
    made[1].notes.append("a note of the run")
    synthetic.write(folder, made, ENVIRONMENT)
    write([folder], folder)
    return folder


@pytest.mark.req("tq:EVAL")
def test_a_report_has_all_its_files(written):
    kept = {path.name for path in written.iterdir()}
    assert kept == {FILE, "environment.json", "summary.csv", "report.html", "report.md", "plots"}
    text = (written / "report.html").read_text()
    headings = re.findall(r"<h2[^>]*>([^<]*)</h2>", text)
    assert headings[:3] == ["Who wins where", "Load by load", "Throughput"]
    assert {"Throughput", "Times", "From submit to done", "Cost per job", "ListJobs, apart",
            "Outcomes", "Disturbed runs and notes"} <= set(headings)  # fmt: skip
    for plot in re.findall(r"\]\((plots/[^)]*)\)", (written / "report.md").read_text()):
        assert (written / plot).read_text().startswith("<svg")


def test_the_page_asks_for_nothing_over_the_network(written):
    text = (written / "report.html").read_text()
    assert text.count("<svg") >= 5
    assert not re.search(r"<(script|link|img|iframe|object)\b", text)
    assert not re.search(r"\b(src|action)=", text)
    assert not re.search(r"@import|url\((?!#)", text)
    assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', text))


def test_names_inside_the_page_are_unique(written):
    names = re.findall(r'\bid="([^"]*)"', (written / "report.html").read_text())
    assert len(names) == len(set(names))


def test_who_wins_comes_first_and_the_conditions_last(written):
    text = (written / "report.md").read_text()
    assert text.startswith("# Nodes and services compared (profile synthetic)\n\n## Who wins")
    assert text.index("nodes leads at") < text.index("## Throughput") < text.index("## Conditions")
    assert text.index("## Conditions") < text.index("jq-bench run parity")
    assert "6 slots" in text
    assert "10 s counted" in text
    assert "abc1234" in text


@pytest.mark.req("tq:EVAL")
def test_the_summary_has_every_figure_with_its_interval(written):
    with (written / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    of_nodes = [run for run in runs() if run.cell.topology == "nodes" and run.cell.callers == 8]
    wanted = {"topology": "nodes", "callers": "8", "work_ms": "0", "measure": REQUESTS.name}
    (row,) = [one for one in rows if wanted.items() <= one.items()]
    assert float(row["mean"]) == pytest.approx(mean_requests(of_nodes), rel=1e-4)
    assert float(row["low"]) < float(row["mean"]) < float(row["high"])
    assert row["repetitions"] == "3"
    measures = {one["measure"] for one in rows}
    assert {f"{what} p{share}" for what in ("submit", "status", "result", "cancel", TO_DONE)
            for share in (50, 95, 99)} <= measures  # fmt: skip
    assert {"jobs done a second", "processor time per job", "peak memory"} <= measures


def test_errors_and_unfinished_requests_are_told(written):
    text = (written / "report.md").read_text()
    assert "UNAVAILABLE 7, unfinished 2" in text
    assert "a note of the run" in text


@pytest.mark.req("tq:EVAL")
def test_listing_is_in_no_figure_of_the_comparison(tmp_path):
    made = runs(callers=(8,))
    before = [REQUESTS.of(run) for run in made]
    for run in made:
        run.counts["list"].ok *= 100
    assert [REQUESTS.of(run) for run in made] == before
    study = read([synthetic.write(tmp_path / "results", made)])
    (contest,) = reading.contests(study)
    assert not any("list" in measure.name for measure in contest.verdicts)


def test_errors_are_not_throughput():
    (one, *_) = runs(callers=(8,), repetitions=1)
    before = REQUESTS.of(one)
    one.counts["submit"].errors = {"UNAVAILABLE": 10_000}
    assert REQUESTS.of(one) == before


def test_who_is_faster_leads_by_the_ratio_of_the_means(tmp_path):
    verdicts = judged(tmp_path, runs())
    assert [verdict.leader.what for verdict in verdicts] == ["nodes"] * 3
    by_callers = {verdict.spot.value: verdict.ratio for verdict in verdicts}
    means = {
        name: mean_requests(
            run for run in runs() if run.cell.topology == name and run.cell.callers == 32
        )
        for name in ("nodes", "services")
    }
    assert by_callers[32] == pytest.approx(means["nodes"] / means["services"])


def test_designs_with_other_numbers_of_workers_are_compared(tmp_path):
    """One worker with six slots, and six with one: their number is the design's, no load."""
    made = runs(callers=(8,))
    for run in made:
        run.cell = replace(run.cell, workers=6 if run.cell.topology == "nodes" else 1)
    (verdict,) = judged(tmp_path, made)
    assert verdict.leader.what == "nodes"


def test_equal_builds_have_no_leader(tmp_path):
    made = runs(builds={"left": NODES, "right": NODES}, noise=Noise())
    verdicts = judged(tmp_path, made)
    assert [one.why for one in verdicts] == [Why.OVERLAP] * 3
    text = said(tmp_path / "again", made)["requests a second (more is better)"]
    assert text == "none can be said to lead: their 95 % intervals overlap."


def test_nothing_is_concluded_from_one_repetition(tmp_path):
    made = runs(repetitions=1)
    assert {one.why for one in judged(tmp_path, made)} == {Why.ONCE}
    assert "none is said to lead" in said(tmp_path / "again", made)["extent"]


def test_disturbed_runs_are_left_out_while_there_are_calm_ones(tmp_path):
    made = runs()
    slow = next(run for run in made if run.cell.topology == "nodes" and run.cell.callers == 8)
    slow.machine.disturbed = True
    slow.counts["submit"].ok = 1
    study = read([synthetic.write(tmp_path / "results", made)])
    (spot,) = [one for one in study.spots if one.value == 8]
    (nodes, _) = (study.at(spot, one) for one in study.subjects)
    assert nodes is not None
    assert len(nodes.used) == 2
    assert not nodes.disturbed
    text = said(tmp_path / "again", made)["disturbed runs"]
    assert text == "1 disturbed run left out of the figures."


def test_nothing_is_concluded_from_disturbed_runs_alone(tmp_path):
    made = runs()
    for run in made:
        run.machine.disturbed = run.cell.callers == 8
    whys = {one.spot.value: one.why for one in judged(tmp_path, made)}
    assert whys == {1: None, 8: Why.DISTURBED, 32: None}
    assert "6 runs used though disturbed" in said(tmp_path / "a", made)["disturbed runs"]


def test_a_loser_at_the_generators_limit_has_not_lost(tmp_path):
    made = runs()
    for run in made:
        run.machine.generator = 0.95 if run.cell.topology == "services" else 0.3
    assert {one.why for one in judged(tmp_path, made)} == {Why.LIMIT}
    assert {one.leader.what for one in judged(tmp_path / "cost", made, COST)} == {"nodes"}


def test_a_leader_at_the_generators_limit_leads_by_at_least_that(tmp_path):
    made = runs()
    for run in made:
        run.machine.generator = 0.95 if run.cell.topology == "nodes" else 0.3
    assert all(one.shown.startswith("≥ ") for one in judged(tmp_path, made))
    found = said(tmp_path / "again", made, ENVIRONMENT)
    text = found["the generator's limit"]
    assert "at 3 of 6 figures" in text
    assert "4,100 requests a second" in text


def test_what_went_wrong_is_said_and_what_did_not(tmp_path):
    calm = said(tmp_path / "calm", runs())
    assert calm["failed requests"].startswith("none")
    assert calm["open jobs"].startswith("none")
    assert "disturbed runs" not in calm
    assert "the accounting does not close" not in calm
    made = runs()
    made[0].jobs.done -= 3
    made[0].jobs.open = 3
    made[1].jobs.done -= 1
    made[2].counts["submit"].soft = {"QUEUE_FULL": 5}
    found = said(tmp_path / "wrong", made)
    assert found["open jobs"].startswith("services: 3 of ")
    assert found["the accounting does not close"].startswith("in 1 run ")
    assert "services: 5 of" in found["refused submits"]


def test_late_requests_of_an_open_loop_are_told(tmp_path):
    made = runs(callers=(8,), rate=300.0)
    made[0].machine.late_ms = 44.0
    assert "at worst 44.0 ms" in said(tmp_path, made)["late requests"]


def test_unlike_cells_are_never_put_together(tmp_path):
    """Every factor on its own, open and closed loops, two sizes of a topology."""
    base = Cell("nodes", mix=dict(MIX))
    cells = [
        base,
        replace(base, place=RunPlace.CONTAINERS),
        replace(base, topology="services"),
        replace(base, servers=2),
        replace(base, workers=3),
        replace(base, slots=12),
        replace(base, callers=9),
        replace(base, work_ms=5),
        replace(base, payload_bytes=9),
        replace(base, mix={Method.SUBMIT: 3}),
        replace(base, key_ratio=0.5),
        replace(base, key_skew=1.1),
        replace(base, batch=4),
        replace(base, rows=1000),
        replace(base, rate=10.0),
        replace(base, rate=10.0, callers=9),
        replace(base, rate=20.0, rows=1000),
    ]
    made = [record(cell, NODES, 1, Random(n)) for n, cell in enumerate(cells)]
    study = read([synthetic.write(tmp_path / "results", made)])
    assert len(study.points) == len(cells)
    assert len({(str(one.spot), str(one.subject)) for one in study.points}) == len(cells)


def test_folders_are_laid_over_each_other(tmp_path):
    before = synthetic.write(tmp_path / "before" / "parity", runs(), ENVIRONMENT)
    slower = {"services": SERVICES.slowed(0.5), "nodes": NODES.slowed(0.5)}
    after = synthetic.write(tmp_path / "after" / "parity", runs(builds=slower), ENVIRONMENT)
    study = read([before, after])
    assert {one.where for one in study.subjects} == {"before", "after"}
    found = {one.title: one for one in reading.contests(study)}
    assert found.keys() == {"in before", "in after", "nodes", "services"}
    leaders = {one.leader and one.leader.where for one in found["nodes"].verdicts[JOBS]}
    assert leaders == {"before"}


def test_processes_and_containers_are_compared_design_by_design(tmp_path):
    folders = [
        synthetic.write(tmp_path / place, runs(callers=(8,), place=place), ENVIRONMENT)
        for place in RunPlace
    ]
    study = read(folders)
    assert {one.where for one in study.subjects} == {"processes", "containers"}
    found = {one.title: one for one in reading.contests(study)}
    assert set(found["nodes"].names.values()) == {"processes", "containers"}


def test_folders_are_told_apart_by_what_differs_in_their_paths(tmp_path):
    made = runs(callers=(8,), repetitions=1)

    def labels(*names: str) -> list[str]:
        folders = [synthetic.write(tmp_path / name, made) for name in names]
        return [one.label for one in read(folders).folders]

    assert labels("one", "two") == ["one", "two"]
    assert labels("x/parity", "y/parity") == ["x", "y"]
    assert labels("r/a", "r/a/b/a", "r/a/c") == ["a", "a/b/a", "a/c"]
    with pytest.raises(InvalidArgument, match="named twice"):
        labels("one", "one")


def test_folders_of_different_machines_are_shown_and_not_compared(tmp_path):
    other = {**ENVIRONMENT, "machine": {**MACHINE, "cores": 64}}
    here = synthetic.write(tmp_path / "here", runs(), ENVIRONMENT)
    there = synthetic.write(tmp_path / "there", runs(), other)
    study = read([here, there])
    assert {one.title for one in reading.contests(study)} == {"in here", "in there"}
    leads = [one.lead for one in whole_reading(study)]
    assert "not compared" in leads


def test_a_percentile_of_few_values_is_not_shown():
    (one, *_) = runs(callers=(8,), repetitions=1)
    few = histogram()
    for taken in range(1, 31):
        few.record_value(taken * 1000)
    one.latencies["submit"] = few.encode().decode()
    assert latency("submit", 50).of(one) is not None
    assert latency("submit", 95).of(one) is not None
    assert latency("submit", 99).of(one) is None


def test_names_cannot_become_markup(tmp_path):
    made = runs(callers=(8,), repetitions=2, builds={"<b>|x": NODES, "y": SERVICES})
    made[0].notes.append("<script>alert(1)</script>")
    study = read([synthetic.write(tmp_path / "results", made)])
    shown = page(document(study, {name: [] for name in SECTIONS}))
    assert "<b>" not in shown
    assert "<script>" not in shown


def test_a_record_that_was_cut_short_is_passed_over(tmp_path):
    folder = synthetic.write(tmp_path / "results", runs(callers=(8,)))
    whole = (folder / FILE).read_text()
    (folder / FILE).write_text(whole + whole[:200])
    assert len(read([folder]).runs) == 6
    (folder / FILE).write_text(whole[:200] + "\n" + whole)
    with pytest.raises(InvalidArgument, match="line 1 is not a record"):
        read([folder])


def test_a_folder_without_records_is_refused(tmp_path):
    with pytest.raises(NotFound, match=r"has no records\.jsonl"):
        read([tmp_path])
    (tmp_path / FILE).write_text("")
    with pytest.raises(InvalidArgument, match="is empty"):
        read([tmp_path])


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_broken_environment_is_refused(tmp_path, text):
    folder = synthetic.write(tmp_path / "results", runs(callers=(8,), repetitions=1))
    (folder / "environment.json").write_text(text)
    with pytest.raises(InvalidArgument, match=r"environment\.json: is not"):
        read([folder])


def test_the_command_prints_the_path_of_the_page_and_makes_it_the_same_again(tmp_path, capsys):
    mix = {Method.SUBMIT: 1}
    folder = synthetic.write(tmp_path / "results", runs(callers=(8,), repetitions=2, mix=mix))
    pages = []
    for _ in range(2):
        assert run_program(bench_report.app, "jq-bench", ["report", str(folder)]) == 0
        assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
        pages.append((folder / "report.html").read_text())
    assert pages[0] == pages[1]


def test_several_folders_need_a_place_for_their_report(tmp_path, capsys):
    assert run_program(bench_report.app, "jq-bench", ["report", "a", "b"]) == 2
    assert "--into: must name a folder" in capsys.readouterr().err
    assert run_program(bench_report.app, "jq-bench", ["report", str(tmp_path / "none")]) == 4
    assert "has no records.jsonl" in capsys.readouterr().err
