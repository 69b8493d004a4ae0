"""Private servers: started, found again, ended, and never anybody else's."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import asyncpg
import pytest
import redis

from jobqueue.fleet import ports, processes
from jobqueue.fleet.backing import (
    BackingFailed,
    NotInstalled,
    PrivatePostgres,
    PrivateRedis,
    PrivateServer,
    find_kafka,
    find_postgres,
    find_redis,
    postgres,
)
from jobqueue.fleet.backing import kafka as kafka_module
from jobqueue.fleet.backing import redis as redis_module
from tests import patience
from tests import ports as test_ports
from tests.services.catalog import SERVICES

Make = Callable[..., PrivateServer]
pytestmark = pytest.mark.integration


# A Kafka takes seconds to start, more on a busy machine. So it is there where its own part is at
# stake; what all kinds do by the same lines is shown with the quick ones, and the life of a Kafka
# in test_kafka.py.
KAFKA = pytest.param("kafka", marks=[pytest.mark.slow, pytest.mark.timeout(240)])
with_kafka = pytest.mark.parametrize("make", ["postgres", "redis", KAFKA], indirect=True)
with_kafka_unstarted = pytest.mark.parametrize(
    "make", ["postgres", "redis", "kafka"], indirect=True
)


@pytest.fixture(params=["postgres", "redis"])
def make(request: pytest.FixtureRequest, folder: Path) -> Iterator[Make]:
    """Makes servers of a kind, in a folder of the test's."""
    request.getfixturevalue("services").need(request.param)
    made: list[PrivateServer] = []

    def build(
        settings: Mapping[str, str] | None = None, *, name: str = "server", port: int | None = None
    ) -> PrivateServer:
        service = SERVICES[request.param]
        settings = {**service.settings, **(settings or {})}
        made.append(service.server(folder / name, settings, port=port))
        return made[-1]

    yield build
    for server in made:
        server.remove()


def answers(server: PrivateServer) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=patience.longest(5)).close()
    except ConnectionRefusedError:
        return False
    return True


# -- the life of a server -----------------------------------------------------------------------


def test_it_starts_stops_and_starts_again_on_the_same_port(make: Make) -> None:
    server = make()
    assert not server.alive()
    server.stop()  # before it was ever started
    server.start()
    pid, port = server.pid, server.port
    assert server.alive()
    assert answers(server)
    server.start()
    assert server.pid == pid
    server.stop()
    server.stop()
    assert not server.alive()
    assert server.pid is None
    assert not answers(server)
    server.start()
    assert server.port == port
    assert server.pid != pid
    server.restart()
    assert server.port == port
    assert answers(server)


def test_a_killed_server_is_noticed_and_can_be_started_again(make: Make) -> None:
    server = make()
    server.start()
    port = server.port
    server.kill()
    assert not server.alive()
    # PostgreSQL's children, one forked this moment, hold its port until they run again.
    patience.until(lambda: not answers(server), "its port is closed")
    server.start()
    assert server.port == port
    assert answers(server)


def test_it_ends_when_it_dies_behind_our_back(make: Make) -> None:
    server = make()
    server.start()
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not server.alive()


def test_a_paused_server_can_be_stopped(make: Make) -> None:
    server = make()
    server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    server.stop()
    assert not server.alive()


def test_removing_leaves_nothing(make: Make) -> None:
    server = make()
    server.start()
    pid = server.pid
    server.remove()
    server.remove()
    assert not server.folder.exists()
    assert not Path(f"/proc/{pid}").exists()


@with_kafka
def test_its_folder_may_have_spaces_and_quotes(make: Make) -> None:
    server = make(name='it\'s a "server"')
    server.start()
    assert answers(server)


# -- other processes ----------------------------------------------------------------------------


@with_kafka
def test_another_process_finds_and_stops_it(make: Make) -> None:
    server = make()
    server.start()
    program = (
        "import sys, pathlib; from jobqueue.fleet import backing\n"
        "server = getattr(backing, sys.argv[1])(pathlib.Path(sys.argv[2]))\n"
        "print(server.pid, server.port)\n"
        "server.start(); server.stop(); server.stop()\n"
    )
    command = [sys.executable, "-c", program, type(server).__name__, str(server.folder)]
    port = server.port
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split()[1] == str(port)
    assert not server.alive()
    assert not answers(server)


def test_it_outlives_the_process_that_started_it_and_is_one_for_all(make: Make) -> None:
    server = make()
    program = (
        "import sys, pathlib; from jobqueue.fleet import backing\n"
        "server = getattr(backing, sys.argv[1])(pathlib.Path(sys.argv[2]))\n"
        "server.start(); print(server.pid)"
    )
    command = [sys.executable, "-c", program, type(server).__name__, str(server.folder)]
    starting = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    pids = {int(process.communicate()[0]) for process in starting}
    assert pids == {server.pid}
    assert answers(server)
    server.stop()
    assert not answers(server)


def _sleeping_as(user: int, group: int) -> subprocess.Popen[bytes]:
    """``Popen(user=...)`` would fork this process with gRPC's threads in it, which may crash."""
    program = (
        "import os, sys\n"
        f"os.setgroups([]); os.setgid({group}); os.setuid({user})\n"
        "os.write(1, b'.')\n"
        f"os.execv({shutil.which('sleep')!r}, ['sleep', '60'])\n"
    )
    if os.getuid() != 0:
        program = program.replace("os.setgroups([]); ", "")
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(1) == b"."
    return process


@pytest.mark.parametrize("number", ["a stranger's", "nobody's"])
def test_a_stale_pid_file_is_not_believed(make: Make, number: str) -> None:
    server = make()
    server.start()
    server.kill()
    pid_file = next(server.data.glob("*.pid"))
    lines = pid_file.read_text().splitlines() or [""]
    # As the server's own user, or PostgreSQL would see from the outside that it is a stranger.
    owner = pid_file.stat()
    with _sleeping_as(owner.st_uid, owner.st_gid) as stranger:
        try:
            pid = str(stranger.pid) if number == "a stranger's" else "4194304"
            pid_file.write_text("\n".join([pid, *lines[1:], ""]))
            assert not server.alive()
            server.stop()
            server.kill()
            assert stranger.poll() is None
            server.start()
            assert server.pid not in (None, stranger.pid)
            assert answers(server)
            server.stop()
            assert stranger.poll() is None
        finally:
            stranger.kill()


# -- ports --------------------------------------------------------------------------------------


def test_a_port_that_was_taken_meanwhile_is_replaced(make: Make) -> None:
    server = make()
    server.start()
    port = server.port
    server.stop()
    with socket.create_server(("127.0.0.1", port)):
        server.start()
        assert server.port != port
        assert answers(server)


def test_losing_the_race_for_a_port_is_made_up_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = ports.free_port()
        offered = [taken.getsockname()[1], free]
        server = make()
        choose = server._choose_port  # the first of the ports; what else it needs is free

        def offer(*, keep: bool) -> int:
            with monkeypatch.context() as patch:
                patch.setattr(ports, "free_port", lambda: offered.pop(0))
                return choose(keep=keep)

        monkeypatch.setattr(server, "_choose_port", offer)
        server.start()
        assert server.port == free


def test_a_port_that_was_asked_for_and_is_taken_is_an_error_with_the_log(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = make(port=port)
        with pytest.raises(BackingFailed, match=str(port)) as failed:
            server.start()
        assert "in use" in str(failed.value)
        assert not server.alive()


def test_a_free_port_is_outside_the_range_of_outgoing_connections() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(ports.free_port() < lowest for _ in range(20))


def test_a_port_is_given_to_one_process_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens on it before its server has started."""
    base = test_ports.take(row=2)
    monkeypatch.setattr(ports, "_RANGE", range(base, base + 2))
    code = (
        "from jobqueue.fleet import ports;"
        f"ports._RANGE = range({base}, {base + 2}); print(ports.free_port(), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        first = int(other.stdout.readline())
        assert ports.free_port() == ({base, base + 1} - {first}).pop()
        with pytest.raises(OSError, match="is free"):
            ports.free_port()
        other.communicate("\n")
    assert ports.free_port() == first


# -- failing to start ---------------------------------------------------------------------------


@with_kafka
def test_a_failed_start_shows_the_end_of_the_log(
    make: Make, request: pytest.FixtureRequest
) -> None:
    if "kafka" in request.node.callspec.id:  # it skips settings that it does not know
        server = make({"log.retention.ms": "no_such_setting"})
    else:
        server = make({"no_such_setting": "x"})
    with pytest.raises(BackingFailed, match="no_such_setting"):
        server.start()
    assert not server.alive()


def test_a_server_that_never_answers_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make()
    pids: list[int | None] = []

    def never(port: int) -> bool:
        pids.append(server.pid)
        return False

    monkeypatch.setattr(server, "_answers", never)
    with pytest.raises(BackingFailed, match="did not answer in time"):
        server.start(timeout=1)
    assert pids[-1] is not None
    assert not Path(f"/proc/{pids[-1]}").exists()


def test_an_interrupted_start_leaves_no_process(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make()
    pids: list[int | None] = []

    def interrupted(port: int) -> bool:
        pids.append(server.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "_answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert pids[0] is not None
    assert not Path(f"/proc/{pids[0]}").exists()


@with_kafka_unstarted
def test_what_is_not_installed_is_said(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "find_postgres", lambda: None)
    monkeypatch.setattr(redis_module, "find_redis", lambda: None)
    monkeypatch.setattr(kafka_module, "find_kafka", lambda: None)
    with pytest.raises(NotInstalled, match="apt-get install"):
        make().start()


def test_programs_are_found_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = (find_postgres(), find_redis(), find_kafka())
    monkeypatch.setenv("PATH", "")
    assert (find_postgres(), find_redis(), find_kafka()) == expected


# -- who it runs as -----------------------------------------------------------------------------

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")


def test_it_does_not_run_as_root(make: Make) -> None:
    server = make()
    server.start()
    status = Path(f"/proc/{server.pid}/status").read_text()
    ids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
    assert "0" not in ids
    assert len(set(ids)) == 1
    groups = next(line for line in status.splitlines() if line.startswith("Groups:")).split()[1:]
    assert "0" not in groups


@as_root
def test_only_its_data_is_the_servers(make: Make) -> None:
    server = make()
    server.start()
    owners = {path.name: path.stat().st_uid for path in (server.folder, *server.folder.iterdir())}
    servers = owners.pop("data")
    assert servers != 0
    # What it reads is its own, too: nobody else may, and root writes it anew at each start.
    assert {owners.pop(name, servers) for name in ("conf", "hba")} == {servers}
    assert set(owners.values()) == {0}
    assert server.data.stat().st_mode & 0o077 == 0


@as_root
def test_it_runs_as_nobody_where_it_has_no_user(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make()
    monkeypatch.setattr(type(server), "users", ("no-such-user-here", "nobody"))
    server.start()
    chosen = processes.first_account(["nobody"])
    assert chosen is not None
    assert Path(f"/proc/{server.pid}").stat().st_uid == chosen.uid


@as_root
@with_kafka_unstarted
def test_a_missing_user_is_said(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make()
    monkeypatch.setattr(type(server), "users", ("no-such-user-here", "root"))
    with pytest.raises(NotInstalled, match="no-such-user-here or root"):
        server.start()


@as_root
def test_a_strict_umask_does_not_lock_it_out(make: Make) -> None:
    before = os.umask(0o077)
    try:
        server = make(name="deep/down/server")
        server.start()
    finally:
        os.umask(before)
    assert answers(server)


@as_root
@with_kafka_unstarted
def test_a_folder_that_it_cannot_reach_is_said(make: Make, folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o700)
    with pytest.raises(BackingFailed, match=r"may not enter .*closed"):
        make(name="closed/server").start()


# -- PostgreSQL ---------------------------------------------------------------------------------


@pytest.fixture
def private(services, folder: Path) -> Iterator[PrivatePostgres]:
    services.need("postgres")
    server = PrivatePostgres(folder / "server", {"work_mem": "7MB", "application_name": "it's"})
    server.start()
    yield server
    server.remove()


async def test_postgres_is_durable_and_as_asked(private: PrivatePostgres) -> None:
    connection = await asyncpg.connect(private.dsn())
    try:

        async def shown(name: str) -> str:
            return await connection.fetchval(f"SHOW {name}")

        assert await shown("fsync") == "on"
        assert await shown("synchronous_commit") == "on"
        assert await shown("full_page_writes") == "on"
        assert await shown("max_connections") == "200"
        assert await shown("work_mem") == "7MB"
        assert await shown("listen_addresses") == "127.0.0.1"
        assert await shown("unix_socket_directories") == str(private.data)
        assert await shown("server_encoding") == "UTF8"
        assert await shown("lc_collate") == "C"
    finally:
        await connection.close()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_what_was_committed_survives_a_restart(private: PrivatePostgres, mode) -> None:
    dsn = private.dsn()
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    private.restart(mode)
    assert private.dsn() == dsn
    recovered = "not properly shut down" in private.log.read_text()
    assert recovered == (mode == "immediate")
    connection.terminate()
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("SELECT answer FROM kept") == 42
    await connection.close()


async def test_a_long_path_leaves_out_the_unix_socket(services, folder: Path) -> None:
    services.need("postgres")
    server = PrivatePostgres(folder / ("long" * 30))
    try:
        server.start()
        connection = await asyncpg.connect(server.dsn())
        assert await connection.fetchval("SHOW unix_socket_directories") == ""
        await connection.close()
    finally:
        server.remove()


def test_variables_for_other_servers_are_not_for_ours(
    services, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.need("postgres")
    monkeypatch.setenv("PGDATA", str(folder / "somebody-elses"))
    monkeypatch.setenv("PGPORT", "1")
    server = PrivatePostgres(folder / "server")
    try:
        server.start()
        assert answers(server)
    finally:
        server.remove()
    assert not (folder / "somebody-elses").exists()


# -- PostgreSQL and Kafka, whose folders have to be made ----------------------------------------


@pytest.mark.parametrize("make", ["postgres", KAFKA], indirect=True)
def test_an_interrupted_making_of_the_folder_is_done_again(make: Make) -> None:
    server = make()
    half_made = server.folder / "data.new"
    (half_made / "topics").mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("half-made")
    (half_made / "topics/meta.properties").write_text("half-made")
    server.start()
    assert answers(server)


@pytest.mark.parametrize("make", ["postgres", "kafka"], indirect=True)
def test_a_folder_of_something_else_is_left_alone(make: Make) -> None:
    server = make()
    server.data.mkdir(parents=True)
    diary = server.data / "diary"
    diary.write_text("dear diary")
    with pytest.raises(BackingFailed, match="neither empty nor"):
        server.start()
    assert diary.read_text() == "dear diary"


# -- Redis --------------------------------------------------------------------------------------


def test_redis_keeps_nothing_and_stays_on_this_machine(services, folder: Path) -> None:
    services.need("redis")
    server = PrivateRedis(folder / "server", {"databases": "99"})
    try:
        server.start()
        with redis.Redis.from_url(server.url) as client:
            client.set("a", "b")
            said = client.config_get("*")
        assert said["save"] == ""
        assert said["appendonly"] == "no"
        assert said["bind"] == "127.0.0.1"
        assert said["protected-mode"] == "yes"
        assert said["databases"] == "99"
        server.restart()
        with redis.Redis.from_url(server.url) as client:
            assert client.dbsize() == 0
    finally:
        server.remove()
