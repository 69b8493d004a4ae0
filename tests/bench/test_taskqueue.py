"""The load of the two designs: fair, and changed by options alone."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from bench.taskqueue import load
from bench.taskqueue.designs import DESIGNS, Plan
from bench.taskqueue.figures import Result, compare, figures
from bench.taskqueue.load import Measured
from bench.taskqueue.profile import Mix, Profile, add_options, profiles
from jobqueue import TaskQueueClient
from jobqueue.taskqueue import Deadlines
from jobqueue.topology.taskqueue.catalogue import SERVICES
from jobqueue.topology.taskqueue.together import design_b

HERE = Path(__file__).parents[2]


def read(*arguments: str) -> list[Profile]:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return profiles(parser.parse_args(arguments))


@pytest.mark.req("tq:NFR-2")
def test_options_change_the_load_without_a_change_of_code() -> None:
    assert [one.concurrency for one in read()] == [1, 8, 32]
    (one,) = read(
        "--concurrency=5", "--work-duration-ms=20", "--payload-size-bytes=100",
        "--mix=5/3/2/1", "--warm-up=0.5", "--seconds=2", "--listings=3",
    )  # fmt: skip
    assert one == Profile(5, 20, 100, Mix(5, 3, 2, 1), 0.5, 2.0, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        "--concurrency=0", "--concurrency=1,x", "--mix=1/1", "--mix=0/1/1", "--mix=a/b/c",
        "--seconds=0", "--seconds=nan", "--warm-up=-1", "--work-duration-ms=-1",
    ],
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused(
    wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(wrong)
    assert wrong.split("=", maxsplit=1)[0] in capsys.readouterr().err


@pytest.fixture(params=DESIGNS)
def plan(request: pytest.FixtureRequest) -> Plan:
    return DESIGNS[request.param]()


@pytest.mark.req("tq:FAIR", "tq:LOCK-2", "tq:NFR-6")
def test_both_designs_are_six_processes_with_six_slots(plan: Plan) -> None:
    assert len(plan.parts) == 6
    assert sum(part.slots for part in plan.parts) == 6
    if plan.gateway:
        assert [part.slots for part in plan.parts if part.service == "worker"] == [6]
    else:
        assert [part.slots for part in plan.parts] == [1] * 6


@pytest.mark.req("tq:FAIR")
def test_what_both_can_be_told_they_are_told_the_same() -> None:
    told = {
        name: {
            variable: value for part in make().parts for variable, value in part.environment.items()
        }
        for name, make in DESIGNS.items()
    }
    own = {"WORKER_ID", "WORKER_SLOTS"}
    shared = told["microservices"].keys() & told["nodes"].keys() - own
    assert {"RETRY_AFTER_MS", "HEARTBEAT_INTERVAL_MS", "WORKER_TIMEOUT_MS", "MAX_JOBS"} <= shared
    assert all(told["microservices"][one] == told["nodes"][one] for one in shared)


def test_no_service_is_told_by_chance(plan: Plan) -> None:
    for part in plan.parts:
        service = SERVICES[part.service]
        service.read(part.environment)
        assert {one.name for one in service.all_variables} == set(part.environment)
        assert part.environment.get("BIND_HOST", "127.0.0.1") == "127.0.0.1"


@pytest.mark.req("tq:NFR-3", "tq:NFR-2")
async def test_a_load_gives_rates_percentiles_and_times_to_the_end() -> None:
    profile = Profile(
        3, mix=Mix(2, 1, 1, 1), warm_up=0.3, seconds=1.5, listings=4, payload_size_bytes=10
    )
    unhurried = Deadlines(20, 20, 20, 20, 20)
    async with (
        design_b(nodes=2) as nodes,
        TaskQueueClient(nodes=nodes, deadlines=unhurried) as client,
    ):
        measured = await load.apply(client, profile)
    assert not measured.errors
    assert measured.unfinished == 0
    assert measured.jobs > 0
    assert measured.to_done
    answered = {method: len(taken) for method, taken in measured.latencies.items()}
    assert answered.pop("ListJobs") == 4
    assert all(answered.values())
    assert set(answered) == {"SubmitJob", "GetJobStatus", "GetJobResult", "CancelJob"}
    assert measured.requests_a_second == sum(answered.values()) / 1.5  # ListJobs is not in it
    names = {figure.what.partition(": ")[2]: figure for figure in figures(_result(measured))}
    assert names["requests"].unit == "req/s"
    assert names["jobs done"].unit == "jobs/s"
    for what in ("SubmitJob", "GetJobStatus", "GetJobResult", "CancelJob", "submit→done"):
        assert (
            names[f"{what} p50"].value <= names[f"{what} p95"].value <= names[f"{what} p99"].value
        )
    assert "ListJobs (apart) p99" in names


def _result(measured: Measured, design: str = "nodes") -> Result:
    return Result(design, Profile(3), measured)


def test_the_table_has_the_designs_side_by_side() -> None:
    fast = Measured({"SubmitJob": [1.0, 2.0]}, requests_a_second=500.0, to_done=[9.0])
    slow = Measured({"SubmitJob": [3.0]}, Counter({"SubmitJob UNAVAILABLE": 2}), 250.0)
    out = io.StringIO()
    compare("title", [_result(slow, "microservices"), _result(fast)], Console(file=out))
    lines = out.getvalue().splitlines()
    (requests,) = (line for line in lines if "requests" in line and "failed" not in line)
    assert requests.index("250 req/s") < requests.index("500 req/s")
    (failed,) = (line for line in lines if "failed requests" in line)
    assert failed.replace("│", " ").split()[-2:] == ["2", "0"]
    assert any("submit→done p99" in line and "9.00 ms" in line for line in lines)
    (one,) = {figure.conditions for figure in figures(_result(slow))}
    assert "failed: 2 SubmitJob UNAVAILABLE" in one


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.req("tq:NFR-2", "tq:NFR-3", "tq:FAIR")
def test_the_program_measures_both_designs_and_keeps_the_figures(tmp_path: Path) -> None:
    kept = tmp_path / "results" / "taskqueue.json"
    command = [
        sys.executable, "-m", "bench.taskqueue", "--concurrency=2", "--seconds=1",
        "--warm-up=0.2", "--calm=0", "--listings=2", f"--json={kept}",
    ]  # fmt: skip
    environment = {**os.environ, "RETRY_AFTER_MS": "nonsense"}  # ours is not theirs
    ran = subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=280
    )
    assert ran.returncode == 0, ran.stderr
    assert "microservices" in ran.stdout
    document = json.loads(kept.read_text())
    assert "cores" in document["conditions"]
    found = document["figures"]
    # Who has the file can do it again: the whole command stands at every figure.
    assert {f["command"] for f in found} == {f"make bench-taskqueue ARGS='{' '.join(command[3:])}'"}
    assert "bench-taskqueue:" in (HERE / "Makefile").read_text()
    for design in DESIGNS:
        (rate,) = (f for f in found if f["what"] == f"{design}, 2 callers: jobs done")
        assert rate["value"] > 0
        assert rate["unit"] == "jobs/s"
        assert "--concurrency=2" in rate["command"]
    conditions = {f["what"].split(",")[0]: f["conditions"].partition(" slots")[0] for f in found}
    assert conditions["microservices"] == conditions["nodes"]  # the same load
