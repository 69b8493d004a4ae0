"""Scenarios: named in profiles, kept as records, reported with intervals, compared by regress."""

from __future__ import annotations

import csv
import inspect
import json
import re
import shlex
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from jobqueue.bench.cell import Cell
from jobqueue.bench.measures import measured
from jobqueue.bench.profile import load, shipped
from jobqueue.bench.records import Figure, RunRecord, read
from jobqueue.bench.regress import FEWEST_PAIRS, compare
from jobqueue.bench.report.writing import write
from jobqueue.bench.scenarios.catalogue import SCENARIOS
from jobqueue.bench.table import scenarios
from jobqueue.cli import bench as bench_program
from jobqueue.cli import bench_report
from jobqueue.cli.program import run_program
from jobqueue.core.errors import InvalidArgument
from tests.bench import synthetic
from tests.bench.test_jq_bench import bench
from tests.services.run import Run

ROOT = Path(__file__).parents[2]
FIVE = ("drain", "direct", "batch", "calls", "latency")
EVERY = [one for some in SCENARIOS.values() for one in some.values()]
PAIRS = 12


def measurement(name: str, repetition: int, *figures: Figure, order: int = 0) -> RunRecord:
    """A run of a scenario."""
    began = synthetic.BEGAN + timedelta(seconds=order)
    return RunRecord(
        profile="synthetic", cell=Cell("replicated", scenario=name), repetition=repetition,
        order=order, seed=repetition, began=began.isoformat(), warm_up=0.0, seconds=0.0,
        figures=list(figures), sizes={"jobs": 10},
    )  # fmt: skip


def sides(factor: float) -> tuple[list[RunRecord], list[RunRecord]]:
    """Alternating pairs of the five; the drain of NEW is so many times as fast."""
    random, order = Random(3), 0
    made: tuple[list[RunRecord], list[RunRecord]] = ([], [])
    for repetition in range(1, PAIRS + 1):
        for side in (0, 1) if repetition % 2 else (1, 0):
            for name in FIVE:
                order += 1
                value = 1_000.0 * random.lognormvariate(0, 0.02)
                value *= factor if side and name == "drain" else 1.0
                unit = "ms" if name == "latency" else "jobs/s"
                figures = [Figure(f"{name} figure", value, unit)]
                figures.append(Figure(f"{name} p99", 1_000.0 ** random.random(), "ms"))
                made[side].append(measurement(name, repetition, *figures, order=order))
    return made


@pytest.mark.parametrize("one", EVERY, ids=lambda one: f"{one.topology}-{one.name}")
def test_every_scenario_has_its_measurement(one) -> None:
    pytest.importorskip("asyncpg")
    pytest.importorskip("confluent_kafka")
    measure = one.measure()
    assert inspect.iscoroutinefunction(measure)
    assert list(inspect.signature(measure).parameters) == ["stand"]


def test_every_scenario_is_in_a_shipped_profile() -> None:
    named = {(one.topology, one.name) for name in shipped() for one in load(name).chosen()}
    assert named == {(one.topology, one.name) for one in EVERY}


def test_regress_measures_drain_direct_batch_calls_and_latency() -> None:
    assert {one.name for one in load("regress").chosen()} == set(FIVE)


def test_the_commands_of_kept_results_can_be_run() -> None:
    """``make bench-NAME ARGS='--only PART'`` is ``jq-bench run NAME --only PART``."""
    found = 0
    for file in (ROOT / "results").glob("*.json"):
        for figure in json.loads(file.read_text())["figures"]:
            words = shlex.split(figure.get("command", "make"))
            if words[1:] and words[1] in ("bench-replicated", "bench-recovery", "bench-streaming"):
                profile, options = words[1].removeprefix("bench-"), words[2].removeprefix("ARGS=")
                parts = options.split()[1::2]
                assert load(profile).with_({}, (), parts).runs, figure
                found += 1
    assert found
    made = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"jq-bench run (\w+)", made)) == {
        "embedded", "parity", "choosing", "replicated", "recovery", "streaming",
    }  # fmt: skip


def test_sizes_are_set_and_a_scenario_that_the_profile_leaves_out_can_be_named() -> None:
    profile = load("replicated").with_({"jobs": 7, "repetitions": 2}, (), ["pinned", "drain"])
    assert [one.name for one in profile.chosen()] == ["pinned", "drain"]
    assert profile.all_sizes().jobs == 7
    assert profile.runs == 4
    regress = load("regress").with_({}, ["embedded"])
    assert not regress.chosen()
    assert [one.topology for one in regress.shapes()] == ["embedded"]


@pytest.mark.parametrize(
    ("settings", "only", "said"),
    [
        ({}, ["drian"], "'drian' is not a scenario of profile .*; allowed: batch"),
        ({"jobs": 0}, [], r"sizes: .*jobs"),
        ({"job": 1}, [], "unknown factor 'job'; allowed: .*jobs"),
    ],
)
def test_what_no_scenario_takes_is_refused(settings, only, said) -> None:
    with pytest.raises(InvalidArgument, match=said):
        load("replicated").with_(settings, (), only)
    with pytest.raises(InvalidArgument, match=r"'drain' is not a scenario of .* has no"):
        load("parity").with_({}, (), ["drain"])


def test_figures_are_reported_with_their_intervals_and_targets(tmp_path: Path) -> None:
    how = "100 jobs, 1 server"
    made = [
        measurement("drain", n, Figure("drain rate", rate, "jobs/s", 25_000, how), order=n)
        for n, rate in enumerate((20_000.0, 22_000.0, 24_000.0), 1)
    ]
    made[0].machine.disturbed = True  # left out
    folder = synthetic.write(tmp_path, made)
    assert list(read([folder])) == made
    (one,) = measured(made)
    assert (one.value.mean, one.value.count, one.met) == (23_000.0, 2, False)
    console = Console(width=200)
    with console.capture() as shown:
        console.print(scenarios(made))
    assert "23,000 jobs/s" in shown.get()
    assert "≥ 25,000 ✗" in shown.get()
    write([folder], folder)
    text = (folder / "report.md").read_text()
    assert text.startswith("# Scenarios of replicated (profile synthetic)\n\n## Scenarios\n")
    assert "Provisional" not in text
    assert text.index("23,000 (") < text.index("## Conditions")
    assert how in text
    assert "23,000 (" in text
    assert "≥ 25,000, missed" in text
    rows = list(csv.DictReader((folder / "summary.csv").read_text().splitlines()))
    assert [(row["scenario"], row["measure"], row["mean"]) for row in rows] == [
        ("drain", "drain rate", "23000")
    ]


def test_regress_compares_figures_pair_by_pair() -> None:
    found = compare(*sides(1.0))
    assert not found.worse
    assert {row.cell for row in found.rows} == {f"replicated {name}" for name in FIVE}
    assert not any(row.measure.name.endswith("p99") for row in found.rows)
    lost = compare(*sides(0.8)).lost
    assert [(row.cell, row.measure.name) for row in lost] == [("replicated drain", "drain figure")]
    base, new = sides(1.0)
    other = [replace(one, sizes={"jobs": 20}) for one in new]
    with pytest.raises(InvalidArgument, match="has no run with the cell and repetition"):
        compare(base, other)
    assert PAIRS >= FEWEST_PAIRS


def test_regress_says_the_interval_of_each_ratio(tmp_path: Path, capsys) -> None:
    base, new = sides(0.8)
    folders = [synthetic.write(tmp_path / "base", base), synthetic.write(tmp_path / "new", new)]
    assert run_program(bench_report.app, "jq-bench", ["regress", *map(str, folders)]) == 1
    line = next(one for one in capsys.readouterr().out.splitlines() if "replicated drain" in one)
    assert re.search(r" 0\.[78]\d\d +0\.\d{3} to 0\.\d{3} +9\d\.\d% ", line)
    assert run_program(bench_report.app, "jq-bench", ["regress", *map(str, folders), "-o", "json"])
    rows = {row["cell"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    ratio, low, high = rows["replicated drain"]["ratio"]
    assert low < ratio < high < 0.9
    assert rows["replicated direct"]["ratio"][1] < 1 < rows["replicated direct"]["ratio"][2]


def test_what_a_scenario_says_over_and_over_is_told_now_and_then(capsys) -> None:
    lines = bench_program._Lines()
    lines.begin(2)
    for seconds in range(100):
        lines.doing(f"replicated, repetition 1: pinned: {seconds} s")
    lines.doing("replicated, repetition 2: pinned: 0 s")
    assert capsys.readouterr().err.splitlines() == [
        "0/2 runs: replicated, repetition 1: pinned: 0 s",
        "0/2 runs: replicated, repetition 2: pinned: 0 s",
    ]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_scenarios_are_measured_on_servers_of_their_own(services: Run, tmp_path: Path) -> None:
    for needed in ("postgres", "redis"):
        services.own(needed, {})  # skips or fails where the programs are missing
    # Enough for PostgreSQL to use more than a tick of the processor's clock.
    sets = ("jobs=6000", "repetitions=2", "calm=0", "repeats=0", "latency_jobs=10")
    options = [part for one in sets for part in ("--set", one)]
    only = ("--only", "direct", "--only", "latency")
    ran = bench(tmp_path, "run", "replicated", *only, *options, "--strict", "--out", "kept")
    assert ran.returncode in (0, 1), ran.stderr
    made = list(read([tmp_path / "kept"]))
    assert sorted((one.cell.scenario, one.repetition) for one in made) == [
        ("direct", 1), ("direct", 2), ("latency", 1), ("latency", 2),
    ]  # fmt: skip
    assert [one.order for one in made] == [1, 2, 3, 4]
    for one in made:
        assert one.sizes["jobs"] == 6000
        (used,) = one.machine.cpu.values()
        assert used > 0
        assert "PostgreSQL" in one.figures[0].how
        assert all(figure.value > 0 and figure.how for figure in one.figures)
    assert (ran.returncode == 0) == all(one.met for one in measured(made))
    environment = json.loads((tmp_path / "kept" / "environment.json").read_text())
    assert environment["services"]["fsync"] == "on"
    assert "drain, jq-worker on the store" in ran.stdout
    assert "submit→start p50" in (tmp_path / "kept" / "report.md").read_text()
