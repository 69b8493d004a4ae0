"""From a URL to a backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobqueue.core.errors import InvalidArgument, NotFound
from jobqueue.core.job import JobSpec
from jobqueue.topology.connect import create_backend, create_store, parse_url


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
        ("jobs.db", "is not a known form; allowed"),
        ("mysql://u:hush@h/db", "'mysql://u:***@h/db' is not a known form"),
        ("memory://x", "memory:// takes no path"),
        ("sqlite://", "three slashes"),
        ("sqlite://jobs.db", "three slashes for a relative file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///dir/", "names no file"),
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite:///x.db?mode=ro", "takes no options"),
        ("grpc://", "needs a host and a port, like grpc://127.0.0.1:50051"),
        ("grpc://host", "needs a host and a port"),
        ("grpc://host:port", "needs a host and a port"),
        ("grpc://host:0", "the port must be 1 to 65535"),
        ("grpc://host:1,", "needs a host and a port"),
        ("grpc://host:1,,host:2", "needs a host and a port"),
        ("grpc://host:1,host:0", "the port must be 1 to 65535"),
        ("grpc://host:1,u:hush@host:2", "grpc takes only a host and a port"),
        ("grpc://host:70000", "the port must be 1 to 65535"),
        ("grpc://u:hush@host:1", "grpc takes only a host and a port"),
        ("grpc://host:1/path", "grpc takes only a host and a port"),
        ("postgresql://u:hush@h/db", "PostgreSQL comes with a later version"),
        ("redis://h", "Redis comes with a later version"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(url, message):
    with pytest.raises(InvalidArgument) as caught:
        parse_url(url, "db.url")
    assert caught.value.field == "db.url"
    assert message in caught.value.message
    assert "hush" not in caught.value.message


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
