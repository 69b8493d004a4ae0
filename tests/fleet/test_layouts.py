"""Layouts are wiring: what each process is told, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobqueue import config
from jobqueue.core.errors import InvalidArgument
from jobqueue.fleet.layout import SERVERS, WORKERS, BackingService, Layout, UpRequest
from jobqueue.fleet.ports import Ports
from jobqueue.fleet.topologies import LAYOUTS
from jobqueue.taskqueue.designs.catalogue import SERVICES
from tests import ports


def make(name: str, flags: dict[str, str] | None = None, environ=None, **wishes) -> Layout:
    settings = config.load(None, environ or {}, flags or {}).settings
    return LAYOUTS[name](
        UpRequest(folder=Path("/srv/a b"), settings=settings, flags=flags or {}, **wishes)
    )


def test_embedded_is_one_server_on_a_file_in_the_folder():
    layout = make("embedded", {"worker.concurrency": "7"})
    (server,) = layout.processes
    assert layout.services == ()
    assert server.environment["JQ_DB_URL"] == "sqlite:////srv/a%20b/jobqueue.db"
    assert server.environment["JQ_WORKER_CONCURRENCY"] == "7"
    assert server.command[1:] == ("-P", "-m", "jobqueue.cli.server")
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
    assert layout.services == (BackingService("postgres"), BackingService("redis"))
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
    used = [p.probe.port for p in layout.processes] + [int(t.split(":")[1]) for t in layout.grpc]
    assert len(set(used)) == len(used)


def test_a_worker_has_the_same_name_after_a_restart_and_another_in_another_folder():
    here, again = make("replicated"), make("replicated")
    settings = config.load(None, {}, {}).settings
    there = LAYOUTS["replicated"](UpRequest(folder=Path("/srv/other"), settings=settings))
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
    layout = make("streaming", {"tls.cert": "c.pem", "tls.key": "k.pem"})
    scheduler = next(process for process in layout.processes if process.role == "scheduler")
    assert scheduler.probe.tls
    assert scheduler.address.startswith("https://")


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
    base = ports.take(row=2)
    counted = Ports(base)
    assert [counted.take(), counted.take()] == [base, base + 1]


def test_free_ports_are_never_the_same():
    free = Ports()
    taken = [free.take() for _ in range(50)]
    assert len(set(taken)) == 50


# -- the task queue in two designs -----------------------------------------------------------------


@pytest.mark.req("tq:STARTUP")
def test_microservices_wires_six_services():
    layout = make("microservices")
    found = {process.name: process for process in layout.processes}
    assert set(found) == {"gateway", "job", "queue", "coordinator", "result", "worker"}
    assert layout.services == ()
    assert layout.api == "taskqueue.v1"
    assert layout.grpc == (found["gateway"].address,)
    for name, process in found.items():
        assert process.command[1:] == ("-P", "-m", "jobqueue.cli.service", name)
        SERVICES[name].read(process.environment)  # it would start
    for caller in ("gateway", "coordinator"):
        environment = found[caller].environment
        for owner in ("job", "queue", "result"):
            assert environment[f"{owner.upper()}_SERVICE_ADDR"] == found[owner].address
    worker = found["worker"]
    assert worker.environment["COORDINATOR_ADDR"] == found["coordinator"].address
    assert worker.probe.port == found["coordinator"].ports[0]
    owners = max(found[name].stage for name in ("job", "queue", "result"))
    assert owners < found["coordinator"].stage == found["gateway"].stage < worker.stage


@pytest.mark.req("tq:ROUTE", "tq:INGRESS")
def test_nodes_are_told_the_same_list_and_each_its_place():
    layout = make("nodes")
    assert len(layout.processes) == 6
    assert [process.address for process in layout.processes] == list(layout.grpc)
    assert layout.api == "taskqueue.v1"
    for index, node in enumerate(layout.processes):
        values = SERVICES["node"].read(node.environment)
        assert values.nodes == layout.grpc
        assert values.node_index == index
        assert values.node_port == node.ports[0] == node.probe.port
    assert len({node.environment["WORKER_ID"] for node in layout.processes}) == 6


def _slots(layout: Layout) -> list[int]:
    told = [process.environment.get("WORKER_SLOTS") for process in layout.processes]
    return [int(slots) for slots in told if slots]


@pytest.mark.req("tq:FAIR", "tq:LOCK-2", "tq:NFR-6")
def test_both_designs_have_six_slots_in_all():
    assert _slots(make("microservices")) == [6]
    assert _slots(make("nodes")) == [1] * 6
    assert [_slots(make("nodes", nodes=n)) for n in (1, 4)] == [[6], [2, 2, 1, 1]]
    assert _slots(make("nodes", nodes=8)) == [1] * 8  # a node without any would be no node
    assert _slots(make("nodes", {"worker.concurrency": "3"}, nodes=2)) == [3, 3]
    assert _slots(make("microservices", {"worker.concurrency": "3"})) == [3]


@pytest.mark.parametrize("name", ["microservices", "nodes"])
def test_services_listen_on_this_machine_only(name):
    for process in make(name).processes:
        assert process.environment.get("BIND_HOST", "127.0.0.1") == "127.0.0.1"
        assert process.probe.host == "127.0.0.1"
        assert ("BIND_HOST" in process.environment) == bool(process.ports)


def test_services_take_the_settings_that_they_know():
    flags = {"log.level": "debug", "worker.shutdown_timeout": "3", "server.shutdown_timeout": "2"}
    for process in make("microservices", flags).processes:
        assert process.environment["LOG_LEVEL"] == "debug"
        seconds = 3 if process.name == "worker" else 2
        assert process.environment["SHUTDOWN_TIMEOUT_MS"] == str(seconds * 1000)
        assert process.stop_timeout > seconds


@pytest.mark.parametrize(
    ("name", "wishes", "said"),
    [
        ("microservices", {"nodes": 3}, "--nodes: is not for the microservices .* `up nodes`"),
        ("embedded", {"nodes": 3}, "--nodes: is not for the embedded"),
        ("replicated", {"nodes": 3}, "--nodes: is not for the replicated"),
        ("nodes", {"nodes": 0}, "--nodes: must be 1 to 100"),
        ("nodes", {"servers": 2}, "--servers: is not for the nodes .* `up replicated`"),
        ("nodes", {"config_file": Path("x.yaml")}, "--config: is not for the nodes"),
        ("microservices", {"flags": {"http.port": "1"}}, r"http\.port: is not for the micro"),
        ("nodes", {"flags": {"worker.app": "a:b"}}, r"worker\.app: is not for the nodes"),
    ],
)
def test_what_a_design_does_not_have_is_refused(name, wishes, said):
    with pytest.raises(InvalidArgument, match=said):
        make(name, **wishes)


@pytest.mark.req("tq:STARTUP")
def test_services_take_their_ports_in_the_order_of_the_document():
    try:
        layout = make("microservices", ports=Ports(47_051))
    except InvalidArgument:
        pytest.skip("somebody listens there")
    ports = {process.name: process.ports for process in layout.processes}
    order = ("gateway", "job", "queue", "coordinator", "result")
    assert [ports[name][0] for name in order] == list(range(47_051, 47_056))
    assert ports["worker"] == ()
