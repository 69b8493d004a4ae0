"""A private Kafka: what it keeps, and who can reach it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from jobqueue.fleet import ports
from jobqueue.fleet.backing import (
    BackingFailed,
    PrivateKafka,
    find_kafka,
    kafka,
)
from tests import patience
from tests.services import maven
from tests.services.plugin import run_of
from tests.services.topics import Topics

PATIENCE = patience.longest(60.0)  # seconds
QUIET = {"log_level": 2}
pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def this_files(request: pytest.FixtureRequest) -> Iterator[PrivateKafka]:
    server: PrivateKafka = run_of(request.config).own("kafka", {})
    yield server
    server.remove()


@pytest.fixture
def broker(this_files: PrivateKafka) -> PrivateKafka:
    """One for all tests of this file, which may stop and kill it: it takes seconds to start."""
    this_files.start()
    return this_files


@pytest.fixture
def topics(broker: PrivateKafka, request: pytest.FixtureRequest) -> Topics:
    return Topics(broker.bootstrap, f"{request.node.name.partition('[')[0]}-{os.getpid()}-")


def produce(bootstrap: str, topic: str, values: list[bytes], **settings: Any) -> None:
    """All of them acknowledged, each once."""
    refused: list[KafkaError] = []

    def noted(error: KafkaError | None, _: object) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET, **settings}
    )
    for value in values:
        producer.produce(topic, value, on_delivery=noted)
    assert producer.flush(PATIENCE) == 0
    if refused:
        raise KafkaException(refused[0])


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """So many values from the beginning on."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **QUIET,
        }
    )
    consumer.subscribe([topic])
    values: list[bytes] = []
    limit = patience.Limit(60)
    try:
        while len(values) < count and not limit.over:
            message = consumer.poll(0.5)
            if message is not None and not message.error():
                values.append(message.value() or b"")
    finally:
        consumer.close()
    return values


def processes_in(folder: Path) -> list[str]:
    """Those whose working directory is that folder."""

    def is_there(process: Path) -> bool:
        try:
            return (process / "cwd").readlink() == folder
        except OSError:
            return False

    return [process.name for process in Path("/proc").glob("[0-9]*") if is_there(process)]


def test_what_is_produced_can_be_consumed(kafka: Topics) -> None:
    topic = kafka.create("events")
    values = [str(number).encode() for number in range(1000)]
    produce(kafka.bootstrap, topic, values)
    assert consume(kafka.bootstrap, topic, len(values)) == values


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_acknowledged_survives_its_end(
    broker: PrivateKafka, topics: Topics, end: str
) -> None:
    bootstrap = broker.bootstrap
    topic = topics.create(end, partitions=1, settings={"retention.ms": "-1"})
    before, after = [b"1", b"2", b"3"], [b"4", b"5"]
    produce(bootstrap, topic, before)
    getattr(broker, end)()
    assert processes_in(broker.data) == []
    broker.start()
    assert broker.bootstrap == bootstrap
    produce(bootstrap, topic, after)
    assert consume(bootstrap, topic, 5) == before + after


def test_a_client_outlasts_a_restart(broker: PrivateKafka, topics: Topics) -> None:
    """It was given one address, and goes on with that."""
    topic = topics.create("events")
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, **QUIET}
    )
    producer.produce(topic, b"before")
    assert producer.flush(PATIENCE) == 0
    broker.stop()
    producer.produce(topic, b"meanwhile")
    assert producer.flush(0.5) == 1
    broker.start()
    assert producer.flush(PATIENCE) == 0
    assert consume(broker.bootstrap, topic, 2) == [b"before", b"meanwhile"]


def test_a_paused_broker_goes_on(broker: PrivateKafka, topics: Topics) -> None:
    topic = topics.create("events")
    pid = broker.pid
    assert pid is not None
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, **QUIET}
    )
    os.kill(pid, signal.SIGSTOP)
    try:
        producer.produce(topic, b"late")
        assert producer.flush(0.5) == 1
    finally:
        os.kill(pid, signal.SIGCONT)
    assert producer.flush(PATIENCE) == 0
    assert broker.pid == pid


def test_a_topic_has_to_be_created(broker: PrivateKafka) -> None:
    with pytest.raises(KafkaException) as refused:
        produce(broker.bootstrap, "slip-of-the-pen", [b"x"], **{"message.timeout.ms": 5000})
    error = refused.value.args[0]
    assert error.code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._MSG_TIMED_OUT,
    )


def test_it_listens_on_this_machine_only(broker: PrivateKafka) -> None:
    inodes = set()
    for descriptor in Path(f"/proc/{broker.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed while we look
            inodes.add(str(descriptor.readlink()).removeprefix("socket:[").rstrip("]"))
    listening = [
        fields[1]
        for table in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])
        if fields[3] == "0A" and fields[9] in inodes
    ]
    assert len(listening) == 2  # the broker, and the controller in it
    loopback = ("0100007F", "0000000000000000FFFF00000100007F")
    assert {address.partition(":")[0] for address in listening} <= set(loopback)


def test_it_keeps_both_ports_and_replaces_a_controllers_that_was_taken_meanwhile(
    broker: PrivateKafka,
) -> None:
    port, controller = broker.port, broker._noted_controller_port()
    assert controller is not None
    broker.start()  # it runs
    broker.restart()
    assert (broker.port, broker._noted_controller_port()) == (port, controller)
    broker.stop()
    broker.stop()
    assert not broker.alive()
    with socket.create_server(("127.0.0.1", controller)):
        broker.start()
        assert broker.port == port
        assert broker._noted_controller_port() != controller


def test_losing_the_race_for_the_controllers_port_is_made_up_for(
    broker: PrivateKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = broker.port
    broker.stop()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        offered = [taken.getsockname()[1], ports.free_port()]
        free = offered[1]
        monkeypatch.setattr(broker, "_choose_controller_port", lambda _: offered.pop(0))
        broker.start()
    assert broker._noted_controller_port() == free
    assert broker.port == port


def test_what_stops_it_is_told_in_the_last_lines_of_its_log(broker: PrivateKafka) -> None:
    broker.stop()
    noted = broker.data / "topics/meta.properties"
    right = noted.read_text()
    noted.write_text(re.sub("node.id=.*", "node.id=77", right))
    try:
        with pytest.raises(BackingFailed, match="77") as failed:
            broker.start()
    finally:
        noted.write_text(right)
    assert str(broker.log) in str(failed.value)
    assert "ended with status 1" in str(failed.value)
    assert processes_in(broker.data) == []


def test_a_distribution_is_used_where_it_is_named(
    services: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.need("kafka")
    jars = find_kafka()
    assert jars is not None
    (folder / "libs").symlink_to(jars)
    monkeypatch.setenv("KAFKA_HOME", str(folder))
    server = PrivateKafka(folder / "server")
    try:
        server.start()
        assert str(folder / "libs").encode() in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        ours = AdminClient({"bootstrap.servers": server.bootstrap, **server.login})
        assert ours.list_topics(timeout=PATIENCE)
    finally:
        server.remove()


def test_an_archive_of_its_classes_is_made_and_used(
    services: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.need("kafka")
    jars = find_kafka()
    assert jars is not None
    monkeypatch.delenv(kafka.HOME, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    cached = kafka.cache_folder(os.environ)
    shutil.copytree(jars, cached, ignore=shutil.ignore_patterns("*.jsa"))
    maven._archive_classes(cached)
    server = PrivateKafka(folder / "server")
    try:
        server.start()
        assert str(cached / kafka.ARCHIVE) in Path(f"/proc/{server.pid}/maps").read_text()
    finally:
        server.remove()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("2026-01-01 WARN  KafkaConfig: something\n", False),
        ("2026-01-01 INFO  KafkaRaftServer: Kafka Server started\n", True),
    ],
)
def test_it_is_up_when_it_says_so(folder: Path, output: str, expected: bool) -> None:
    server = PrivateKafka(folder, login=False)
    earlier = "INFO  KafkaRaftServer: Kafka Server started\n"
    server.log.write_text(earlier + output)
    server._logged = len(earlier)
    assert server._answers(9092) is expected
