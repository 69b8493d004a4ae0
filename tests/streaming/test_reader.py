"""Reading hints where Kafka's client cannot even be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobqueue.events.dispatch.reader import HintReader
from jobqueue.events.kafka import KafkaSettings
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
        return "the store is looked at by itself, later" in caplog.text

    try:
        await until(said, "it says what is wrong")
        assert reader._thread is not None
        assert reader._thread.is_alive()
    finally:
        await reader.stop()
