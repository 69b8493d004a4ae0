"""Reading hints: only while somebody wants them, and where Kafka's client cannot even be made."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from jobqueue.core.dispatch import Hint, HintKind
from jobqueue.events.dispatch.reader import HintReader
from jobqueue.events.settings import KafkaSettings
from jobqueue.events.topics import encode_hint
from tests import patience
from tests.services.topics import Topics
from tests.streaming.system import until


async def test_a_client_that_cannot_be_made_is_said_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its certificates may be put in place later. Until then the store is looked at."""
    settings = KafkaSettings(
        bootstrap="127.0.0.1:9",
        topics=(),
        max_message_bytes=1_000,
        security={"security.protocol": "ssl", "ssl.ca.location": str(tmp_path / "missing.pem")},
    )
    reader = HintReader(settings, {"assignments": 0})
    reader.start(lambda hints: None)

    async def said() -> bool:
        return "the store is read at intervals instead" in caplog.text

    try:
        await until(said, "it says what is wrong")
        assert reader._thread is not None
        assert reader._thread.is_alive()
    finally:
        await reader.stop()


async def test_nothing_is_read_while_nobody_wants_it(
    kafka: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stands by costs Kafka nothing; who takes the lead hears what is said from then on."""
    kafka.create("requests", partitions=1)
    topic = kafka.name("requests")
    settings = KafkaSettings(bootstrap=kafka.bootstrap, topics=(), max_message_bytes=1_000)
    placed: list[bool] = []
    asked: list[bool] = []
    leads = False

    def wanted() -> bool:
        asked.append(leads)
        return leads

    async def often() -> bool:
        return len(asked) > 3

    async def listens() -> bool:
        return bool(placed)

    reader = HintReader(settings, {topic: None}, placed=lambda: placed.append(leads))
    made: list[object] = []
    make = reader._consumer

    def counted() -> Any:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(reader, "_consumer", counted)
    reader.start(lambda hints: None, wanted)
    try:
        await until(often, "it is asked")
        assert (placed, made) == ([], [])
        leads = True
        await until(listens, "it reads")
        leads = False
        asked.clear()
        await until(often, "it is asked again")
        leads = True
        placed.clear()
        await until(listens, "it reads again")
        assert len(made) == 2
    finally:
        await reader.stop()


async def test_what_is_no_hint_costs_no_other(
    kafka: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    """A tombstone, or what somebody else wrote there."""
    kafka.create("requests", partitions=1)
    topic = kafka.name("requests")
    settings = KafkaSettings(bootstrap=kafka.bootstrap, topics=(), max_message_bytes=1_000)
    placed: list[bool] = []
    heard: list[Hint] = []

    async def reads() -> bool:
        return bool(placed)

    async def all_heard() -> bool:
        return len(heard) == 4

    hints = [Hint(HintKind.JOB_CREATED, f"job:{n}", 1.0, "job", "q") for n in range(4)]
    reader = HintReader(settings, {topic: None}, placed=lambda: placed.append(True))
    reader.start(heard.extend)
    try:
        await until(reads, "it reads")
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for hint, rubbish in zip(hints, (None, b"", b"\xff\xff", b"hello"), strict=True):
            producer.produce(topic, rubbish)
            producer.produce(topic, encode_hint(hint))
        assert await asyncio.to_thread(producer.flush, patience.longest(30.0)) == 0
        await until(all_heard, "every hint is heard")
    finally:
        await reader.stop()
    assert heard == hints
    assert len(placed) == 1  # it never had to begin anew
    assert "a tombstone" in caplog.text
