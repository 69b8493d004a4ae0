"""Another user of the machine, and the private servers of `jq-ctl up` and of tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
import redis
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from jobqueue.fleet import services as supervised
from jobqueue.fleet.backing import PrivateKafka, PrivatePostgres, PrivateRedis, PrivateServer
from jobqueue.fleet.backing import postgres as postgres_module
from jobqueue.fleet.layout import BackingService
from tests import patience
from tests.cli import ups
from tests.services.places import new_folder
from tests.services.plugin import OwnPostgres, OwnRedis
from tests.services.run import Run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
PATIENCE = patience.longest(20.0)  # seconds
DEVELOPERS = "developers-own-token"


@pytest.fixture
def folder() -> Iterator[Path]:
    with new_folder() as made:
        yield made


def readable_by_others(folder: Path) -> list[str]:
    """Files that another user could read, who finds every folder on the way open."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o077
    ]


def command_lines() -> str:
    """Of all processes: everybody can read them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_bytes())
        except OSError:
            continue
    return b"\0".join(found).decode(errors="replace")


# -- PostgreSQL ---------------------------------------------------------------------------------


async def test_a_private_postgres_lets_nobody_in_without_its_password(
    own_postgres: OwnPostgres,
) -> None:
    server = own_postgres()
    for place in (f"127.0.0.1:{server.port}", f"/?host={server.data}&port={server.port}"):
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(f"postgresql://postgres@{place}", timeout=PATIENCE)
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(f"postgresql://postgres:wrong@{place}", timeout=PATIENCE)
    connection = await asyncpg.connect(server.dsn())
    try:
        assert await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = 'postgres'")
        methods = await connection.fetch("SELECT DISTINCT auth_method FROM pg_hba_file_rules")
    finally:
        await connection.close()
    assert [row["auth_method"] for row in methods] == ["scram-sha-256"]


def test_the_data_folder_of_an_earlier_postgres_is_locked_with_what_is_in_it(
    folder: Path, services: Run
) -> None:
    services.need("postgres")
    server = PrivatePostgres(folder / "postgres")
    start_open_to_everybody(server)
    try:
        psql(server, "postgresql://postgres@127.0.0.1", "CREATE TABLE kept AS SELECT 1 AS one")
        server.start()  # it runs, and lets everybody in
        assert "password" in refused_by(server, "postgresql://postgres@127.0.0.1")
        assert psql(server, server.dsn(), "SELECT one FROM kept") == "1"
        server.restart()
        assert psql(server, server.dsn(), "SELECT one FROM kept") == "1"
    finally:
        server.remove()


def test_the_folder_of_an_earlier_postgres_that_was_killed_is_locked_too(
    folder: Path, services: Run
) -> None:
    services.need("postgres")
    server = PrivatePostgres(folder / "postgres")
    start_open_to_everybody(server)
    try:
        psql(server, "postgresql://postgres@127.0.0.1", "CREATE TABLE kept AS SELECT 1 AS one")
        # One of its children notices late that it was killed, and holds its memory till then.
        child = children_of(server)[0]
        os.kill(child, signal.SIGSTOP)
        server.kill()
        noticed = threading.Timer(1.0, os.kill, (child, signal.SIGCONT))
        noticed.start()
        server.start()
        noticed.join()
        assert "password" in refused_by(server, "postgresql://postgres@127.0.0.1")
        assert psql(server, server.dsn(), "SELECT one FROM kept") == "1"
    finally:
        server.remove()


async def test_what_somebody_left_in_the_open_folder_of_an_earlier_postgres_lets_nobody_in(
    folder: Path, services: Run
) -> None:
    """While it let everybody in, everybody could make roles and settings that stay."""
    services.need("postgres")
    server = PrivatePostgres(folder / "postgres")
    start_open_to_everybody(server)
    everybody = "postgresql://postgres@127.0.0.1"
    try:
        for statement in (
            "CREATE ROLE guest LOGIN PASSWORD 'known'",
            "CREATE ROLE \"gu'est\" SUPERUSER LOGIN PASSWORD 'known'",
            f"ALTER SYSTEM SET hba_file = '{server.data / 'pg_hba.conf'}'",
        ):
            psql(server, everybody, statement)
        unit = supervised.create(BackingService("postgres"), folder, folder)
        await unit.launch()
        while not (found := await unit.health()).ok:
            assert unit.ended() is None
            await asyncio.sleep(0.1)
        told = found.detail
        assert "besides postgres that cannot log in any more: 2" in told
        assert f"were moved to {server.data / 'postgresql.auto.conf.earlier'}" in told
        assert "password" in refused_by(server, everybody)
        guest, other = (
            f"postgresql://{role}:known@127.0.0.1:{server.port}/postgres"
            for role in ("guest", "gu'est")
        )
        assert "not permitted to log in" in refused_by(server, guest)
        assert "not permitted to log in" in refused_by(server, other)
        psql(server, server.dsn(), "ALTER ROLE guest LOGIN")
        await unit.stop()
        server.start()  # what the owner does from now on stays
        assert psql(server, guest, "SELECT 1") == "1"
    finally:
        server.remove()


def children_of(server: PrivatePostgres) -> list[int]:
    told = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return [int(pid) for pid in told.split()]


def start_open_to_everybody(server: PrivatePostgres) -> None:
    """As an earlier version left it: no password, and a data folder that asks for none."""
    server.start()
    server.stop()
    (server.folder / "password").unlink(missing_ok=True)
    (server.data / "pg_hba.conf").write_text("host all all 127.0.0.1/32 trust\n")
    conf = server.conf.read_text().splitlines()
    earlier = "\n".join(line for line in conf if not line.startswith("hba_file"))
    configuration, fill, password = server._configuration, server._fill, server._set_password
    server._configuration = lambda port: earlier  # type: ignore[method-assign]
    server._fill = lambda: None  # type: ignore[method-assign]
    server._set_password = lambda: None  # type: ignore[method-assign]
    server.start()
    server._configuration = configuration  # type: ignore[method-assign]
    server._fill = fill  # type: ignore[method-assign]
    server._set_password = password  # type: ignore[method-assign]


def run_psql(server: PrivatePostgres, url: str, statement: str) -> subprocess.CompletedProcess[str]:
    programs = postgres_module.find_postgres()
    assert programs is not None
    base = url if url.count(":") > 1 else f"{url}:{server.port}/postgres"
    return subprocess.run(
        [programs / "psql", "-w", "-A", "-t", "-q", "-d", base, "-c", statement],
        env={"PATH": os.defpath, "PGPASSFILE": os.devnull, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def psql(server: PrivatePostgres, url: str, statement: str) -> str:
    done = run_psql(server, url, statement)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def refused_by(server: PrivatePostgres, url: str) -> str:
    done = run_psql(server, url, "SELECT 1")
    assert done.returncode != 0, "it lets everybody in"
    return done.stderr


# -- Redis --------------------------------------------------------------------------------------


def test_a_private_redis_lets_nobody_in_without_its_password(own_redis: OwnRedis) -> None:
    server = own_redis()
    with (
        redis.Redis(port=server.port) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.keys()
    with redis.Redis.from_url(server.url) as ours:
        ours.set("a", "b")
    server.restart()
    with redis.Redis.from_url(server.url) as ours:
        assert ours.ping()


# -- Kafka --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_private_kafka_lets_nobody_in_without_its_password(folder: Path, services: Run) -> None:
    services.need("kafka")
    server = PrivateKafka(folder / "kafka")
    try:
        server.start()
        controller = server._noted_controller_port()
        assert controller is not None
        for port in (server.port, controller):
            assert is_hung_up_on(port), port
        stranger = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=5)
        wrong = {**server.login, "sasl.password": "wrong"}
        with pytest.raises(KafkaException):
            AdminClient(
                {"bootstrap.servers": server.bootstrap, "log_level": 0, **wrong}
            ).list_topics(timeout=5)
        ours = AdminClient({"bootstrap.servers": server.bootstrap, **server.login})
        assert ours.list_topics(timeout=PATIENCE).brokers
    finally:
        server.remove()


def is_hung_up_on(port: int) -> bool:
    """Whether a request for the topics, from a client that did not log in, ends the connection."""
    request = bytes.fromhex("0003 0001 00000000 ffff 00000000")
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(len(request).to_bytes(4, "big") + request)
        try:
            return connection.recv(64) == b""
        except ConnectionResetError:
            return True


# -- all of them --------------------------------------------------------------------------------


class Imposter:
    """Another program on the port of a server. It agrees to everything, and keeps what it hears."""

    def __init__(self) -> None:
        self.heard = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> Imposter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # ends accept()
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(PATIENCE)
                while said := connection.recv(4096):
                    self.heard += said
                    connection.sendall(struct.pack(">iih", 6, 0, 0))  # Kafka's: no error


@pytest.mark.parametrize(
    ("kind", "noted"), [(PrivateRedis, "redis.pid"), (PrivateKafka, "kafka.pid")]
)
def test_a_program_on_the_port_of_a_starting_server_is_not_told_its_password(
    kind: type[PrivateServer], noted: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enough(Exception):
        pass

    with Imposter() as imposter:
        server = kind(folder / "server", port=imposter.port)
        asked: list[bool] = []
        answers = server._answers

        def counted(port: int) -> bool:
            asked.append(answers(port))
            if len(asked) == 3:
                raise Enough
            return asked[-1]

        # It has noted its process, and does not listen yet.
        start = ["/bin/sh", "-c", f"echo $$ > {noted} && exec sleep 600"]
        monkeypatch.setattr(server, "_command", lambda: start)
        monkeypatch.setattr(server, "_fill", lambda: None)
        monkeypatch.setattr(server, "_answers", counted)
        try:
            with pytest.raises(Enough):
                server.start(timeout=PATIENCE)
            password = server.password
        finally:
            server.remove()
    assert asked == [False] * 3
    assert password.encode() not in imposter.heard
    assert imposter.heard == b""


@pytest.mark.parametrize("kind", [PrivatePostgres, PrivateRedis])
def test_a_private_server_knows_nothing_of_the_developers_environment(
    kind: type[PrivateServer], folder: Path, services: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gets it to run a program finds there what it was started with."""
    services.need("postgres" if kind is PrivatePostgres else "redis")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", DEVELOPERS)
    monkeypatch.setenv("JQ_AUTH_JWT_SECRET", DEVELOPERS)
    server = kind(folder / "server")
    try:
        server.start()
        assert server.remark == ""
        told = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
        names = {entry.partition(b"=")[0].decode() for entry in told if entry}
        assert names <= {"PATH", "HOME", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "LC_ALL"}
        assert readable_by_others(server.folder) == []
        assert server.password not in command_lines()
        assert server.password not in server.log.read_text()
    finally:
        server.remove()


@pytest.mark.e2e
@pytest.mark.slow
def test_passwords_of_a_topology_are_in_no_output_log_or_command_line(services: Run) -> None:
    for name in ("postgres", "redis"):
        services.own(name, {})
    with ups.home() as home:
        up = home.ctl(
            *("up", "replicated", "--detach", "--folder", str(home.fleet)),
            *("--servers", "1", "--workers", "1"),
            JQ_DB_PASSWORD="of-another-database",
            JQ_REDIS_PASSWORD="of-another-redis",
        )
        assert up.returncode == 0, up.stderr
        secrets = [(home.fleet / name / "password").read_text() for name in ("postgres", "redis")]
        server = home.ps()["grpc"][0]
        done = home.ctl("--server", server, "job", "submit", "default", "1", "--wait")
        assert done.returncode == 0, done.stderr
        said = [
            *(up.stdout, up.stderr, command_lines()),
            *(home.ctl(*asked).stdout for asked in (["ps"], ["ps", "-o", "json"])),
            json.dumps(home.json("--server", server, "status")),
            (home.fleet / "state.json").read_text(),
            *(log.read_text() for log in (home.fleet / "logs").iterdir()),
        ]
        for secret in secrets:
            assert len(secret) >= 32
            assert not [text for text in said if secret in text]
        assert stat.S_IMODE((home.fleet / "postgres" / "password").stat().st_mode) == 0o600
        assert readable_by_others(home.fleet) == []


@pytest.mark.slow
def test_the_test_servers_are_not_shown_with_their_passwords(folder: Path, services: Run) -> None:
    services.need("redis")
    inside = folder / "services"
    call = [sys.executable, "scripts/services"]
    environment = {"PATH": os.defpath}
    root = Path(__file__).parents[2]
    try:
        started = subprocess.run(
            [*call, "start", "--json", "--folder", str(inside), "redis"],
            cwd=root, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        password = (inside / "redis" / "password").read_text()
        assert password in json.loads(started.stdout)["JQ_TEST_REDIS_URL"]
        status = subprocess.run(
            [*call, "status", "--folder", str(inside)],
            cwd=root, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "running" in status.stdout
        assert password not in status.stdout + status.stderr
    finally:
        PrivateRedis(inside / "redis").remove()
