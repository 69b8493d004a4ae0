"""``jq-bench peers``: how it speaks with peers, what it makes of their figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from jobqueue.bench.peers import environments
from jobqueue.bench.peers.catalogue import ADAPTERS, SYSTEMS, Backing, Kept, Setting, System
from jobqueue.bench.peers.conversation import AdapterFailed, adapter
from jobqueue.bench.peers.environments import CannotInstall, Environments, cache_folder
from jobqueue.bench.peers.run import Comparison, Run, Work, planned, with_bases
from jobqueue.bench.peers.table import absences, as_text, failures, rows
from jobqueue.cli import bench_peers
from jobqueue.cli.program import run_program
from jobqueue.topology.backing import find_postgres, find_redis
from tests import patience

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
KEPT = Kept("as it is", "nothing")
TINY = Work(jobs=20, workers=2, paced=3, every=0.001, callers=4, submitting=60, draining=60)
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


def talk(tmp_path: Path, name: str):
    told = {
        "BENCH_URL": f"sqlite:///{tmp_path}/queue",
        "BENCH_SETTING": "default",
        "BENCH_WORKERS": "2",
        "BENCH_MARKS": str(tmp_path / "marks"),
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
        assert peer.ask("start", within=60) == {"processes": 2}
        latency = peer.ask("latency", jobs=3, every=0.001, seconds=60)
        assert len(latency["ms"]) == 3
        assert all(value > 0 for value in latency["ms"])
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
        session = peer._process.pid
        assert len(processes_of(session)) == 3
    assert processes_of(session) == []


def test_workers_of_a_killed_adapter_are_ended(tmp_path):
    with talk(tmp_path, "fake") as peer:
        peer.ask("start", within=60)
        session = peer._process.pid
        os.kill(session, signal.SIGKILL)
        with pytest.raises(AdapterFailed, match="ended without an answer"):
            peer.ask("pause")
        assert processes_of(session) != []
    patience.until(lambda: processes_of(session) == [], "the workers have ended")


def test_what_a_library_writes_is_no_answer_but_the_last_words(tmp_path):
    with pytest.raises(AdapterFailed, match="Segmentation fault"), talk(tmp_path, "loud"):
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
    plan = planned([one, two], [Setting.DEFAULT], 3)
    assert [(system.name, number) for system, _, number in plan] == [
        ("fake", 0), ("lame", 0), ("lame", 1), ("fake", 1), ("fake", 2), ("lame", 2),
    ]  # fmt: skip


def test_jobqueue_comes_with_what_is_compared():
    celery = next(system for system in SYSTEMS if system.name == "celery")
    assert [one.label for one in with_bases([celery], SYSTEMS)] == ["jobqueue on Redis", "celery"]
    assert with_bases(SYSTEMS, SYSTEMS) == list(SYSTEMS)


def test_a_peer_that_fails_is_one_line_and_not_the_end():
    plan = planned([fake("lame"), fake("absent"), fake("fake")], [Setting.DEFAULT], 2)
    runs = list(Comparison(TINY, InThisOne(), seconds=600).runs(plan))
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
    comparison = Comparison(TINY, offline, seconds=600)
    comparison.install(PEERS[:1], said.append)
    runs = list(comparison.runs(planned(PEERS[:1], list(Setting), 2)))
    assert said == ["installing celery"]
    assert [run.failed for run in runs] == ["cannot install celery: no network"] * 2
    assert offline.tried == 1


def test_no_run_begins_after_the_time_is_up():
    comparison = Comparison(TINY, InThisOne(), seconds=-1)
    assert list(comparison.runs(planned([fake("fake")], [Setting.DEFAULT], 1))) == []
    assert comparison.cut_short


# -------------------------------------------------------------------------------- the table


def run_of(system: System, rate: float, ms: float, repetition: int = 0, **more) -> Run:
    run = Run(system, Setting.DEFAULT, repetition, 0, version="9", ms=[ms], **more)
    run.rates = {"drain": {"jobs": rate, "seconds": 1.0}}
    return run


OURS = fake("jobqueue", Backing.REDIS)


def test_ratio_says_how_many_times_as_fast_as_jobqueue():
    peer = fake("fake", Backing.REDIS)
    ours, theirs = rows([run_of(OURS, 1_000, 2), run_of(peer, 250, 1)])
    assert (ours.cells["drain"].ratio, ours.cells["p50"].ratio) == (1, 1)
    assert theirs.cells["drain"].ratio == 0.25
    assert theirs.cells["p50"].ratio == 2  # half the time
    assert "single" not in theirs.cells


def test_ratio_compares_runs_of_the_same_repetition():
    peer = fake("fake", Backing.REDIS)
    runs = [
        *(run_of(OURS, 1_000, 1), run_of(peer, 500, 1)),
        *(run_of(peer, 50, 1, 1), run_of(OURS, 100, 1, 1)),  # the machine was slower
        *(run_of(OURS, 1_000, 1, 2), run_of(peer, 700, 1, 2)),
    ]
    cell = rows(runs)[1].cells["drain"]
    assert (cell.ratio, cell.low, cell.high, cell.value) == (0.5, 0.5, 0.7, 500)


def test_without_jobqueue_on_the_same_server_there_is_no_ratio():
    (row,) = rows([run_of(fake("fake", Backing.POSTGRES), 100, 1)])
    assert row.cells["drain"].ratio is None
    assert "(100/s)" in as_text([row])[0]


def test_table_shows_ratio_first_and_what_is_kept():
    made = as_text(rows([run_of(OURS, 1_000, 2), run_of(fake("fake", Backing.REDIS), 2_500, 4)]))
    assert made[1] == [
        *("fake 9", "default", "-", "-", "-", "2.5× (2,500/s)", "0.5× (4 ms)", "0.5× (4 ms)"),
        *("as it is", "nothing"),
    ]


# ----------------------------------------------------------------------------- environments


def test_missing_environment_is_told_when_nothing_may_be_installed(tmp_path):
    with pytest.raises(CannotInstall, match=r"celery is not in .*--install"):
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


@pytest.mark.parametrize("system", PEERS, ids=lambda system: system.name)
def test_peers_are_pinned_and_know_nothing_of_jobqueue(system):
    pins = system.pins.read_text()
    assert "://" not in pins
    assert f"\n{system.name}==" in pins
    entries = [line for line in pins.splitlines() if "==" in line]
    assert pins.count("--hash=sha256:") >= len(entries)
    assert "jobqueue" not in (ADAPTERS / f"{system.module}.py").read_text()


def test_every_peer_names_the_pages_of_its_fastest_settings():
    for system in PEERS:
        assert "Fastest: " in (ADAPTERS / f"{system.module}.py").read_text()
        assert system.default != system.fastest


# ------------------------------------------------------------------------------ the command


def command(*arguments: str) -> int:
    app = typer.Typer()
    app.command()(bench_peers.peers)
    return run_program(app, "jq-bench peers", arguments)


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
    assert command(*small, "--folder", str(tmp_path), asked) == 0
    printed = json.loads(capsys.readouterr().out)
    (kept,) = tmp_path.iterdir()
    assert json.loads(kept.read_text()) == printed
    assert [row["system"] for row in printed["rows"]] == ["jobqueue", "fake"]
    assert printed["rows"][1]["measures"]["drain"]["ratio"] > 0
    assert printed["conditions"]["worker processes"] == 1
    assert "libfast.so is missing" in printed["failed"][0]


IN_THE_BACKGROUND = """
from jobqueue.cli import bench_peers
from tests.bench.peers import test_peers
bench_peers.SYSTEMS = (test_peers.fake("fake"),)
bench_peers._NAMES = ("fake",)
bench_peers.Environments = lambda *_, **__: test_peers.InThisOne()
few = ("--jobs", "10", "--workers", "1", "--setting", "default")
raise SystemExit(test_peers.command(*few, "--repetitions", "100", "--folder", {folder!r}))
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
            assert "fake, default: measured" in program.stderr.readline()
            program.terminate()
            assert program.wait(patience.longest(30)) == 130
        finally:
            program.kill()
    (kept,) = tmp_path.iterdir()
    assert json.loads(kept.read_text())["runs"][0]["failed"] == ""


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(240)
@pytest.mark.parametrize("setting", Setting)
@pytest.mark.parametrize("system", PEERS, ids=lambda system: system.name)
def test_peer_that_is_installed_does_the_work(system, setting):
    known = Environments(cache_folder(os.environ), install=False)
    try:
        known.python(system.pins)
    except CannotInstall:
        pytest.skip(f"{system.name} is not in the cache: jq-bench peers puts it there")
    if not (find_postgres() if system.backing is Backing.POSTGRES else find_redis()):
        pytest.skip(f"{system.backing} is not installed: scripts/services ensure")
    comparison = Comparison(TINY, known, seconds=600)
    (run,) = comparison.runs([(system, setting, 0)])
    assert run.failed == ""
    assert run.rates["drain"]["jobs"] == 20 + 4 + 4 + 1
    assert str(system.backing) in comparison.conditions
