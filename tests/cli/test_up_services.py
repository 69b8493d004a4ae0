"""jq-ctl up with services behind it: stages, private PostgreSQL and Redis, named ones."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests import patience, ports
from tests.cli import mixed_up, processes, ups
from tests.cli.ups import Foreground, Home, gone, wait
from tests.services.run import Run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]
MIXED = mixed_up.__file__
SECRET = "hunter2"


@pytest.fixture
def home(services: Run) -> Iterator[Home]:
    for name in ("postgres", "redis"):
        services.own(name, {})  # skips or fails where the programs are missing
    with ups.home() as made:
        yield made


def pids(home: Home) -> dict[str, int]:
    return {row["name"]: row["pid"] for row in home.ps()["processes"]}


def order(up: Foreground, health: str) -> list[str]:
    pattern = re.compile(rf"^\S+ (\S+) {health}\b")
    return [found[1] for line in up.lines if (found := pattern.match(line))]


def test_services_come_first_and_go_last(home):
    with Foreground(home, "mixed", program=MIXED) as up:
        up.line("Stop:")
        running = pids(home)
        started = order(up, "ok at")
        assert set(started[:2]) == {"postgres", "redis"}
        assert set(started[2:4]) == {"server-1", "server-2"}
        assert started[4:] == ["worker-1"]
        for name in ("postgres", "redis", "server-1", "worker-1"):
            assert (home.fleet / "logs" / f"{name}.log").stat().st_size, name
        done = home.ctl("--server", home.ps()["grpc"][1], "job", "submit", "default", "1", "--wait")
        assert done.returncode == 0, done.stderr
        assert up.stop(signal.SIGINT) == 0
    stopped = order(up, "stopped")
    assert stopped[0] == "worker-1"
    assert set(stopped[1:3]) == {"server-1", "server-2"}
    assert set(stopped[3:]) == {"postgres", "redis"}
    assert all(map(gone, running.values()))
    assert "database system is shut down" in (home.fleet / "logs" / "postgres.log").read_text()


def test_the_processes_are_told_where_the_services_are(home):
    with Foreground(home, "mixed", program=MIXED) as up:
        up.line("Stop:")
        rows = {row["name"]: row for row in home.ps()["processes"]}
        told = environ(rows["server-2"]["pid"])
        assert urlsplit(told["JQ_TEST_POSTGRES"]).netloc.endswith(rows["postgres"]["address"])
        assert urlsplit(told["JQ_TEST_REDIS"]).netloc.endswith(rows["redis"]["address"])
        assert up.stop() == 0


def environ(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(entry.decode().split("=", 1) for entry in entries if entry)


@pytest.mark.faults
@pytest.mark.parametrize("name", ["postgres", "redis", "worker-1"])
def test_what_is_killed_comes_back_where_it_was(home, name):
    with Foreground(home, "mixed", program=MIXED) as up:
        up.line("Stop:")
        before = home.process(name)
        os.kill(before["pid"], signal.SIGKILL)
        ended = up.line(f"{name} restarting")
        up.line(f"{name} ok at", after=ended)
        after = home.process(name)
        assert after["restarts"] == 1
        assert after["pid"] != before["pid"]
        assert after["address"] == before["address"]
        others = {row["restarts"] for row in home.ps()["processes"] if row["name"] != name}
        assert others == {0}
        assert up.stop() == 0


@pytest.mark.faults
def test_services_do_not_survive_a_killed_foreground_supervisor(home):
    with Foreground(home, "mixed", program=MIXED) as up:
        up.line("Stop:")
        running = [*pids(home).values(), *ups.children(up.process.pid)]
        up.process.kill()
        wait(lambda: all(map(gone, running)), "nothing of it is left")
    log = (home.fleet / "logs" / "postgres.log").read_text()
    assert "database system is shut down" in log  # asked, not killed
    assert home.json("down")["down"][0]["was"] == "stale"


@pytest.mark.faults
def test_services_do_not_survive_a_supervisor_killed_while_they_start(home):
    with Foreground(home, "mixed", program=MIXED) as up:
        up.line("postgres starting")
        up.process.kill()
        up.process.wait()
    wait(lambda: not working_in(home.fleet), "nobody works in the folder")


def working_in(folder: Path) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            where = Path(f"/proc/{name}/cwd").readlink()
        except OSError:
            continue
        if where.is_relative_to(folder) and not gone(int(name)):
            found.append(int(name))
    return found


@pytest.mark.parametrize("signals", [1, 2])
def test_interrupted_while_services_start_nothing_stays(home, signals):
    with Foreground(home, "mixed", program=MIXED) as up:
        up.line("postgres starting")
        up.process.send_signal(signal.SIGINT)
        if signals > 1:
            up.line("a second signal kills")
            up.process.send_signal(signal.SIGINT)
        assert up.process.wait(patience.longest(ups.PATIENCE)) == 130, up.lines
        wait(lambda: not working_in(home.fleet), "nobody works in the folder")
    assert home.json("ps") == {"topologies": []}
    assert not any("Traceback" in line for line in up.lines)


@pytest.mark.faults
def test_down_ends_the_services_of_a_killed_background_supervisor(home):
    up = subprocess.run(
        [sys.executable, MIXED, "up", "mixed", "--detach", "--folder", str(home.fleet)],
        env=processes.environment(**home.environ),
        cwd=home.folder,
        timeout=patience.longest(120),
        capture_output=True,
        text=True,
    )
    assert up.returncode == 0, up.stderr
    running = pids(home)
    supervisor = home.ps()["supervisor_pid"]
    os.kill(supervisor, signal.SIGKILL)
    wait(lambda: gone(supervisor), "the supervisor is gone")
    assert pids(home) == running
    down = home.json("down")["down"][0]
    assert (down["was"], down["killed"]) == ("orphaned", [])
    assert all(map(gone, running.values()))
    assert "database system is shut down" in (home.fleet / "logs" / "postgres.log").read_text()


def test_named_services_are_left_alone_and_their_passwords_kept(home, own_postgres, own_redis):
    postgres, redis = own_postgres(), own_redis()
    named = {
        "postgres": f"postgresql://jq:{SECRET}@127.0.0.1:{postgres.port}/jobs",
        "redis": f"redis://:{SECRET}@127.0.0.1:{redis.port}/0",
    }
    args = [word for name, url in named.items() for word in (f"--{name}", url)]
    with Foreground(home, "mixed", *args, program=MIXED) as up:
        up.line("Stop:")
        rows = {row["name"]: row for row in home.ps()["processes"]}
        assert rows["postgres"]["address"] == f"127.0.0.1:{postgres.port} (named)"
        assert rows["postgres"]["pid"] is None
        assert rows["postgres"]["health"] == "ok"
        assert environ(rows["server-1"]["pid"])["JQ_TEST_POSTGRES"] == named["postgres"]
        for name in ("server-1", "worker-1"):
            assert SECRET not in Path(f"/proc/{rows[name]['pid']}/cmdline").read_text()
        assert SECRET not in home.ctl("ps").stdout + home.ctl("ps", "-o", "json").stdout
        assert_no_secret(home)
        redis.kill()
        up.line("redis failing")
        redis.start()
        up.line("redis ok", after=up.line("redis failing"))
        assert up.stop() == 0
    assert SECRET not in "\n".join(up.lines)
    assert_no_secret(home)
    assert postgres.alive()
    assert redis.alive()


def assert_no_secret(home: Home) -> None:
    for path in home.folder.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def test_a_named_service_that_is_not_there_is_told(home):
    port = ports.take()
    url = f"redis://:{SECRET}@127.0.0.1:{port}"
    with Foreground(home, "mixed", "--redis", url, program=MIXED) as up:
        up.line(f"redis at 127.0.0.1:{port} (named): no answer")
        assert up.wait() == 6
    assert SECRET not in "\n".join(up.lines)
    assert not working_in(home.fleet)
