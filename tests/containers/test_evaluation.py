"""The comparison of document 000 in containers, as one command makes it from the compose files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jobqueue.bench.cell import PRIMARY, RunPlace
from jobqueue.bench.records import TO_DONE, RunRecord, read
from jobqueue.taskqueue.designs import catalogue
from tests.containers.engine_images import ROOT, docker, environment

SMALL = {
    "about": "for a test",
    "topologies": ["microservices", "nodes"],
    "base": {"callers": 4, "mix": {"submit": 2, "status": 1, "result": 1, "cancel": 1}},
    "cells": [{"key_ratio": [0.0, 1.0]}],
    "warm_up": 0.5,
    "seconds": 2.0,
    "job_seconds": 1.0,
    "listings": 2,
    "drain": 15.0,
    "repetitions": 1,
    "calm": 0,
    "repeats": 0,
}
PARTS = {
    "microservices": {service.name for service in catalogue.DESIGN_A},
    "nodes": {f"node-{number}" for number in range(6)},
}


@pytest.fixture(scope="module")
def kept(engine: str, images: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one command has left what it measured."""
    folder = tmp_path_factory.mktemp("evaluation")
    (folder / "small.yml").write_text(yaml.safe_dump(SMALL))
    out = folder / "results"
    ran = subprocess.run(
        [sys.executable, "-m", "jobqueue.cli.bench", "run", str(folder / "small.yml"),
         "--place", "containers", "--out", str(out)],
        cwd=ROOT,
        env=environment(engine),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    print(ran.stderr)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == str(out / "report.html")
    return out


@pytest.fixture(scope="module")
def made(kept: Path) -> list[RunRecord]:
    return list(read([kept]))


@pytest.mark.req("tq:NFR-4", "tq:EVAL")
def test_one_command_measures_both_designs_in_their_compose_files(made: list[RunRecord]) -> None:
    assert {(one.cell.topology, one.cell.key_ratio) for one in made} == {
        (design, ratio) for design in PARTS for ratio in (0.0, 1.0)
    }
    for record in made:
        assert record.cell.place is RunPlace.CONTAINERS
        assert record.cell.slots == 6
        assert record.jobs.done > 0
        assert record.jobs.submitted == record.counts["submit"].ok
        assert record.jobs.submitted == record.jobs.ended + record.jobs.open
        assert {*PRIMARY, TO_DONE, "list"} == set(record.latencies)


@pytest.mark.req("tq:NFR-4", "tq:FAIR")
def test_both_designs_get_the_same_requests_in_containers(made: list[RunRecord]) -> None:
    for ratio in (0.0, 1.0):
        one, other = (record for record in made if record.cell.key_ratio == ratio)
        assert (one.seed, one.cell.load) == (other.seed, other.cell.load)


@pytest.mark.req("tq:NFR-4")
def test_each_container_is_accounted_for(made: list[RunRecord]) -> None:
    for record in made:
        parts = PARTS[record.cell.topology]
        assert record.machine.cpu.keys() == parts | {"generator"}
        assert all(spent > 0 for spent in record.machine.cpu.values())
        assert record.machine.peak_bytes.keys() == parts | {"generator"}
        assert all(held > 2**20 for held in record.machine.peak_bytes.values())


@pytest.mark.req("tq:NFR-4")
def test_the_report_says_which_image_and_limits_were_measured(kept: Path) -> None:
    told = json.loads((kept / "environment.json").read_text())
    assert told["place"] == "containers"
    assert told["containers"]["jobqueue-taskqueue:latest was built from commit"] != "unknown"
    for design in PARTS:
        assert told["containers"][f"limits of each container of {design}"] == (
            "1.0 cores, 256m memory"
        )
    assert "1.0 cores, 256m memory" in (kept / "report.html").read_text()


@pytest.mark.req("tq:NFR-4")
@pytest.mark.usefixtures("kept")
def test_nothing_is_left_of_the_measured_containers(engine: str) -> None:
    chosen = ("--all", "--format", "{{.Names}}")
    assert "jq-bench-" not in docker(engine, "ps", *chosen)
    assert "jq-bench-" not in docker(engine, "network", "ls", "--format", "{{.Name}}")


@pytest.mark.usefixtures("images")
def test_an_image_that_is_not_there_is_named_before_anything_starts(
    engine: str, tmp_path: Path
) -> None:
    for design in PARTS:
        text = (ROOT / f"deploy/compose/{design}.yml").read_text()
        (tmp_path / f"{design}.yml").write_text(text.replace("-taskqueue:latest", "-nowhere:1"))
    ran = subprocess.run(
        [sys.executable, "-m", "jobqueue.cli.bench", "run", "parity",
         "--place", "containers", "--compose", str(tmp_path)],
        cwd=tmp_path,
        env={**environment(engine), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 4, ran.stderr
    assert "image jobqueue-nowhere:1" in ran.stderr
    assert "make images" in ran.stderr
    assert not (tmp_path / "results").exists()
