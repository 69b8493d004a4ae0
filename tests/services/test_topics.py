"""The shared Kafka: topics of a test's own, a Kafka that was named, and the imitation of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.services.conftest import InnerRun
from tests.services.plugin import OwnKafka
from tests.services.topics import Topics

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("test", ["one", "another"])
def test_there_are_no_topics_yet(kafka: Topics, test: str) -> None:
    assert kafka.names() == []
    assert not kafka.is_mock
    assert kafka.create("jobs", partitions=3) == f"{kafka.prefix}jobs"
    assert kafka.names() == [f"{kafka.prefix}jobs"]


def test_a_topic_that_cannot_be_had_is_an_error(kafka: Topics) -> None:
    kafka.create("jobs")
    with pytest.raises(Exception, match="already exists"):
        kafka.create("jobs")


NAMED = """
import os
from tests.services.topics import Topics, run_prefix

def test_it(kafka, services):
    assert kafka.bootstrap == os.environ["JQ_TEST_KAFKA_BOOTSTRAP"]
    kafka.create("jobs")
    assert not (services.place.folder / "kafka").exists()

def test_crash(kafka, services):
    assert Topics(kafka.bootstrap, run_prefix(services.place.token)).names() == []
    kafka.create("jobs")
    if "CRASH" in os.environ:
        os._exit(1)
"""


@pytest.mark.slow
def test_a_kafka_that_was_named_is_used_and_left_as_it_was(
    inner_run: InnerRun, own_kafka: OwnKafka
) -> None:
    broker = own_kafka()
    theirs = Topics(broker.bootstrap, "theirs-")
    theirs.create("topic")
    everything = Topics(broker.bootstrap, "")
    for crash in ({}, {"CRASH": "1"}):
        done = inner_run(NAMED, "-n", "1", JQ_TEST_KAFKA_BOOTSTRAP=broker.bootstrap, **crash)
        assert done.returncode == (1 if crash else 0), done.stdout
        assert everything.names() == ["theirs-topic"]
    assert broker.alive()


IMITATED = """
import pytest
from confluent_kafka import Producer

@pytest.mark.req("jq:FR-036")
@pytest.mark.kafka_or_mock
def test_content_with_little(kafka):
    assert kafka.is_mock
    topic = kafka.create("jobs")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    producer.produce(topic, b"x")
    assert producer.flush(300) == 0
    assert kafka.names() == [topic]

@pytest.mark.req("jq:FR-036")
def test_with_the_real_one(kafka): ...

@pytest.mark.req("jq:FR-036")
def test_without_kafka(): ...
"""
NOWHERE = {"KAFKA_HOME": "/no/such/folder"}


@pytest.mark.parametrize("processes", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_an_imitation_is_told_and_shows_nothing(
    inner_run: InnerRun, tmp_path: Path, processes: list[str]
) -> None:
    recording = ["-p", "tests.plugin_requirements", "-rs"]
    done = inner_run(IMITATED, *recording, *processes, **NOWHERE)
    assert done.returncode == 0, done.stdout
    assert "2 passed, 1 skipped" in done.stdout
    assert "1 tests ran on librdkafka's mock cluster" in done.stdout
    assert "kafka is not installed here" in done.stdout
    record = json.loads((tmp_path / ".requirements.json").read_text())
    assert {test.partition("::")[2]: entry["outcome"] for test, entry in record.items()} == {
        "test_content_with_little": "skipped",
        "test_with_the_real_one": "skipped",
        "test_without_kafka": "passed",
    }


def test_an_imitation_does_not_do_where_kafka_is_required(inner_run: InnerRun) -> None:
    done = inner_run(IMITATED, JQ_TEST_REQUIRE="kafka", **NOWHERE)
    assert done.returncode == 1, done.stdout
    assert "1 passed, 2 errors" in done.stdout
    assert "mock cluster" not in done.stdout
