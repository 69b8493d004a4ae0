"""What document 000 wants to know of its two designs is measured, kept, and shown."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import yaml

from jobqueue.bench.cell import PRIMARY, Cell, Method, RunPlace
from jobqueue.bench.outages import KILLED, Outage
from jobqueue.bench.records import TO_DONE, Counts, RunRecord, read
from jobqueue.bench.report.tables import TABLES, render
from jobqueue.core.errors import InvalidArgument
from tests import patience
from tests.bench import synthetic
from tests.bench.synthetic import NODES, SERVICES, Noise, record
from tests.cli import processes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evaluation.md"
DESIGNS = {"microservices": SERVICES, "nodes": NODES}
WRITES = {Method.SUBMIT: 4, Method.STATUS: 2, Method.RESULT: 2, Method.CANCEL: 1}
READS = {Method.SUBMIT: 1, Method.STATUS: 4, Method.RESULT: 4, Method.CANCEL: 1}
# Each factor of the document by itself, and keys.
CELLS: list[dict[str, object]] = [
    {"callers": [1, 4]},
    {"work_ms": 20},
    {"mix": {str(method): share for method, share in READS.items()}},
    {"key_ratio": 1.0},
]
LOADS = 5
MEASURES_FIVE_LOADS = pytest.mark.nightly(
    "five loads on both designs take two cores for 40 s; "
    "test_both_designs_are_measured_alike_and_shown_side_by_side measures one at every merge"
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both designs as processes, under each factor of the document for a moment."""
    folder = tmp_path_factory.mktemp("evaluation")
    profile = {
        "about": "for a test",
        "topologies": list(DESIGNS),
        "base": {"callers": 4, "mix": {str(method): share for method, share in WRITES.items()}},
        "cells": CELLS,
        "warm_up": 0.2,
        "seconds": patience.stretched(1.0),
        "job_seconds": patience.stretched(0.5),
        "listings": 2,
        "drain": patience.stretched(15.0),
        "repetitions": 1,
        "calm": 0,
        "repeats": 0,
    }
    (folder / "small.yml").write_text(yaml.safe_dump(profile))
    ran = processes.run("bench", "run", "small.yml", cwd=folder, timeout=240)
    assert ran.returncode == 0, ran.stderr
    return folder / "results" / "small"


@pytest.fixture(scope="module")
def made(kept: Path) -> list[RunRecord]:
    return list(read([kept]))


@MEASURES_FIVE_LOADS
@pytest.mark.timeout(400)
@pytest.mark.req("tq:EVAL")
def test_both_designs_are_measured_under_each_factor_of_the_document(made: list[RunRecord]) -> None:
    for design in DESIGNS:
        cells = [one.cell for one in made if one.cell.topology == design]
        assert len(cells) == LOADS
        assert {cell.callers for cell in cells} == {1, 4}
        assert {cell.work_ms for cell in cells} == {0, 20}
        assert {cell.key_ratio for cell in cells} == {0.0, 1.0}
        assert any(cell.mix == READS for cell in cells)
        assert all(cell.mix[Method.CANCEL] for cell in cells)
    for one in made:
        assert one.counts[Method.CANCEL].total > 0
        assert one.jobs.submitted == one.counts[Method.SUBMIT].ok == one.jobs.ended + one.jobs.open
        assert one.jobs.done > 0


@MEASURES_FIVE_LOADS
@pytest.mark.timeout(400)
@pytest.mark.req("tq:EVAL", "tq:NFR-3")
def test_each_load_has_its_rates_percentiles_and_time_to_done(kept: Path) -> None:
    with (kept / "summary.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    told: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        if float(row["mean"]) > 0:
            load = (row["topology"], row["callers"], row["work_ms"], row["mix"], row["key_ratio"])
            told.setdefault(row["measure"], set()).add(load)
    always = ["requests a second", "jobs done a second", "submit p50", "list, median"]
    for measure in always:
        assert len(told[measure]) == len(DESIGNS) * LOADS, measure
    # A high percentile is told where there were requests enough for it.
    for measure in ("submit p95", "submit p99", "status p50", "result p50", "cancel p50"):
        assert told[measure], measure


@MEASURES_FIVE_LOADS
@pytest.mark.timeout(400)
@pytest.mark.req("tq:EVAL", "tq:LOCK-28")
def test_listings_are_apart_from_the_rates(made: list[RunRecord]) -> None:
    for one in made:
        primary = [one.counts[method] for method in PRIMARY]
        assert one.counts[Method.LIST].total == 2
        assert one.requests_a_second * one.seconds == pytest.approx(
            sum(counts.total - counts.unfinished for counts in primary)
        )
        assert {Method.LIST, TO_DONE} < set(one.latencies)


@MEASURES_FIVE_LOADS
@pytest.mark.timeout(400)
@pytest.mark.req("tq:EVAL")
def test_raw_records_and_the_report_are_kept(kept: Path) -> None:
    assert {one.name for one in kept.iterdir()} == {
        "records.jsonl", "environment.json", "summary.csv", "report.html", "report.md", "plots",
    }  # fmt: skip
    page = (kept / "report.html").read_text(encoding="utf-8")
    assert "ListJobs, apart" in page
    # The tables of the evaluation are made from such a folder.
    names = set(TABLES) - {"dead"}
    marks = "\n".join(f"<!-- jq-bench: {name} {kept.name} -->\n<!-- end -->" for name in names)
    shown = render(marks, kept.parent)
    assert "There is no run" not in shown
    assert "every key new" in shown
    assert "Provisional" in shown or not any(one.machine.disturbed for one in read([kept]))


# -- the tables, from figures that are known ---------------------------------------------------


def studied(folder: Path) -> Path:
    random = Random(3)
    keyed = Cell("nodes", callers=8, mix=WRITES, key_ratio=1.0)
    plain = replace(keyed, key_ratio=0.0)
    cells = [replace(plain, callers=1), plain, keyed, replace(keyed, key_skew=1.2)]
    runs = [
        record(replace(cell, topology=name), build, n, random, Noise(0.01, 0.01, 0))
        for n in (1, 2, 3)
        for cell in cells
        for name, build in DESIGNS.items()
    ]
    return synthetic.write(folder, runs, {"command": "jq-bench run parity", "commit": "abc"})


def table(name: str, folder: Path) -> str:
    return render(f"<!-- jq-bench: {name} {folder.name} -->\nold\n<!-- end -->", folder.parent)


def rows_of(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_a_hop_is_the_difference_of_the_medians_at_the_fewest_callers(tmp_path: Path) -> None:
    rows = rows_of(table("hops", studied(tmp_path / "kept")))
    submit, status = rows[:2]
    for row, calls in ((submit, 2), (status, 1)):
        there, here = (float(cell.split(" (")[0]) for cell in row[2:4])
        assert row[1] == str(calls)
        assert float(row[4].removesuffix(" ms")) == pytest.approx((there - here) / calls, abs=0.02)


def test_keyed_submits_are_set_beside_those_without(tmp_path: Path) -> None:
    rows = rows_of(table("routing", studied(tmp_path / "kept")))
    assert [tuple(row[:2]) for row in rows] == [
        (keys, design)
        for keys in ("without a key", "every key new", "keys skewed")
        for design in DESIGNS
    ]
    assert all(row[2] != "–" for row in rows)


def test_the_busiest_node_is_told_by_its_share(tmp_path: Path) -> None:
    rows = rows_of(table("skew", studied(tmp_path / "kept")))
    assert {row[5] for row in rows if row[1] == "nodes"} == {"a node"}
    assert {row[5] for row in rows if row[1] == "microservices"} == {"gateway"}
    shares = [float(row[6].split(" ")[0]) for row in rows if row[1] == "nodes"]
    weights = [1 + (6 - n) / 3 for n in range(6)]  # those of synthetic.record
    assert shares == pytest.approx([100 * weights[0] / sum(weights)] * 3, abs=0.1)


def test_disturbed_runs_make_the_figures_provisional(tmp_path: Path) -> None:
    folder = studied(tmp_path / "kept")
    assert "Provisional" not in table("conditions", folder)
    runs = list(read([folder]))
    for one in runs:
        one.machine.disturbed = True
    (folder / "records.jsonl").unlink()
    synthetic.write(folder, runs)
    assert "**Provisional: something else used the processor during 24 of 24" in table(
        "conditions", folder
    )
    assert "†" in table("loads", folder)


def test_a_dead_node_is_set_beside_dead_services(tmp_path: Path) -> None:
    folder = tmp_path / "outages"
    folder.mkdir()
    made = Outage(
        "nodes", "node-0", {}, {"submit": Counts(ok=5, errors={"UNAVAILABLE": 1}),
                                "result": Counts(ok=1, soft={"NOT_READY": 1})},
        accepted=60, done=48, canceled=2, failed=0, open=10,
    )  # fmt: skip
    document = {"environment": {"command": "jq-bench outages"}, "outages": [made.as_json()]}
    (folder / "outages.json").write_text(json.dumps(document))
    assert rows_of(table("dead", folder)) == [
        ["nodes: node-0", "88%", "83%", "0%", "100%", "0%", "60", "10"]
    ]


def test_an_unknown_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="'nothing' is not a table's name; allowed: choos"):
        table("nothing", tmp_path)


@pytest.mark.req("tq:EVAL")
def test_the_tables_of_the_evaluation_are_those_of_the_kept_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- jq-bench:") == text.count("<!-- end -->") > 10
    assert render(text, ROOT) == text, "run: jq-bench tables docs/evaluation.md"


def test_a_page_that_is_out_of_date_is_told_and_renewed(tmp_path: Path) -> None:
    studied(tmp_path / "kept")
    page = tmp_path / "page.md"
    page.write_text("# A\n\n<!-- jq-bench: leads kept -->\n<!-- end -->\n\nwords\n")
    stale = processes.run("bench", "tables", "page.md", "--check", cwd=tmp_path)
    assert (stale.returncode, stale.stderr) == (
        1, "page.md is out of date; to write its tables again, run: jq-bench tables page.md\n",
    )  # fmt: skip
    assert "leads" not in page.read_text().replace("jq-bench: leads", "")
    assert processes.run("bench", "tables", "page.md", cwd=tmp_path).returncode == 0
    assert "nodes leads at all" in page.read_text()
    assert processes.run("bench", "tables", "page.md", "--check", cwd=tmp_path).returncode == 0


# -- what dies ---------------------------------------------------------------------------------


@pytest.mark.nightly("brings seven topologies up to kill one part of each: 100 s")
@pytest.mark.faults
@pytest.mark.timeout(400)
@pytest.mark.req("tq:EVAL")
def test_each_service_and_a_node_are_killed_and_what_they_take_is_counted(tmp_path: Path) -> None:
    ran = processes.run(
        "bench", "outages", "--rate", "20", "--seconds", "1.5", cwd=tmp_path, timeout=360
    )
    assert ran.returncode == 0, ran.stderr
    document = json.loads((tmp_path / "results" / "outages" / "outages.json").read_text())
    found = {one.killed: one for one in map(Outage.from_json, document["outages"])}
    assert set(found) == {part for parts in KILLED.values() for part in parts}
    for one in found.values():
        assert one.accepted == one.done + one.canceled + one.failed + one.open > 0
        assert sum(counts.total for counts in one.during.values()) > 0
    assert document["environment"]["place"] == RunPlace.PROCESSES
    # What the designs cannot do without that part.
    for part in ("gateway", "job"):
        assert found[part].answered() == 0, part
    assert found["queue"].answered(Method.SUBMIT) == 0
    assert found["queue"].answered(Method.STATUS) > 0
    for part in ("coordinator", "worker"):
        assert found[part].answered(Method.SUBMIT) > 0, part
        assert found[part].open > 0, part
    assert 0 < found["node-0"].answered() < 1
    assert 0 < found["node-0"].open < found["node-0"].accepted
