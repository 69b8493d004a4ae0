"""jq-ctl up, ps and down through the real programs: one server, so that it is quick."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobqueue.cli import ctl as program
from jobqueue.fleet import services
from tests import patience, ports
from tests.cli import mixed_up, processes, terminal, ups
from tests.cli.ups import Foreground, Home, gone, wait

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.fixture
def home() -> Iterator[Home]:
    with ups.home() as made:
        yield made


def submit(home: Home, grpc: str, *args: str) -> subprocess.CompletedProcess[str]:
    return home.ctl("--server", grpc, "job", "submit", "default", '{"seconds": 60}', *args)


# -- in the background -------------------------------------------------------------------------


def test_what_the_caller_has_open_is_closed_in_the_background(home):
    """A script that holds a lock around `up --detach` must be able to give it back."""
    lock = home.folder / "lock"
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "jobqueue.cli.ctl", "up", "embedded", "--detach"]
        answer = subprocess.run(
            [*command, "--folder", str(home.fleet)],
            cwd=home.folder,
            env=processes.environment(**home.environ),
            pass_fds=[held.fileno()],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert answer.returncode == 0, answer.stderr
    with open(lock) as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert home.ps()["condition"] == "up"
    assert home.ctl("down", "--folder", str(home.fleet)).returncode == 0


def test_up_ps_down(home):
    up = home.up("embedded")
    assert up["topology"] == "embedded"
    assert up["condition"] == "up"
    assert up["detached"] is True
    (server,) = up["processes"]
    assert (server["name"], server["health"], server["restarts"]) == ("server", "ok", 0)
    with urllib.request.urlopen(f"{up['http'][0]}/readyz", timeout=patience.longest(5)) as answer:
        assert answer.status == 200
    job = submit(home, up["grpc"][0], "--type", "echo", "--wait")
    assert job.returncode == 0, job.stderr

    shown = home.ps()
    assert shown["processes"][0]["pid"] == server["pid"]
    assert shown["processes"][0]["last_line"] in (home.fleet / "logs" / "server.log").read_text()
    assert shown["processes"][0]["last_line"]
    table = home.ctl("ps").stdout.splitlines()
    assert table[0] == f"embedded in {home.fleet} is up"
    assert table[1].split()[:7] == [
        "PROCESS", "ROLE", "PID", "ADDRESS", "HEALTH", "RESTARTS", "UPTIME",
    ]  # fmt: skip
    assert table[2].split()[:5] == ["server", "server", str(server["pid"]), up["http"][0], "ok"]

    down = home.json("down")
    assert down == {"down": [{"topology": "embedded", "folder": str(home.fleet), "was": "up",
                              "killed": [], "data_kept": True}]}  # fmt: skip
    assert gone(server["pid"])
    assert gone(up["supervisor_pid"])
    assert home.json("ps") == {"topologies": []}
    assert "stopped" in (home.fleet / "logs" / "server.log").read_text()


def test_data_stays_until_it_is_removed(home):
    up = home.up("embedded")
    assert submit(home, up["grpc"][0], "--delay", "3600").returncode == 0
    assert home.ctl("down").returncode == 0
    again = home.up("embedded")
    listed = home.json("--server", again["grpc"][0], "job", "list")
    assert len(listed["jobs"]) == 1
    (home.folder / "beside").touch()
    assert home.ctl("down", "--remove-data").returncode == 0
    assert not home.fleet.exists()
    assert (home.folder / "beside").exists()


def test_the_data_of_one_that_is_down_can_be_removed(home):
    with Foreground(home, "embedded") as up:
        up.line("Stop:")
        assert up.stop() == 0
    assert (home.fleet / "jobqueue.db").exists()
    named = ("down", "--folder", str(home.fleet))
    assert home.ctl(*named).returncode == 4
    assert home.json(*named, "--remove-data")["down"][0]["was"] == "down"
    assert not home.fleet.exists()
    home.fleet.mkdir()
    (home.fleet / "precious").touch()
    assert home.ctl(*named, "--remove-data").returncode == 4
    assert (home.fleet / "precious").exists()


def test_the_state_is_for_its_owner_only(home):
    home.up("embedded")
    for name in ("state.json", "lock", "logs/server.log", "logs/supervisor.log"):
        assert (home.fleet / name).stat().st_mode & 0o077 == 0, name


def test_twice_in_a_folder_is_refused_and_elsewhere_not(home):
    first = home.up("embedded")
    answer = home.ctl("up", "embedded", "--folder", str(home.fleet))
    assert answer.returncode == 5
    assert f"a topology runs in {home.fleet} already" in answer.stderr
    assert "jq-ctl down" in answer.stderr
    other = home.json("up", "embedded", "--detach")  # in the default folder
    assert other["folder"] == str(home.folder / "state" / "jobqueue" / "embedded")
    answer = home.ctl("down")
    assert answer.returncode == 5
    assert str(home.fleet) in answer.stderr
    assert other["folder"] in answer.stderr
    assert len(home.json("ps")["topologies"]) == 2
    assert len(home.json("down", "--all")["down"]) == 2
    assert gone(first["processes"][0]["pid"])
    assert gone(other["processes"][0]["pid"])


def test_a_killed_background_supervisor_leaves_its_processes_to_down(home):
    up = home.up("embedded")
    server = up["processes"][0]["pid"]
    os.kill(up["supervisor_pid"], signal.SIGKILL)
    wait(lambda: gone(up["supervisor_pid"]), "the supervisor is gone")
    shown = home.ps()
    assert shown["condition"] == "orphaned"
    assert shown["processes"][0]["health"] == "ok"
    assert "orphaned" in home.ctl("ps").stdout
    refused = home.ctl("up", "embedded", "--folder", str(home.fleet))
    assert refused.returncode == 5
    assert "still run" in refused.stderr
    assert home.json("down")["down"][0]["was"] == "orphaned"
    assert gone(server)


def test_a_pid_that_somebody_else_has_by_now_is_stale_and_left_alone(home):
    up = home.up("embedded")
    state = home.fleet / "state.json"
    written = state.read_text()
    home.ctl("down")
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            for pid in (up["supervisor_pid"], up["processes"][0]["pid"]):
                written = written.replace(f'"pid": {pid}', f'"pid": {stranger.pid}')
            state.write_text(written)
            shown = home.json("ps", "--folder", str(home.fleet))["topologies"][0]
            assert shown["condition"] == "stale"
            assert (shown["processes"][0]["health"], shown["processes"][0]["pid"]) == (
                "stopped",
                None,
            )
            down = home.json("down", "--folder", str(home.fleet))["down"][0]
            assert (down["was"], down["killed"]) == ("stale", [])
            assert not state.exists()
            assert stranger.poll() is None
        finally:
            stranger.kill()


# -- in the foreground -------------------------------------------------------------------------


def test_lines_say_where_it_answers_and_how_to_go_on(home):
    with Foreground(home, "embedded") as up:
        number = up.line("embedded is up")
        up.line("Stop:")
        text = "\n".join(up.lines[number:])
        state = home.ps()
        assert f"HTTP: {state['http'][0]}/docs" in text
        assert f"gRPC: {state['grpc'][0]}" in text
        assert f"Try:  jq-ctl --server {state['grpc'][0]} job submit default" in text
        assert f"Logs: {home.fleet}/logs" in text
        assert f"Stop: Ctrl-C, or jq-ctl down --folder {home.fleet}" in text
        assert any("server ok at http://127.0.0.1:" in line for line in up.lines)
        assert up.stop() == 0
    assert gone(state["processes"][0]["pid"])
    assert "embedded is down" in up.lines[-1]
    assert home.json("ps") == {"topologies": []}


def test_one_json_document_when_all_is_up(home):
    with Foreground(home, "embedded", "-o", "json") as up:
        up.line("{")
        document = json.loads(up.lines[0])
        assert document["condition"] == "up"
        assert document["detached"] is False
        assert up.stop(signal.SIGINT) == 0
    assert up.lines[1:] == []


def test_a_killed_process_is_shown_and_started_again(home):
    with Foreground(home, "embedded") as up:
        up.line("Stop:")
        before = home.process("server")
        os.kill(before["pid"], signal.SIGKILL)
        killed = up.line("server restarting: killed by SIGKILL; again in 0.5 s")
        up.line(f"server ok at {before['address']}", after=killed)
        after = home.process("server")
        assert after["restarts"] == 1
        assert after["pid"] != before["pid"]
        assert after["address"] == before["address"]
        assert up.stop() == 0


def test_no_restart(home):
    with Foreground(home, "embedded", "--no-restart") as up:
        up.line("Stop:")
        os.kill(home.process("server")["pid"], signal.SIGKILL)
        up.line("server given up: killed by SIGKILL")
        row = home.process("server")
        assert (row["health"], row["pid"]) == ("given up", None)
        assert up.stop() == 0


@pytest.mark.faults
def test_nothing_survives_a_killed_foreground_supervisor(home):
    with Foreground(home, "embedded") as up:
        up.line("Stop:")
        pids = {home.process("server")["pid"]} | ups.children(up.process.pid)
        assert len(pids) == 2  # the server, and the guard
        up.process.kill()
        wait(lambda: all(map(gone, pids)), f"{pids} are gone", timeout=15)
    assert home.ps()["condition"] == "stale"
    assert home.json("down")["down"][0]["was"] == "stale"


@pytest.mark.faults
def test_a_server_that_does_not_listen_to_the_guard_is_killed(home):
    with Foreground(home, "embedded") as up:
        up.line("Stop:")
        pid = home.process("server")["pid"]
        os.kill(pid, signal.SIGSTOP)  # it hears no SIGTERM
        up.process.kill()
        wait(lambda: gone(pid), "the server is gone", timeout=20)


def test_what_cannot_start_ends_it_with_the_reason(home):
    (home.folder / "broken.py").write_text("raise RuntimeError('out of order')")
    answer = home.ctl("up", "embedded", "--folder", str(home.fleet), "--app", "broken:app")
    assert answer.returncode == 6
    assert "server did not start: exit status 2; it said:" in answer.stderr
    assert "out of order" in answer.stderr
    assert f"{home.fleet}/logs/server.log" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert home.json("ps") == {"topologies": []}
    detached = home.ctl("up", "embedded", "--detach", "--folder", str(home.fleet),
                        "--app", "broken:app", "-o", "json")  # fmt: skip
    assert detached.returncode == 6
    assert json.loads(detached.stderr.splitlines()[-1])["error"]["code"] == "UNAVAILABLE"
    assert home.json("ps") == {"topologies": []}


def test_settings_reach_the_processes(home):
    port = ports.take()
    (home.folder / "my.yaml").write_text("queue:\n  capacity: 7\n")
    up = home.up("embedded", "--config", "my.yaml", "--set", "queue.max_retries=9",
                 "--set", f"http.port={port}", "--queues", "mail,default",
                 "--concurrency", "3")  # fmt: skip
    assert up["http"] == [f"http://127.0.0.1:{port}"]
    (queue,) = home.json("--server", up["grpc"][0], "queue", "list")["queues"]
    assert (queue["name"], queue["capacity"], queue["max_retries"]) == ("default", 7, 9)
    (worker,) = home.json("--server", up["grpc"][0], "worker", "list")["workers"]
    assert (worker["concurrency"], worker["queues"]) == (3, ["mail", "default"])


def test_port_base_pins_the_ports(home):
    base = ports.take(row=2)
    up = home.up("embedded", "--port-base", str(base))
    assert up["http"] == [f"http://127.0.0.1:{base}"]
    assert up["grpc"] == [f"127.0.0.1:{base + 1}"]
    answer = home.ctl("up", "embedded", "--port-base", str(base))
    assert answer.returncode == 2
    assert f"--port-base: port {base} is taken" in answer.stderr


@pytest.mark.parametrize("args", [(), ("--detach",)])
def test_a_port_that_is_taken_before_the_server_starts_is_replaced(home, args):
    with Foreground(home, "stolen", *args, program=mixed_up.__file__) as up:
        taken = up.line("(another program has taken port")
        up.line("trying again with other ports", after=taken)
        up.line("embedded is up", after=taken)
        assert home.process("server")["health"] == "ok"
        if not args:
            assert up.stop() == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nowhere"], 2, "TOPOLOGY: 'nowhere' is unknown; allowed: embedded, replicated"),
        (["embedded", "--servers", "2"], 2, "--servers: is not for the embedded topology"),
        (["embedded", "--postgres", "postgresql://h/d"], 2, "--postgres: is not for the embedded"),
        (["replicated", "--servers", "0"], 2, "--servers: must be 1 to 100"),
        (["replicated", "--workers", "101"], 2, "--workers: must be 0 to 100"),
        (["replicated", "--postgres", "mysql://u:hunter2@h"], 2, "--postgres: must be a URL like"),
        (["replicated", "--redis", "redis://u:hunter2@h:x"], 2, "--redis: must be a URL like"),
        (["replicated", "--set", "http.port=1"], 2, "http.port: every process needs its own"),
        (["embedded", "--port-base", "80"], 2, "--port-base: must be 1024 to 65535"),
        (["embedded", "--port-base", "65535"], 2, "--port-base: too high"),
        (["embedded", "--concurrency", "many"], 2, "worker.concurrency: 'many' is not allowed"),
        (["embedded", "--set", "nope=1"], 2, "unknown key nope"),
        (["embedded", "--set", "db.password=x"], 2, "is a secret"),
        (["embedded", "--config", "missing.yaml"], 2, "missing.yaml"),
        (["embedded", "--folder", "/proc/nowhere"], 6, "cannot use the folder /proc/nowhere"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    tmp_path, monkeypatch, capfd, words, status, said
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert program.run(["up", *words]) == status
    shown = capfd.readouterr()
    assert said in shown.err
    assert "hunter2" not in shown.err + shown.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("find_postgres", "PostgreSQL is not installed: install PostgreSQL (Debian, Ubuntu: apt-get"
                          " install postgresql), or name a running server with --postgres"
                          " postgresql://"),
        ("find_redis", "Redis is not installed: install Redis (Debian, Ubuntu: apt-get install"
                       " redis-server), or name a running server with --redis redis://"),
    ],
)  # fmt: skip
def test_missing_programs_are_told_with_the_way_out(tmp_path, monkeypatch, capfd, missing, said):
    for name in ("find_postgres", "find_redis"):
        found = None if name == missing else tmp_path
        monkeypatch.setattr(services, name, lambda found=found: found)
    assert program.run(["up", "replicated", "--folder", str(tmp_path / "fleet")]) == 4
    assert said in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["ps", "--folder", "x"], ["down", "--folder", "x"], ["down"]])
def test_nothing_there(home, words):
    answer = home.ctl(*words)
    assert answer.returncode == 4
    assert answer.stderr.startswith("error: ")


# -- at a terminal -----------------------------------------------------------------------------


def test_a_person_sees_a_table_and_ctrl_c_stops_all(home):
    status, shown = terminal.run(
        "ctl", "up", "embedded", "--folder", str(home.fleet), cwd=home.folder,
        answers={"Ctrl-C stops all": "^C"}, **home.environ,
    )  # fmt: skip
    assert status == 0
    text = terminal.screen(shown)
    for header in ("PROCESS", "ROLE", "PID", "ADDRESS", "HEALTH", "RESTARTS", "UPTIME", "LAST"):
        assert header in text
    assert "Try:  jq-ctl --server 127.0.0.1:" in text
    assert "stopping; Ctrl-C again kills" in text
    assert "embedded is down" in text
    assert "Traceback" not in text
    assert home.json("ps") == {"topologies": []}


def test_a_job_that_runs_on_holds_a_stop_no_longer_than_its_deadline(home):
    with Foreground(home, "embedded", "--set", "server.shutdown_timeout=2") as up:
        up.line("Stop:")
        state = home.ps()
        job = submit(home, state["grpc"][0], "--type", "sleep").stdout.strip()
        wait(lambda: _is_running(home, state, job), "the job runs")
        limit = patience.Limit(20)
        assert up.stop(signal.SIGINT) == 0
        assert not limit.over
    assert gone(state["processes"][0]["pid"])


def test_a_second_signal_kills(home):
    with Foreground(home, "embedded") as up:  # which would wait for half a minute
        up.line("Stop:")
        state = home.ps()
        job = submit(home, state["grpc"][0], "--type", "sleep").stdout.strip()
        wait(lambda: _is_running(home, state, job), "the job runs")
        up.process.send_signal(signal.SIGINT)
        up.line("a second signal kills")
        limit = patience.Limit(15)
        assert up.stop(signal.SIGINT) == 130
        assert not limit.over
    assert gone(state["processes"][0]["pid"])
    assert home.json("ps") == {"topologies": []}


def _is_running(home: Home, state: dict, job: str) -> bool:
    shown = home.json("--server", state["grpc"][0], "job", "status", job)
    return shown["status"] == "RUNNING"


def test_a_terminal_that_is_closed_stops_all(home):
    pid, terminal_end = pty.fork()
    if pid == 0:
        env = processes.environment(**home.environ, TERM="xterm")
        command = [sys.executable, "-m", "jobqueue.cli.ctl", "up", "embedded"]
        os.execve(command[0], [*command, "--folder", str(home.fleet)], env)
    shown = b""
    while b"Ctrl-C stops all" not in shown:
        shown += os.read(terminal_end, 65536)
    server = home.process("server")["pid"]
    os.close(terminal_end)
    os.waitpid(pid, 0)
    assert gone(server)
    assert home.json("ps") == {"topologies": []}


def test_a_reader_that_leaves_does_not_end_it(home):
    command = [sys.executable, "-m", "jobqueue.cli.ctl", "up", "embedded"]
    with subprocess.Popen(
        [*command, "--folder", str(home.fleet)],
        cwd=home.folder,
        env=processes.environment(**home.environ),
        stdout=subprocess.PIPE,
        text=True,
    ) as up:
        try:
            assert up.stdout is not None
            while not up.stdout.readline().startswith("Stop:"):
                pass
            up.stdout.close()
            os.kill(home.process("server")["pid"], signal.SIGKILL)
            wait(lambda: home.process("server")["restarts"] == 1, "it is started again")
            wait(lambda: home.process("server")["health"] == "ok", "it is well again")
            up.send_signal(signal.SIGTERM)
            assert up.wait(patience.longest(ups.PATIENCE)) == 0
        finally:
            up.kill()
    assert home.json("ps") == {"topologies": []}


def test_help_has_examples():
    for command in ("up", "ps", "down"):
        answer = processes.run("ctl", command, "--help", cwd=Path.cwd())
        assert answer.returncode == 0
        assert "Examples" in answer.stdout
        assert f"jq-ctl {command}" in answer.stdout
