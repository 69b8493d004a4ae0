"""From a URL to a backend."""

from __future__ import annotations

import importlib
import logging
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from jobqueue import JobQueue, config
from jobqueue.connect.backends import create_backend, create_locks, create_store
from jobqueue.connect.urls import parse_url, with_password
from jobqueue.core.errors import InvalidArgument, NotFound
from jobqueue.core.job import JobSpec
from jobqueue.server import options
from jobqueue.server.process import ServerProcess
from jobqueue.server.worker import WorkerProcess
from jobqueue.stores.memory import MemoryStore


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///jobs.db", "jobs.db"),
        ("sqlite:///./a/jobs.db", "a/jobs.db"),
        ("sqlite:////var/lib/jobs.db", "/var/lib/jobs.db"),
        ("SQLite:///a%20b.db", "a b.db"),
    ],
)
def test_files(url, path):
    assert parse_url(url).path == Path(path)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("grpc://127.0.0.1:50051", "127.0.0.1:50051"),
        ("grpc://server.example:1/", "server.example:1"),
        ("grpc://[::1]:50051", "[::1]:50051"),
        ("grpc://a:1,b.example:2,[::1]:3/", "a:1,b.example:2,[::1]:3"),
    ],
)
def test_servers(url, target):
    assert parse_url(url).target == target


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "is not a known form; allowed: memory://, sqlite:///FILE"),
        ("jobs.db", "did you mean sqlite:///jobs.db?"),
        ("localhost:50051", "did you mean grpc://localhost:50051?"),
        ("http://localhost:8080", "name the server's gRPC port, like grpc://127.0.0.1:50051"),
        ("postgresql+psycopg://h/db", "did you mean postgresql://?"),
        ("mysql://u:hush@h/db", "'mysql://u:***@h/db' is not a known form"),
        ("memory://x", "memory:// must not have a path"),
        ("sqlite://", "three slashes"),
        ("sqlite://jobs.db", "three slashes for a relative file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///dir/", "names no file"),
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite:///x.db?mode=ro", "must not have options"),
        ("grpc://", "needs a host and a port, like grpc://127.0.0.1:50051"),
        ("grpc://host", "needs a host and a port"),
        ("grpc://host:port", "needs a host and a port"),
        ("grpc://host:0", "the port must be 1 to 65535"),
        ("grpc://host:1,", "needs a host and a port"),
        ("grpc://host:1,,host:2", "needs a host and a port"),
        ("grpc://host:1,host:0", "the port must be 1 to 65535"),
        ("grpc://host:1,u:hush@host:2", "a grpc URL must have only a host"),
        ("grpc://host:70000", "the port must be 1 to 65535"),
        ("grpc://u:hush@host:1", "a grpc URL must have only a host"),
        ("grpc://host:1/path", "a grpc URL must have only a host"),
        ("postgresql://u:hush@h:0/db", "the port must be 1 to 65535"),
        ("postgresql://u:hush@h1:5432,h2:70000/db", "the port must be 1 to 65535"),
        ("postgresql://u:hush@h:five/db", "expected HOST or HOST:PORT after '//' or '@'"),
        ("postgresql://u:hush/x@h/db", "are written as %2F (/)"),
        ("postgresql://u:hush#x@h/db", "%23 (#)"),
        ("postgresql://u:12#hush@h/db", "'postgresql://u:***@h/db': expected HOST or HOST:PORT"),
        ("postgresql://u:12/hush@h/db", "'postgresql://u:***@h/db': expected HOST or HOST:PORT"),
        ("postgresql://u:a@hush@h/db", "'postgresql://u:***@h/db': expected HOST or HOST:PORT"),
        ("postgresql://me@srv:hush@h/db", "expected HOST or HOST:PORT"),
        ("postgresql://u:12?hush@h/db", "'postgresql://u:***@h/db': expected HOST or HOST:PORT"),
        ("postgresql://u:hu[sh@h/db", "'postgresql://u:***@h/db': expected HOST or HOST:PORT"),
        ("redis://:hush#x@h/0", "'redis://:***@h/0': expected HOST or HOST:PORT"),
        ("redis://:12#hush@h/0", "'redis://:***@h/0': expected HOST or HOST:PORT"),
        ("postgresql+asyncpg://u:hush@h/db", "is not a known form; allowed: memory://"),
        ("redis://:hush@a,b/0", "needs one host"),
        ("redis://:hush@h/0?socket_timeout=1", "options after '?' must begin with ssl_"),
        ("redis://:hush@h/0?prefix=", "prefix must be 1 to 50 letters"),
        ("redis://:hush@h/0?prefix=a:b", "prefix must be 1 to 50 letters"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(url, message):
    with pytest.raises(InvalidArgument) as caught:
        parse_url(url, "db.url")
    assert caught.value.field == "db.url"
    assert message in caught.value.message
    assert "hush" not in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://jq@db.example:5432/jobs",
        "postgres://jq:hush@[::1]:5432/jobs",
        "PostgreSQL://jq@h1:5432,h2:5433,[::1]:1/jobs?target_session_attrs=primary",
        "postgresql:///jobs?host=/run/postgresql",
        "postgresql://db/jobs?user=jq&password=a@b",
        "postgresql://jq%40home:hush%23%5B1@[::1]:5432/jobs",
    ],
)
def test_databases(url):
    assert parse_url(url).scheme == "postgresql"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:6379", "is not a known form; allowed: redis://HOST:PORT/NUMBER"),
        ("http://:hush@h", "is not a known form"),
        ("redis://", "needs one host, like redis://127.0.0.1:6379/0"),
        ("redis://:hush@/0", "needs one host"),
        ("redis://:hush@a:1,b:2/0", "needs one host"),
        ("redis://:hush@h:0", "the port must be 1 to 65535"),
        ("redis://:hush@h:x", "expected HOST or HOST:PORT"),
        ("redis://:hush#x@h", "expected HOST or HOST:PORT"),
        ("redis://:12#hush@h", "expected HOST or HOST:PORT"),
        ("redis://:hush@h/jobs", "the path must be the number of a database"),
        ("redis://:hush@h/0?socket_timeout=1", "options after '?' must begin with ssl_"),
        ("rediss://:hush@h/0?ssl_nonsense=1", "ssl_nonsense"),
    ],
)
def test_a_wrong_redis_is_said_without_the_password(url, message):
    with pytest.raises(InvalidArgument) as caught:
        create_locks(url)
    assert caught.value.field == "redis.url"
    assert message in caught.value.message
    assert "hush" not in caught.value.message


async def test_no_redis_is_fine_and_a_named_one_shows_where_it_is():
    assert create_locks("") is None
    locks = create_locks("rediss://me:hush@cache.example:6380/3?ssl_ca_certs=ca.pem")
    assert locks is not None
    health = locks.health()
    assert (health.name, health.ok) == ("redis", False)
    assert "cache.example:6380/3" in health.detail
    assert "hush" not in health.detail


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://jq@h:1/db?a=b", "postgresql://jq:p%40%2F%3A%23@h:1/db?a=b"),
        ("postgres://jq:old@h1,h2/db", "postgres://jq:p%40%2F%3A%23@h1,h2/db"),
        ("postgresql:///db?host=/run", "postgresql://:p%40%2F%3A%23@/db?host=/run"),
        ("redis://h:6379/2", "redis://:p%40%2F%3A%23@h:6379/2"),
        ("rediss://acl@h", "rediss://acl:p%40%2F%3A%23@h"),
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("grpc://h:1", "grpc://h:1"),
        ("", ""),
    ],
)
def test_a_password_is_put_where_it_belongs(url, expected):
    assert with_password(url, "p@/:#") == expected
    assert with_password(url, "") == url


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [
        ("asyncpg", "postgres", lambda: create_store("postgresql://h/db", field="db.url")),
        ("redis", "redis", lambda: create_locks("redis://h", field="db.url")),
        ("redis", "redis", lambda: create_store("redis://h", field="db.url")),
    ],
)
def test_a_missing_package_is_named(monkeypatch, package, extra, call):
    for name in list(sys.modules):
        if name.split(".")[0] == package or name.startswith("jobqueue.stores.redis"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    stand_in(monkeypatch, needs=package)
    with pytest.raises(InvalidArgument, match=rf"pip install 'jobqueue\[{extra}\]'") as caught:
        call()
    assert caught.value.field == "db.url"


class StandIn(MemoryStore):
    """In place of the PostgreSQL store: notes what it was made from."""

    name = "postgresql"
    durable = True

    def __init__(self, dsn: str, **said: Any) -> None:
        super().__init__(rules=said["rules"])
        self.dsn = dsn
        self.said = said


def stand_in(monkeypatch: pytest.MonkeyPatch, needs: str = "sys") -> None:
    folder = types.ModuleType("jobqueue.stores.postgres")
    module = types.ModuleType("jobqueue.stores.postgres.store")
    module.__getattr__ = lambda name: (importlib.import_module(needs), StandIn)[1]  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, folder.__name__, folder)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_a_server_is_no_store():
    with pytest.raises(InvalidArgument, match="names a server, not a store"):
        create_store("grpc://h:1")


def test_a_file_may_be_required_to_exist(tmp_path):
    with pytest.raises(NotFound, match="there is no file"):
        create_store(f"sqlite:///{tmp_path}/x.db", create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
async def test_a_backend_works_once_it_is_started(tmp_path, scheme):
    url = "memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/deep/down/jobs.db"
    backend = create_backend(url)
    await backend.stop()
    await backend.start()
    try:
        (result,) = await backend.submit([JobSpec(payload=b"1")])
        assert (await backend.get(result.unwrap())).payload == b"1"
    finally:
        await backend.stop()


# -- on PostgreSQL -----------------------------------------------------------------------------

ON_POSTGRES = {"db.url": "postgresql://jq@a:1,b:2/jobs", "redis.url": "redis://cache:7/1"}
SECRETS = {"JQ_DB_PASSWORD": "p/w", "JQ_REDIS_PASSWORD": "r:w"}


def made_store(backend: Any) -> StandIn:
    store = backend._store
    assert isinstance(store, StandIn)
    return store


def test_a_server_gets_its_store_from_the_settings(monkeypatch):
    stand_in(monkeypatch)
    loaded = config.load(None, SECRETS, {**ON_POSTGRES, "db.pool_size": 3})
    store = made_store(ServerProcess(loaded.settings).backend)
    assert store.dsn == "postgresql://jq:p%2Fw@a:1,b:2/jobs"
    assert store.said["pool_size"] == 3
    assert "cache:7/1" in store.said["locks"].health().detail
    assert loaded.warnings == []


def test_a_redis_that_is_not_used_is_said(caplog):
    ServerProcess(config.load(None, {}, {"db.url": "memory://", "redis.url": "redis://h"}).settings)
    assert "redis.url is ignored" in caplog.text


def test_a_worker_opens_the_store_likewise(monkeypatch):
    stand_in(monkeypatch)
    settings = config.load(None, SECRETS, {"redis.url": ON_POSTGRES["redis.url"]}).settings
    worker = WorkerProcess(settings, ON_POSTGRES["db.url"], queues=["default"])
    store = made_store(worker._backend)
    assert store.dsn == "postgresql://jq:p%2Fw@a:1,b:2/jobs"
    assert "cache:7/1" in store.said["locks"].health().detail


def test_an_app_opens_the_store_with_the_redis_it_was_given(monkeypatch):
    stand_in(monkeypatch)
    app = JobQueue("postgresql://jq@h/jobs", redis_url="redis://cache:7/1")
    assert "cache:7/1" in made_store(app.shared.create()).said["locks"].health().detail
    app = JobQueue("postgresql://jq@h/jobs")
    assert made_store(app.shared.create()).said["locks"] is None
    with pytest.raises(InvalidArgument, match="redis_url: is only for a store on PostgreSQL"):
        JobQueue("sqlite:///jobs.db", redis_url="redis://cache")
    with pytest.raises(InvalidArgument, match=r"redis_url: .* allowed: redis://"):
        JobQueue("postgresql://jq@h/jobs", redis_url="cache")


@pytest.mark.parametrize(
    ("url", "environ", "flags", "expected"),
    [
        ("postgresql://h/jobs", {}, {}, 0),
        ("postgresql://h/jobs", {}, {"worker.concurrency": "2"}, 2),
        ("postgresql://h/jobs", {"JQ_WORKER_CONCURRENCY": "3"}, {}, 3),
        ("postgresql://h/jobs", {}, {"worker.app": "tasks:app"}, 4),
        ("postgresql://h/jobs", {}, {"worker.queues": "a,b"}, 0),
        ("sqlite:///jobs.db", {}, {}, 4),
        ("memory://", {}, {"worker.concurrency": "0"}, 0),
    ],
)
def test_a_pool_on_a_shared_store_must_be_asked_for(url, environ, flags, expected):
    settings = config.load(None, environ, {"db.url": url, **flags}).settings
    assert options.pool_concurrency(settings) == expected


@pytest.mark.parametrize("asked", [False, True])
async def test_a_server_without_a_pool_says_so(monkeypatch, caplog, asked):
    stand_in(monkeypatch)
    caplog.set_level(logging.INFO, "jobqueue.server")
    flags = {"db.url": "postgresql://h/jobs", "http.port": 0, "grpc.port": 0}
    if asked:
        flags["worker.concurrency"] = 2
    server = ServerProcess(config.load(None, {}, flags).settings)
    await server.start()
    try:
        workers = await server.backend.list_workers()
    finally:
        await server.stop()
    (ready,) = [r for r in caplog.records if r.getMessage().startswith("ready")]
    assert ("no built-in pool: jobs wait for a jq-worker" in ready.getMessage()) is not asked
    assert ready.concurrency == (2 if asked else 0)
    assert len(workers) == asked
