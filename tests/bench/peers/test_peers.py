"""``jq-bench peers``: how it speaks with peers, what it makes of their figures."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from jobqueue.bench.intervals import Interval
from jobqueue.bench.peers import conversation, environments
from jobqueue.bench.peers.catalogue import (
    ADAPTERS,
    SYSTEMS,
    Backing,
    Durability,
    Fsync,
    Kept,
    PeerSetting,
    PeerSetup,
    System,
)
from jobqueue.bench.peers.conversation import AdapterFailed, adapter
from jobqueue.bench.peers.environments import CannotInstall, Environments, cache_folder
from jobqueue.bench.peers.run import PeerComparison, PeerRun, PeerWork, planned, setups, with_bases
from jobqueue.bench.peers.table import MEASURES, WIDTH, PeerRow, absences, as_text, failures, rows
from jobqueue.cli import bench_peers
from jobqueue.cli.program import run_program
from jobqueue.fleet.backing import find_postgres, find_redis
from tests import patience

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
KEPT = Kept("as it is", "keeps nothing", "a dead worker's job is lost")
DEFAULT = PeerSetup(PeerSetting.DEFAULT)
TINY = PeerWork(jobs=20, workers=2, paced=3, every=0.001, callers=4, submitting=60, draining=60)
PEERS = [system for system in SYSTEMS if not system.is_ours]


def fake(name: str, backing: Backing = Backing.SQLITE) -> System:
    return System(name, backing, KEPT, KEPT, adapters=HERE)


class InThisOne(Environments):
    """The fake peers need no environment of their own."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))

    def has(self, pins: Path) -> bool:
        return True

    def python(self, pins: Path) -> Path:
        return Path(sys.executable)


def talk(tmp_path: Path, name: str, **more: str):
    told = {
        "BENCH_URL": f"sqlite:///{tmp_path}/queue",
        "BENCH_SETTING": "default",
        "BENCH_WORKERS": "2",
        "BENCH_MARKS": str(tmp_path / "marks"),
        **more,
    }
    return adapter(Path(sys.executable), f"with_{name}", HERE, told, tmp_path / "log")


def processes_of(session: int) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[3]) == session and words[0] != "Z":
                found.append(folder.name)
    return found


# ---------------------------------------------------------------------- the conversation


def test_adapter_answers_every_question(tmp_path):
    with talk(tmp_path, "fake") as peer:
        assert peer.version == "1.0"
        assert peer.ask("start", within=60) == {"processes": 2, "slots": 2}
        latency = peer.ask("latency", jobs=3, every=0.001, seconds=60)
        pairs = list(zip(latency["started_ms"], latency["done_ms"], strict=True))
        assert len(pairs) == 3
        assert all(0 < started <= done for started, done in pairs)
        peer.ask("pause")
        ran = (tmp_path / "marks").stat().st_size
        submitted = 1  # by the pause itself
        for asked in (
            {"do": "single", "jobs": 5},
            {"do": "together", "jobs": 10, "callers": 4},
            {"do": "batch", "jobs": 30},
        ):
            answer = peer.ask(**asked, seconds=60)
            assert answer["jobs"] == asked["jobs"]
            assert answer["seconds"] > 0
            submitted += answer["jobs"]
        assert (tmp_path / "marks").stat().st_size == ran, "a paused worker ran jobs"
        drained = peer.ask("drain", seconds=60)
        assert (drained["jobs"], drained["again"]) == (submitted, 0)


def test_steps_end_when_their_time_is_up(tmp_path):
    with talk(tmp_path, "fake") as peer:
        peer.ask("start", within=60)
        peer.ask("pause")
        assert peer.ask("single", jobs=10**9, seconds=0.05)["jobs"] < 10**9


def test_nothing_is_left_behind(tmp_path):
    with talk(tmp_path, "fake") as peer:
        peer.ask("start", within=60)
        peer.ask("pause")
        session = peer.pid
        assert len(processes_of(session)) == 3
    assert processes_of(session) == []


def test_workers_of_a_killed_adapter_are_ended(tmp_path):
    with talk(tmp_path, "fake") as peer:
        peer.ask("start", within=60)
        session = peer.pid
        os.kill(session, signal.SIGKILL)
        with pytest.raises(AdapterFailed, match="ended without an answer"):
            peer.ask("pause")
        assert processes_of(session) != []
    patience.until(lambda: processes_of(session) == [], "the workers have ended")


def test_what_a_library_writes_is_no_answer_but_the_last_words(tmp_path):
    with pytest.raises(AdapterFailed, match="Segmentation fault"), talk(tmp_path, "loud"):
        pass


def test_adapter_that_hangs_is_ended_when_its_time_is_up(tmp_path, monkeypatch):
    monkeypatch.setattr(conversation, "_MARGIN", 0.1)
    with talk(tmp_path, "fake") as peer:
        session = peer.pid
        os.kill(session, signal.SIGSTOP)
        with pytest.raises(AdapterFailed, match=r"start: no answer within 0 s; .*last line"):
            peer.ask("start")
    assert processes_of(session) == []


def test_busy_adapter_is_ended_at_once_when_its_answer_is_of_no_use(tmp_path):
    with contextlib.suppress(KeyboardInterrupt), talk(tmp_path, "fake") as peer:
        session = peer.pid
        peer.ask("start", within=60)
        began = time.monotonic()
        asked = {"do": "latency", "jobs": 1_000, "every": 1, "seconds": 60}
        peer._process.stdin.write(json.dumps(asked) + "\n")
        peer._process.stdin.flush()
        raise KeyboardInterrupt
    assert time.monotonic() - began < conversation._ENDING
    patience.until(lambda: processes_of(session) == [], "the workers have ended")


def test_slots_that_a_peer_cannot_have_are_told(tmp_path):
    with (
        pytest.raises(AdapterFailed, match="a worker process runs one job at a time"),
        talk(tmp_path, "fake", BENCH_SLOTS="8"),
    ):
        pass


def test_adapter_that_cannot_start_is_told_with_its_last_words(tmp_path):
    with pytest.raises(AdapterFailed, match=r"libfast\.so is missing"), talk(tmp_path, "absent"):
        pass


def test_unknown_question_is_an_error_and_the_next_is_answered(tmp_path):
    with talk(tmp_path, "fake") as peer:
        with pytest.raises(AdapterFailed, match="sing"):
            peer.ask("sing")
        assert peer.ask("single", jobs=1, seconds=60)["jobs"] == 1


# ------------------------------------------------------------------------ the comparison


def test_each_repetition_turns_the_order_round():
    one, two = fake("fake"), fake("lame")
    plan = planned([one, two], [DEFAULT], 3)
    assert [(system.name, number) for system, _, number in plan] == [
        ("fake", 0), ("lame", 0), ("lame", 1), ("fake", 1), ("fake", 2), ("lame", 2),
    ]  # fmt: skip


def test_jobqueue_comes_with_what_is_compared():
    celery = next(system for system in SYSTEMS if system.name == "celery")
    assert [one.label for one in with_bases([celery], SYSTEMS)] == ["jobqueue on Redis", "celery"]
    assert with_bases(SYSTEMS, SYSTEMS) == list(SYSTEMS)


def test_a_peer_that_fails_is_one_line_and_not_the_end():
    plan = planned([fake("lame"), fake("absent"), fake("fake")], [DEFAULT], 2)
    runs = list(PeerComparison(TINY, InThisOne(), seconds=600).runs(plan))
    assert [(run.system.name, bool(run.failed)) for run in runs] == [
        ("lame", True), ("absent", True), ("fake", False), ("fake", False),
    ]  # fmt: skip
    lame, absent = failures(runs)
    assert absences(runs, 2) == []
    assert absences(runs[-1:], 3) == [
        "fake, default, repetition 2: 2 of 3 worker processes took part"
    ]
    assert "no such setting: speed" in lame
    assert "libfast.so is missing" in absent
    assert len(rows(runs)) == 1


class Offline(Environments):
    """Nothing can be downloaded."""

    tried = 0

    def has(self, pins: Path) -> bool:
        return False

    def python(self, pins: Path) -> Path:
        self.tried += 1
        raise CannotInstall("cannot install celery: no network")


def test_a_peer_that_cannot_be_installed_is_tried_once(tmp_path):
    offline = Offline(tmp_path)
    said: list[str] = []
    comparison = PeerComparison(TINY, offline, seconds=600)
    comparison.install(PEERS[:1], said.append)
    runs = list(comparison.runs(planned(PEERS[:1], setups(list(PeerSetting), ()), 2)))
    assert said == ["installing celery"]
    assert [run.failed for run in runs] == ["cannot install celery: no network"] * 2
    assert offline.tried == 1


def test_no_run_begins_after_the_time_is_up():
    comparison = PeerComparison(TINY, InThisOne(), seconds=-1)
    assert list(comparison.runs(planned([fake("fake")], [DEFAULT], 1))) == []
    assert comparison.cut_short


# -------------------------------------------------------------------------------- the table


def run_of(system: System, rate: float, ms: float, repetition: int = 0, **more) -> PeerRun:
    run = PeerRun(system, DEFAULT, repetition, 0, version="9", slots=2, **more)
    run.rates = {"drain": {"jobs": rate, "seconds": 1.0}}
    run.started_ms, run.done_ms = [ms], [2 * ms]
    return run


OURS = fake("jobqueue", Backing.REDIS)
THEIRS = fake("fake", Backing.REDIS)


def text(runs: list[PeerRun], fsync: Fsync = Fsync.NEVER) -> list[str]:
    return list(as_text(rows(runs), fsync))


def ratio_of(row: PeerRow, name: str) -> Interval:
    ratio = row.cells[name].ratio
    assert ratio is not None
    return ratio


def test_ratio_says_how_many_times_as_fast_as_jobqueue():
    ours, theirs = rows([run_of(OURS, 1_000, 2), run_of(THEIRS, 250, 1)])
    assert ratio_of(ours, "drain").mean == 1
    assert ratio_of(theirs, "drain").mean == 0.25
    assert ratio_of(theirs, "start_p50").mean == 2  # half the time
    assert theirs.cells["done_p50"].value.mean == 2
    assert "single" not in theirs.cells


def test_ratio_compares_runs_of_the_same_repetition():
    runs = [
        *(run_of(OURS, 1_000, 1), run_of(THEIRS, 500, 1)),
        *(run_of(THEIRS, 50, 1, 1), run_of(OURS, 100, 1, 1)),  # the machine was slower
        *(run_of(OURS, 1_000, 1, 2), run_of(THEIRS, 500, 1, 2)),
    ]
    row = rows(runs)[1]
    ratio = ratio_of(row, "drain")
    assert (ratio.mean, ratio.low, ratio.high) == (0.5, 0.5, 0.5)
    assert (row.cells["drain"].value.high or 0) > 500, "the rates themselves differ"


def test_each_cell_has_its_interval_over_the_repetitions():
    runs = [run_of(OURS, 1_000, 1, n) for n in range(3)]
    runs += [run_of(THEIRS, rate, 1, n) for n, rate in enumerate((400, 500, 600))]
    ratio = ratio_of(rows(runs)[1], "drain")
    assert ratio.low == pytest.approx(0.5 - 4.303 * 0.1 / 3**0.5, abs=1e-3)
    (shown,) = (line for line in text(runs) if line.startswith("fake 9"))
    assert shown.split()[2:] == ["2", "-", "-", "-", "0.50±.25", *["1.00±.00"] * 3]


def test_once_measured_is_shown_without_an_interval():
    assert not any("±" in line for line in text([run_of(OURS, 1_000, 2), run_of(THEIRS, 250, 1)]))


def test_without_jobqueue_on_the_same_server_there_is_no_ratio():
    runs = [run_of(fake("fake", Backing.POSTGRES), 100, 1)]
    assert rows(runs)[0].cells["drain"].ratio is None
    assert any(line.split() == ["-"] * 3 + ["100", "1.00", "1.00", "2.00"] for line in text(runs))


def test_base_is_of_the_same_slots():
    wide = PeerSetup(PeerSetting.DEFAULT, 64)
    ours, theirs, more = run_of(OURS, 1_000, 1), run_of(THEIRS, 500, 1), run_of(THEIRS, 100, 1)
    more.setup = wide
    made = rows([ours, theirs, more])
    assert [row.setup for row in made] == [DEFAULT, DEFAULT, wide]
    assert made[2].cells["drain"].ratio is None


def test_table_has_each_server_by_itself_and_says_what_is_kept():
    other = fake("fake", Backing.POSTGRES)
    shown = text([run_of(OURS, 1_000, 2), run_of(other, 100, 1), run_of(THEIRS, 2_500, 4)])
    told = [line for line in shown if "SETTINGS" in line or line.startswith(("jobqueue", "fake"))]
    assert [line.split()[0] for line in told] == [
        *("POSTGRESQL,", "fake", "REDIS,", "jobqueue", "fake"),
    ]
    joined = " ".join(line.strip() for line in shown)
    assert "keeps nothing; a dead worker's job is lost; a crash of the server loses all" in joined
    assert "is lost; a crash of the server loses nothing" in joined  # PostgreSQL


@pytest.mark.parametrize("mean", [0.0123, 0.5, 7.25, 31.4, 420.0, 5_230.0, 41_800.0, 212_345.0])
@pytest.mark.parametrize("spread", [0.0, 0.05, 1.5])
def test_table_is_as_wide_as_it_says_and_its_columns_stay_apart(mean, spread):
    runs = [run_of(OURS, 1_000, 1, n) for n in range(3)]
    for n, factor in enumerate((1 - spread / 2, 1, 1 + spread / 2)):
        run = run_of(THEIRS, mean * factor, mean * factor, n)
        run.rates = dict.fromkeys(("single", "together", "batch", "drain"), run.rates["drain"])
        runs.append(run)
    shown = text(runs)
    assert max(map(len, shown)) <= WIDTH
    (at,) = (n for n, line in enumerate(shown) if line.startswith("fake 9"))
    assert len(shown[at].split()) == 3 + len(MEASURES)
    assert len(shown[at + 1].split()) == len(MEASURES)


def test_slots_that_were_asked_for_stand_over_the_column():
    run = run_of(OURS, 1_000, 1)
    run.setup = PeerSetup(PeerSetting.FASTEST, 1_024)
    head, below = text([run])[:2]
    assert head.startswith("REDIS, FASTEST SETTINGS ")
    assert below.startswith("1024 SLOTS ")
    assert len(head) <= WIDTH


def test_disturbed_runs_are_marked():
    shown = text([run_of(OURS, 1_000, 2, others=0.4), run_of(THEIRS, 250, 1, others=0.1)])
    assert [line.split()[1] for line in shown if line.startswith(("jobq", "fake"))] == ["9†", "9"]


def test_durability_is_that_of_the_server_as_it_is_set():
    by_name = {one.name: one for one in SYSTEMS if one.backing is not Backing.SQLITE}
    celery, pgqueuer = by_name["celery"], by_name["pgqueuer"]
    fastest = PeerSetting.FASTEST
    assert [celery.durability(fastest, fsync) for fsync in Fsync] == [
        *(Durability.ALL, Durability.LAST_SECOND, Durability.NOTHING),
    ]
    assert pgqueuer.durability(PeerSetting.DEFAULT, Fsync.NEVER) is Durability.NOTHING
    assert pgqueuer.durability(fastest, Fsync.ALWAYS) is Durability.ALL


# ----------------------------------------------------------------------------- environments


def test_missing_environment_is_told_when_nothing_may_be_installed(tmp_path):
    with pytest.raises(CannotInstall, match=r"celery is not in .*--no-install"):
        Environments(tmp_path, install=False).python(PEERS[0].pins)
    assert list(tmp_path.iterdir()) == []


def test_environment_that_was_not_completed_is_made_anew(tmp_path, monkeypatch):
    asked = []

    def run(command, name):
        asked.append("venv" if "venv" in command else "pip")
        if asked[-1] == "venv":
            folder.mkdir()  # fails where an earlier one was left
        if asked == ["venv", "pip"]:
            raise CannotInstall("no network")

    monkeypatch.setattr(environments, "_run", run)
    known = Environments(tmp_path)
    (tmp_path / "pins").mkdir()
    pins = tmp_path / "pins" / "thing.txt"
    pins.write_text("thing==1\n")
    folder = tmp_path / f"thing-{environments._stamp(pins)}"
    with pytest.raises(CannotInstall, match="no network"):
        known.python(pins)
    assert known.python(pins) == known.python(pins) == folder / "bin/python"
    assert asked == ["venv", "pip", "venv", "pip"]


def test_reason_of_a_failed_installation_is_one_line():
    script = "print('looking'); print('ERROR: no such package'); print('hint'); raise SystemExit(1)"
    with pytest.raises(CannotInstall) as caught:
        environments._run([sys.executable, "-c", script], "thing")
    assert caught.value.message == "cannot install thing: ERROR: no such package"


def test_index_that_cannot_be_reached_is_the_reason():
    script = (
        "print('WARNING: Retrying (Retry(total=4)) after connection broken');"
        "print('ERROR: No matching distribution found for thing'); raise SystemExit(1)"
    )
    with pytest.raises(CannotInstall, match="pip cannot reach its index of packages"):
        environments._run([sys.executable, "-c", script], "thing")


@pytest.mark.parametrize("system", PEERS, ids=lambda system: system.name)
def test_peers_are_pinned_and_know_nothing_of_jobqueue(system):
    pins = system.pins.read_text()
    assert "://" not in pins
    assert re.search(rf"^{system.name}(\[.+\])?==", pins, re.MULTILINE)
    entries = [line for line in pins.splitlines() if "==" in line]
    assert pins.count("--hash=sha256:") >= len(entries)
    assert "jobqueue" not in (ADAPTERS / f"{system.module}.py").read_text()


def test_every_peer_names_the_pages_of_its_fastest_settings():
    for system in PEERS:
        assert "fastest setting" in (ADAPTERS / f"{system.module}.py").read_text()
        assert system.default != system.fastest


# ------------------------------------------------------------------------------ the command


def command(*arguments: str) -> int:
    app = typer.Typer()
    app.command()(bench_peers.peers)
    return run_program(app, "jq-bench peers", arguments)


def test_slots_are_shared_out_evenly(capsys):
    assert command("--slots", "5", "--workers", "2") == 2
    assert "--slots: 5 is not a multiple of the 2 worker processes" in capsys.readouterr().err


def test_results_of_an_earlier_run_stay(tmp_path, monkeypatch, capsys):
    (tmp_path / "peers.json").write_text("{}")
    assert command("--out", str(tmp_path)) == 5
    assert "has the results of an earlier run" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert bench_peers._folder(None) == Path("results/peers")
    Path("results/peers").mkdir(parents=True)
    Path("results/peers/peers.json").touch()
    assert bench_peers._folder(None) == Path("results/peers-2")


def test_unknown_name_is_refused(capsys):
    assert command("--only", "sidekiq") == 2
    told = capsys.readouterr().err
    assert "--only" in told
    assert "pgqueuer" in told


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["--json", "--output=json"])
def test_command_prints_and_keeps_what_it_measured(asked, tmp_path, monkeypatch, capsys):
    ours = next(one for one in SYSTEMS if one.is_ours and one.backing is Backing.SQLITE)
    monkeypatch.setattr(bench_peers, "SYSTEMS", (ours, fake("fake"), fake("absent")))
    monkeypatch.setattr(bench_peers, "_NAMES", ("jobqueue", "fake", "absent"))
    monkeypatch.setattr(bench_peers, "Environments", lambda *_, **__: InThisOne())
    small = ("--jobs", "10", "--repetitions", "1", "--workers", "1", "--setting", "default")
    assert command(*small, "--out", str(tmp_path), asked) == 0
    printed = json.loads(capsys.readouterr().out)
    kept = json.loads((tmp_path / "peers.json").read_text())
    assert kept["runs"] == printed["runs"]
    assert kept["rows"] == printed["rows"]
    assert [row["system"] for row in printed["rows"]] == ["jobqueue", "fake"]
    assert printed["rows"][1]["measures"]["drain"]["ratio"]["mean"] > 0
    assert printed["rows"][1]["worker_dies"] == "a dead worker's job is lost"
    assert printed["conditions"]["worker processes"] == 1
    assert "libfast.so is missing" in printed["failed"][0]
    page = (tmp_path / "report.html").read_text()
    assert "fake 1.0" in page
    assert "libfast.so is missing" in page
    assert "keeps nothing; a dead worker" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_command_fails_when_nothing_could_be_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_peers, "SYSTEMS", (fake("absent"),))
    monkeypatch.setattr(bench_peers, "_NAMES", ("absent",))
    monkeypatch.setattr(bench_peers, "Environments", lambda *_, **__: InThisOne())
    assert command("--setting", "default", "--out", str(tmp_path)) != 0
    told = capsys.readouterr()
    assert "not measured: absent, default: start: " in told.out
    assert "nothing was measured" in told.err


IN_THE_BACKGROUND = """
from jobqueue.cli import bench_peers
from tests.bench.peers import test_peers
bench_peers.SYSTEMS = (test_peers.fake("fake"),)
bench_peers._NAMES = ("fake",)
bench_peers.Environments = lambda *_, **__: test_peers.InThisOne()
few = ("--jobs", "10", "--workers", "1", "--setting", "default")
raise SystemExit(test_peers.command(*few, "--repetitions", "100", "--out", {folder!r}))
"""


@pytest.mark.slow
def test_terminated_command_keeps_what_it_has_and_leaves_nothing(tmp_path):
    code = IN_THE_BACKGROUND.format(folder=str(tmp_path))
    ignoring = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh"]  # as a shell's background does
    with subprocess.Popen(
        [*ignoring, sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stderr is not None
            assert "100 runs" in program.stderr.readline()
            assert "fake, default: measured" in program.stderr.readline()
            program.terminate()
            assert program.wait(patience.longest(30)) == 130
        finally:
            program.kill()
    kept = json.loads((tmp_path / "peers.json").read_text())
    assert kept["runs"][0]["failed"] == ""


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(240)
@pytest.mark.parametrize("setting", PeerSetting)
@pytest.mark.parametrize("system", PEERS, ids=lambda system: system.name)
def test_peer_that_is_installed_does_the_work(system, setting):
    known = Environments(cache_folder(os.environ), install=False)
    try:
        known.python(system.pins)
    except CannotInstall:
        pytest.skip(f"{system.name} is not in the cache: jq-bench peers puts it there")
    if not (find_postgres() if system.backing is Backing.POSTGRES else find_redis()):
        pytest.skip(f"{system.backing} is not installed: scripts/services ensure")
    comparison = PeerComparison(TINY, known, seconds=600)
    (run,) = comparison.runs([(system, PeerSetup(setting), 0)])
    assert run.failed == ""
    assert run.rates["drain"]["jobs"] == 20 + 4 + 4 + 1
    assert str(system.backing) in comparison.conditions
