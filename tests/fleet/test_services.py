"""The services behind a topology: what is refused before a start, and what is created for one."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.errors import InvalidArgument, NotFound
from jobqueue.fleet import services
from jobqueue.fleet.layout import BackingService, Probe
from tests.services.places import new_folder
from tests.services.plugin import run_of


@pytest.fixture
def folder():
    """One that servers can enter."""
    with new_folder() as made:
        yield made


@pytest.mark.parametrize(
    ("named", "host", "port"),
    [
        ("127.0.0.1:9093", "127.0.0.1", 9093),
        ("kafka", "kafka", 9092),
        ("a:1, b:2", "a", 1),
        ("[::1]:9093", "::1", 9093),
    ],
)
def test_a_kafka_is_named_by_host_and_port(named, host, port, tmp_path):
    service = BackingService("kafka", named)
    services.check((service,))
    unit = services.create(service, tmp_path, tmp_path)
    assert isinstance(unit, services.NamedService)
    assert unit.url == named
    assert unit.probe == Probe(host, port)


@pytest.mark.parametrize(
    "named",
    ["", ":9092", "a:1,", "a:b", "a:99999", "kafka://a:1", "a:1/b", "me:hunter2@a:1"],
)
def test_a_wrong_name_of_a_kafka_is_refused(named):
    with pytest.raises(InvalidArgument, match="--kafka: must be HOST:PORT") as refused:
        services.check((BackingService("kafka", named),))
    assert "hunter2" not in str(refused.value)


def test_a_missing_kafka_is_told_with_the_way_out(monkeypatch):
    monkeypatch.setattr(services, "find_kafka", lambda: None)
    with pytest.raises(NotFound, match=r"Kafka is not installed: .*KAFKA_HOME.* --kafka HOST:PORT"):
        services.check((BackingService("kafka"),))


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(240)
async def test_a_private_kafka_lives_with_its_topology(request, folder):
    run_of(request.config).need("kafka")
    logs = folder / "logs"
    logs.mkdir()
    service = BackingService("kafka")
    services.check((service,))
    unit = services.create(service, folder, logs)
    assert unit.pid is None
    try:
        await unit.launch()
        assert unit.pid is not None
        while not (await unit.health()).ok:
            assert unit.ended() is None
            await asyncio.sleep(0.1)
        assert unit.probe is not None
        assert unit.url == f"127.0.0.1:{unit.probe.port}" == unit.address
        assert (logs / "kafka.log").exists()
    finally:
        await unit.stop()
    assert unit.ended() is not None
    assert not (await unit.health()).ok
