"""Layouts are wiring: what each process is told, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobqueue import config
from jobqueue.core.errors import InvalidArgument
from jobqueue.topology.layouts import LAYOUTS
from jobqueue.topology.layouts.layout import SERVERS, WORKERS, Layout, Service
from jobqueue.topology.layouts.plan import Plan
from jobqueue.topology.layouts.ports import Ports


def make(name: str, flags: dict[str, str] | None = None, environ=None, **wishes) -> Layout:
    settings = config.load(None, environ or {}, flags or {}).settings
    return LAYOUTS[name](
        Plan(folder=Path("/srv/a b"), settings=settings, flags=flags or {}, **wishes)
    )


def test_embedded_is_one_server_on_a_file_in_the_folder():
    layout = make("embedded", {"worker.concurrency": "7"})
    (server,) = layout.processes
    assert layout.services == ()
    assert server.environment["JQ_DB_URL"] == "sqlite:////srv/a%20b/jobqueue.db"
    assert server.environment["JQ_WORKER_CONCURRENCY"] == "7"
    assert server.command[1:] == ("-m", "jobqueue.cli.server")
    assert server.probe.path == "/readyz"
    assert layout.http == (f"http://127.0.0.1:{server.environment['JQ_HTTP_PORT']}",)
    assert layout.grpc == (f"127.0.0.1:{server.environment['JQ_GRPC_PORT']}",)


def test_a_setting_on_the_command_line_beats_the_wiring():
    (server,) = make("embedded", {"db.url": "memory://", "http.port": "8123"}).processes
    assert server.environment["JQ_DB_URL"] == "memory://"
    assert server.environment["JQ_HTTP_PORT"] == "8123"


def test_replicated_wires_servers_to_services_and_workers_to_servers():
    layout = make("replicated", {"worker.concurrency": "3"}, servers=3, workers=2)
    servers = [p for p in layout.processes if p.stage == SERVERS]
    workers = [p for p in layout.processes if p.stage == WORKERS]
    assert [p.name for p in servers] == ["server-1", "server-2", "server-3"]
    assert layout.services == (Service("postgres"), Service("redis"))
    for server in servers:
        assert dict(server.needs) == {"JQ_DB_URL": "postgres", "JQ_REDIS_URL": "redis"}
        assert server.environment["JQ_WORKER_CONCURRENCY"] == "0"  # workers do the work
    one, two, three = layout.grpc
    assert [p.environment["JQ_WORKER_SERVER"] for p in workers] == [
        f"grpc://{one},{two},{three}",
        f"grpc://{two},{three},{one}",  # they spread out
    ]
    assert [p.environment["JQ_WORKER_CONCURRENCY"] for p in workers] == ["3", "3"]
    assert len({p.environment["JQ_WORKER_ID"] for p in workers}) == 2
    ports = [p.probe.port for p in layout.processes] + [int(t.split(":")[1]) for t in layout.grpc]
    assert len(set(ports)) == len(ports)


def test_a_worker_has_the_same_name_after_a_restart_and_another_in_another_folder():
    here, again = make("replicated"), make("replicated")
    settings = config.load(None, {}, {}).settings
    there = LAYOUTS["replicated"](Plan(folder=Path("/srv/other"), settings=settings))
    names = [layout.processes[-1].environment["JQ_WORKER_ID"] for layout in (here, again, there)]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize("name", ["postgres", "postgresql"])
def test_named_services_come_from_flags_or_settings(name):
    url = f"{name}://jq:secret@db/jobs"
    assert make("replicated", postgres=url).services[0].url == url
    assert make("replicated", environ={"JQ_DB_URL": url}).services[0].url == url
    assert make("replicated", environ={"JQ_DB_URL": "sqlite:///x.db"}).services[0].url is None
    assert make("replicated", redis="redis://cache").services[1].url == "redis://cache"


def test_no_secret_is_on_a_command_line():
    url = "postgresql://jq:hunter2@db/jobs"
    for process in make("replicated", {"db.url": url}).processes:
        assert "hunter2" not in " ".join(process.command)


def test_tls_is_asked_and_used():
    layout = make("replicated", {"tls.cert": "c.pem", "tls.key": "k.pem"})
    assert layout.http[0].startswith("https://")
    assert layout.processes[0].probe.tls
    assert layout.processes[-1].environment["JQ_WORKER_SERVER"].startswith("grpcs://")


def test_one_that_listens_everywhere_is_asked_here():
    (server,) = make("embedded", {"http.host": "0.0.0.0"}).processes
    assert server.probe.host == "127.0.0.1"


def test_a_server_without_http_is_asked_by_its_grpc_port():
    layout = make("embedded", {"http.enabled": "false"})
    assert layout.http == ()
    assert layout.processes[0].probe.path == ""
    assert layout.grpc == (f"127.0.0.1:{layout.processes[0].probe.port}",)
    with pytest.raises(InvalidArgument, match=r"http\.enabled"):
        make("embedded", {"http.enabled": "false", "grpc.enabled": "false"})
    with pytest.raises(InvalidArgument, match=r"grpc\.enabled"):
        make("replicated", {"grpc.enabled": "false"})


def test_ports_are_counted_from_the_base():
    ports = Ports(47_000)
    try:
        assert [ports.take(), ports.take()] == [47_000, 47_001]
    except InvalidArgument:
        pytest.skip("somebody listens there")


def test_free_ports_are_never_the_same():
    ports = Ports()
    taken = [ports.take() for _ in range(50)]
    assert len(set(taken)) == 50
