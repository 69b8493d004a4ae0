"""jq-bench as a person calls it, with real topologies."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import yaml

from jobqueue.bench.cell import PRIMARY, Method
from jobqueue.bench.records import TO_DONE, RunRecord, histogram, read
from jobqueue.cli import bench as program
from jobqueue.cli.program import run_program
from jobqueue.fleet import state
from tests import patience
from tests.cli import processes
from tests.services.run import Run

SHORT = {
    "about": "for a test",
    "base": {"callers": 3, "mix": {"submit": 2, "status": 1, "result": 1, "cancel": 1}},
    "warm_up": 0.2,
    "listings": 2,
    "repetitions": 1,
    "calm": 0,
    "repeats": 0,
}


def bench(folder: Path, *arguments: str, **environment: str):
    return processes.run("bench", *arguments, cwd=folder, timeout=120, **environment)


def short(folder: Path, topologies: list[str]) -> str:
    # On a busy machine half a second may pass without an answer.
    times = {"seconds": 0.5, "job_seconds": 0.3, "drain": 15.0}
    stretched = {name: patience.stretched(seconds) for name, seconds in times.items()}
    document = {**SHORT, **stretched, "topologies": topologies}
    (folder / "short.yml").write_text(yaml.safe_dump(document))
    return "short.yml"


def closed(record: RunRecord) -> None:
    """The accounting of a record adds up."""
    for name, counts in record.counts.items():
        answered = histogram(record.latencies[name]).get_total_count()
        assert counts.ok <= answered <= counts.ok + sum(counts.soft.values())
    jobs = record.jobs
    assert jobs.submitted == record.counts[Method.SUBMIT].ok > 0
    assert jobs.submitted == jobs.ended + jobs.open
    assert record.requests_a_second == (
        sum(record.counts[one].total - record.counts[one].unfinished for one in PRIMARY)
        / record.seconds
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.req("tq:EVAL", "tq:FAIR", "tq:NFR-2", "tq:NFR-3", "tq:NFR-6")
def test_both_designs_are_measured_alike_and_shown_side_by_side(tmp_path: Path) -> None:
    name = short(tmp_path, ["microservices", "nodes"])
    # What the caller's environment says is not for the services.
    ran = bench(tmp_path, "run", name, "--set", "key_ratio=0.5", RETRY_AFTER_MS="nonsense")
    assert ran.returncode == 0, ran.stderr
    out = tmp_path / "results" / "short"
    made = {record.cell.topology: record for record in read([out])}
    assert set(made) == {"microservices", "nodes"}
    for record in made.values():
        closed(record)
        assert record.cell.slots == 6
        assert record.jobs.done > 0
        assert {*PRIMARY, TO_DONE, Method.LIST} == set(record.latencies)
        assert record.counts[TO_DONE].ok > 0
        assert record.counts[Method.LIST].total == 2
        assert len(record.machine.cpu) == 1 + 6  # the generator and the six
        assert all(record.machine.peak_bytes.values())
    one, other = made.values()
    assert (one.seed, one.cell.load) == (other.seed, other.cell.load)
    header = next(line for line in ran.stdout.splitlines() if "measure" in line)
    assert "microservices" in header
    assert "nodes" in header
    for measure in ("requests", "jobs done", "submit p50", "cancel p99", "submit→done p95",
                    "list (apart) p50", "failed requests"):  # fmt: skip
        assert measure in ran.stdout
    environment = json.loads((out / "environment.json").read_text())
    assert environment["machine"]["cores"] >= 1
    assert environment["commit"] == "abc1234"
    assert environment["command"] == f"jq-bench run {name} --set key_ratio=0.5"
    assert environment["profile"]["base"]["key_ratio"] == 0.5
    assert environment["generator_limit"]["requests_a_second"] > 0
    assert environment["generator_limit"]["over_grpc_requests_a_second"] > 0
    assert ran.stdout.splitlines()[-1] == "results/short/report.html"
    assert {one.name for one in out.iterdir()} == {
        "records.jsonl", "environment.json", "summary.csv", "report.html", "report.md", "plots",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_embedded_topology_is_measured_with_an_open_loop(tmp_path: Path) -> None:
    name = short(tmp_path, ["embedded"])
    ran = bench(tmp_path, "run", name, "--set", "rate=30", "--out", "kept")
    assert ran.returncode == 0, ran.stderr
    (record,) = read([tmp_path / "kept"])
    closed(record)
    assert record.cell.rate == 30
    assert record.machine.late_ms > 0
    assert record.jobs.done == histogram(record.latencies[TO_DONE]).get_total_count()
    again = bench(tmp_path, "run", name, "--out", "kept")
    assert again.returncode == 5
    assert "kept has the records of an earlier run" in again.stderr
    assert len(list(read([tmp_path / "kept"]))) == 1


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_run_that_is_terminated_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    name = short(tmp_path, ["embedded"])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = ("run", name, "--set", "seconds=600", "--out", "kept")
    with processes.Service("bench", *command, cwd=tmp_path, TMPDIR=str(scratch)) as run:
        run.line_with("embedded, repetition 1")
        (topology,) = scratch.glob("jq-bench-*/topology")
        up = state.read(topology)
        assert up.living
        assert run.stop(signal.SIGTERM) == 130
        patience.until(lambda: not up.living, "the processes of the topology ended")
    assert not list(scratch.glob("jq-bench-*"))


@pytest.mark.slow
@pytest.mark.req("tq:FAIR", "tq:NFR-6")
@pytest.mark.timeout(180)
def test_a_running_topology_is_measured_if_it_has_the_slots_of_the_profile(tmp_path: Path) -> None:
    name = short(tmp_path, ["embedded"])
    told = {"JQ_DB_URL": "memory://", "JQ_WORKER_CONCURRENCY": "3"}
    with processes.server(tmp_path, **told) as server:
        at = f"embedded={server.line('ready')['grpc']}"
        refused = bench(
            tmp_path, "run", name, "--at", at, "--set", "seconds=0.1", "--out", "refused"
        )
        assert refused.returncode == 5
        assert "embedded ran 3 jobs at once instead of 6" in refused.stderr
        assert not (tmp_path / "refused" / "records.jsonl").exists()
        ran = bench(tmp_path, "run", name, "--at", at, "--set", "slots=3", "--out", "kept")
        assert ran.returncode == 0, ran.stderr
    (record,) = read([tmp_path / "kept"])
    closed(record)
    assert set(record.machine.cpu) == {"generator"}
    assert any("runs elsewhere" in note for note in record.notes)


def test_what_is_wrong_is_said_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = short(tmp_path, ["microservices", "nodes"])
    for arguments, said in (
        (("run", "nothing"), "PROFILE: 'nothing' is unknown; allowed: "),
        (("run", name, "--topology", "node"), "--topology: 'node' is unknown; allowed: embedded"),
        (("run", name, "--set", "slots=7"), "slots: 7 cannot be shared equally"),
        (("run", name, "--at", "nodes"), "--at: 'nodes' is not TOPOLOGY=HOST:PORT"),
        (
            ("run", name, "--at", "nodes=127.0.0.1:1"),
            "--at: the address of microservices is missing",
        ),
        (("run", name, "--place", "containers"), "--compose: deploy/compose/microservices.yml"),
        (
            ("run", name, "--place", "containers", "--topology", "embedded"),
            "--place: jq-bench cannot start embedded in containers, only microservices and nodes",
        ),
        (("run", "recovery", "--place", "containers"), "--place: scenarios start their own"),
        (("run", "regress", "--at", "embedded=127.0.0.1:1"), "--at: scenarios start their own"),
    ):
        status = run_program(program.app, "jq-bench", arguments)
        shown = capfd.readouterr().err
        assert status == 2, shown
        assert said in shown
    assert not (tmp_path / "results").exists()


def test_without_its_packages_the_program_says_what_to_install(tmp_path: Path) -> None:
    folder = tmp_path / "python"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['hdrh'] = None\n")
    ran = bench(tmp_path, "profiles", PYTHONPATH=str(folder))
    assert ran.returncode == 4
    assert ran.stderr == (
        "error: jq-bench needs packages that are not installed: pip install 'jobqueue[bench]'\n"
    )
    assert bench(tmp_path, "--help", PYTHONPATH=str(folder)).returncode == 0


def test_the_shipped_profiles_are_listed(tmp_path: Path) -> None:
    shown = bench(tmp_path, "profiles")
    assert shown.returncode == 0, shown.stderr
    assert "parity" in shown.stdout
    listed = json.loads(bench(tmp_path, "profiles", "--output", "json").stdout)
    assert {"smoke", "parity", "latency", "scaling", "stream"} <= {one["name"] for one in listed}


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_postgresql_is_measured_with_rows_and_pressure(services: Run, tmp_path: Path) -> None:
    """With jobs there before, under a pinned transaction and under scans."""
    for needed in ("postgres", "redis"):
        services.own(needed, {})  # skips or fails where the programs are missing
    name = short(tmp_path, ["replicated"])
    sets = ("rows=2000", "pressure=pinned,scans", "slots=4")
    ran = bench(tmp_path, "run", name, *(part for one in sets for part in ("--set", one)))
    assert ran.returncode == 0, ran.stderr
    made = list(read([tmp_path / "results" / "short"]))
    assert {record.cell.pressure for record in made} == {"pinned", "scans"}
    for record in made:
        closed(record)
        assert record.machine.database["wal_bytes_a_job"] > 0
        assert "dead_rows" in record.machine.database
        assert record.machine.cpu["postgres"] > 0
