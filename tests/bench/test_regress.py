"""``regress``: losses are found, noise is not, and how surely is known."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from statistics import median

import pytest

from jobqueue.bench import pairs, records
from jobqueue.bench.cell import Cell, Method
from jobqueue.bench.measures import COST
from jobqueue.bench.regress import (
    ALL_CELLS,
    FALSE_ALARMS,
    FEWEST_PAIRS,
    WANTED,
    Comparison,
    compare,
    trimmed,
)
from jobqueue.cli import bench_report
from jobqueue.cli.bench_report import PAIRS
from jobqueue.cli.program import run_program
from jobqueue.core.errors import Conflict, InvalidArgument, Unavailable
from tests.bench import synthetic
from tests.bench.synthetic import NODES, Build, Noise

TRIALS = 120
ONE = [Cell("nodes", callers=16)]
CELLS = [Cell("nodes", callers=callers) for callers in (8, 32)]
# Assumed for two cores that are shared: rates differ by a tenth from run to run, processor time by
# a twenty-fifth, the minute of a pair moves both its runs by a tenth, and a run in twenty has a
# burst of somebody else's load.
NOISY = Noise()


def trial(seed: int, new: Build = NODES, noise: Noise = NOISY, count: int = PAIRS) -> Comparison:
    return compare(*synthetic.pairs(ONE, NODES, new, count, Random(seed), noise))


def share_of_losses(first_seed: int, new: Build) -> float:
    return sum(trial(first_seed + n, new).worse for n in range(TRIALS)) / TRIALS


def at_most(rate: float) -> float:
    """What a share over the trials stays below, if its true value is this rate: three sigmas."""
    return rate + 3 * math.sqrt(rate * (1 - rate) / TRIALS)


@pytest.fixture(scope="module")
def unchanged() -> list[Comparison]:
    """Comparisons of equal builds."""
    return [trial(seed) for seed in range(TRIALS)]


@pytest.fixture(scope="module")
def stated(unchanged) -> float:
    """The smallest detectable loss that such a comparison typically states."""
    return median(one.detectable for one in unchanged)


def test_the_default_number_of_pairs_shows_a_loss_of_15_percent(unchanged, stated):
    assert stated <= WANTED == 0.15
    costs = [row.detectable for one in unchanged for row in one.widest if row.measure is COST]
    assert median(costs) <= 0.08


def test_equal_builds_are_quiet(unchanged):
    alarms = sum(one.worse for one in unchanged) / TRIALS
    assert alarms <= at_most(FALSE_ALARMS)


def test_a_build_slowed_by_twice_the_stated_loss_is_caught(stated):
    """None of 120 is missed: with 95 % confidence fewer than 2.5 % are (the rule of three)."""
    assert share_of_losses(10_000, NODES.slowed(2 * stated)) == 1.0


def test_a_build_that_only_waits_longer_is_caught_by_its_rate(stated):
    slowed = replace(NODES.slowed(2 * stated), cpu_us=NODES.cpu_us)
    assert share_of_losses(20_000, slowed) >= 0.98


def test_a_build_that_only_burns_more_is_caught_by_its_processor_time(unchanged):
    cost = median(row.detectable for one in unchanged for row in one.widest
                  if row.measure is COST)  # fmt: skip
    slowed = replace(NODES, cpu_us=NODES.cpu_us * (1 + 2 * cost))
    assert share_of_losses(30_000, slowed) >= 0.98


def test_a_loss_in_one_cell_is_found_there():
    base, new = synthetic.pairs(CELLS, NODES, NODES, PAIRS, Random(5), NOISY)
    for one in new:
        if one.cell.callers == 32:
            one.machine.cpu = {part: spent * 1.6 for part, spent in one.machine.cpu.items()}
    found = {(row.cell, row.measure.name) for row in compare(base, new).lost}
    assert ("nodes, callers 32", "processor time per job") in found
    assert (ALL_CELLS, "processor time per job") in found
    assert not any("callers 8" in cell for cell, _ in found)


def test_a_faster_build_is_no_loss():
    found = trial(6, NODES.slowed(-0.4))
    assert not found.worse
    assert all(row.gained for row in found.rows)


def test_a_noisy_machine_says_how_many_pairs_it_needs():
    found = trial(7, noise=Noise(rate=0.5, cpu=0.3))
    assert not found.worse
    assert found.detectable > WANTED
    assert found.pairs_needed() > PAIRS


def test_one_burst_neither_raises_an_alarm_nor_hides_a_loss():
    dearer = replace(NODES, cpu_us=NODES.cpu_us * 1.25)
    for new, expected in ((NODES, False), (dearer, True)):
        runs = synthetic.pairs(ONE, NODES, new, PAIRS, Random(8), NOISY)
        hit = runs[0][0] if expected else runs[1][0]  # the side where it would mislead
        hit.machine.cpu = {part: spent * 50 for part, spent in hit.machine.cpu.items()}
        assert compare(*runs).worse is expected


def test_errors_are_a_loss_however_fast_they_are():
    base, new = synthetic.pairs(CELLS, NODES, NODES, PAIRS, Random(9), NOISY)
    for one in new:
        one.counts["submit"].errors = {"UNAVAILABLE": one.counts["submit"].ok // 10}
    assert compare(base, new).failures == ["nodes, callers 8", "nodes, callers 32"]
    assert not compare(new, new).worse  # BASE has them too


def test_disturbed_pairs_are_left_out_while_enough_are_calm():
    base, new = synthetic.pairs(CELLS, NODES, NODES, PAIRS, Random(10), NOISY)
    new[0].machine.disturbed = True
    found = compare(base, new)
    assert found.left_out == 1
    for one in new:
        one.machine.disturbed = True
    assert compare(base, new).left_out == 0


def test_an_open_loop_is_compared_by_its_times():
    cells = [Cell("nodes", rate=200.0, mix={Method.SUBMIT: 1})]
    base, new = synthetic.pairs(cells, NODES, NODES, FEWEST_PAIRS, Random(11), NOISY)
    for n, one in enumerate(base + new):
        typical = 10.0 if n < len(base) else 30.0
        one.latencies["submit→done"] = synthetic.times(Random(n), typical)
    found = compare(base, new)
    names = {row.measure.name for row in found.rows}
    assert names == {"processor time per job", "submit→done p50"}
    assert [row.measure.name for row in found.lost] == ["submit→done p50"]


def test_runs_that_were_not_side_by_side_are_refused():
    base, new = synthetic.pairs(CELLS, NODES, NODES, PAIRS, Random(12), NOISY)
    for one in new:
        one.began = (datetime.fromisoformat(one.began) + timedelta(days=1)).isoformat()
    with pytest.raises(InvalidArgument, match="not run in alternating pairs"):
        compare(base, new)


def test_few_pairs_and_no_pairs_are_refused():
    base, new = synthetic.pairs(CELLS, NODES, NODES, 4, Random(13), NOISY)
    with pytest.raises(InvalidArgument, match="4 pairs of a cell are too few"):
        compare(base, new)
    for one in new:
        one.repetition += 100
    with pytest.raises(InvalidArgument, match="has no run with the cell and repetition"):
        compare(base, new)
    with pytest.raises(InvalidArgument, match="has no run with the cell and repetition"):
        compare(base, [replace(one, seconds=1.0) for one in base])


def test_the_trimmed_mean_and_its_error_are_yuens():
    values = [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 1000.0]
    middle, error, degrees = trimmed(values)
    assert middle == 11.0
    # Winsorized: 4, 4, 6 … 18, 18, with a variance of 266/9; by (1 - 0.2) and the root of 10.
    assert error == pytest.approx(math.sqrt(266 / 9) / 0.8 / math.sqrt(10))
    assert degrees == 7


# ------------------------------------------------------------------------ the commands


def regress(base: Path, new: Path, *more: str) -> int:
    return run_program(bench_report.app, "jq-bench", ["regress", str(base), str(new), *more])


def test_the_command_fails_on_a_loss_only(tmp_path, capsys):
    for name, build in (("same", NODES), ("slow", NODES.slowed(0.5))):
        base, new = synthetic.pairs(CELLS, NODES, build, PAIRS, Random(14), NOISY)
        synthetic.write(tmp_path / name / "base", base)
        synthetic.write(tmp_path / name / "new", new)
    assert regress(tmp_path / "same" / "base", tmp_path / "same" / "new") == 0
    told = capsys.readouterr().out
    assert "no loss found" in told
    assert "smallest detectable loss of the whole build: " in told
    assert regress(tmp_path / "slow" / "base", tmp_path / "slow" / "new") == 1
    assert "LOSS: processor time per job, all cells: +" in capsys.readouterr().out
    assert regress(tmp_path / "slow" / "base", tmp_path / "slow" / "new", "-o", "json") == 1
    assert json.loads(capsys.readouterr().out)["loss"] is True
    assert regress(tmp_path / "slow" / "base", tmp_path / "none") == 4


STAND_IN = """\
#!{python}
# Stands for a Python whose jq-bench measures at once.
import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random

sys.path[:0] = {path}
from jobqueue.bench.cell import Cell
from tests.bench import synthetic

assert sys.argv[1:6] == ["-P", "-m", "jobqueue.cli.bench", "run", "regress"], sys.argv
if {fails}:
    sys.exit("error: it does not start")
out, seed = Path(sys.argv[sys.argv.index("--out") + 1]), sys.argv[-1].removeprefix("seed=")
made = synthetic.record(Cell("nodes"), synthetic.NODES, 1, Random({seed} + int(seed)),
                        timed=False, began=datetime.now(UTC))
synthetic.write(out, [made], {{"command": "jq-bench run regress"}})
"""


def stand_in(folder: Path, seed: int, fails: bool = False) -> Path:
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    text = STAND_IN.format(python=sys.executable, path=sys.path, fails=fails, seed=seed)
    python.write_text(text)
    python.chmod(0o755)
    return folder


def test_pairs_run_both_builds_in_turn(tmp_path, capsys):
    one, two = stand_in(tmp_path / "one", 1), stand_in(tmp_path / "two", 500)
    into = tmp_path / "out"
    args = ["pairs", str(one), str(two), "--into", str(into), "--pairs", "5"]
    assert run_program(bench_report.app, "jq-bench", args) == 0
    assert capsys.readouterr().out == f"jq-bench regress {into}/base {into}/new\n"
    base, new = list(records.read([into / "base"])), list(records.read([into / "new"]))
    assert [run.repetition for run in base] == [run.repetition for run in new] == [1, 2, 3, 4, 5]
    assert [b.began < n.began for b, n in zip(base, new, strict=True)] == [
        True, False, True, False, True,
    ]  # fmt: skip
    assert (into / "base" / "environment.json").exists()
    assert {path.name for path in into.iterdir()} == {"base", "new"}
    compare(base, new)
    with pytest.raises(Conflict, match="earlier run"):
        pairs.run(
            pairs.build("BASE", one), pairs.build("NEW", two), "regress", 5, into, lambda: None
        )


def test_a_build_that_does_not_run_ends_the_pairs(tmp_path):
    broken = pairs.build("BASE", stand_in(tmp_path / "broken", 1, fails=True))
    with pytest.raises(Unavailable, match=r"(?s)base: .*status 1\nerror: it does not start"):
        pairs.run(broken, broken, "regress", 5, tmp_path / "out", lambda: None)
    assert not (tmp_path / "out" / "base").exists()


def test_a_build_is_a_checkout_an_environment_or_a_python(tmp_path):
    (tmp_path / "src" / "jobqueue").mkdir(parents=True)
    found = pairs.build("BASE", tmp_path)
    assert found.environment()["PYTHONPATH"] == str(tmp_path.resolve() / "src")
    assert pairs.build("BASE", Path(sys.executable)).python == sys.executable
    with pytest.raises(InvalidArgument, match=r"NEW: .* is neither a checkout"):
        pairs.build("NEW", tmp_path / "src")
