"""The settings of every client of Kafka, and the texts of its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """The address and login of Kafka, and the settings of its topics."""

    bootstrap: str
    topics: Sequence[str]  # of records: kept for ever
    max_message_bytes: int
    hints: Mapping[str, int] = field(default_factory=dict)  # topics of hints, and their partitions
    partitions: int = 6
    replication: int = -1  # as the brokers are set up
    security: Mapping[str, str] = field(default_factory=dict, repr=False)

    def client(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "jobqueue",
            "log_level": 0,  # errors come by callback
            **self.security,
        }


def said(error: Any) -> str:
    """Return the text of an error, in Kafka's words."""
    first = error.args[0] if error.args else error
    return str(first.str()) if isinstance(first, confluent_kafka.KafkaError) else str(first)
