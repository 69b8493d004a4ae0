"""What every client of Kafka is told, and what Kafka says when something is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Where Kafka is, how to get in, and how its topics are made."""

    bootstrap: str
    topics: Sequence[str]  # of the record: kept for ever
    max_message_bytes: int
    hints: Mapping[str, int] = field(default_factory=dict)  # topics of hints, and their partitions
    partitions: int = 6
    replication: int = -1  # as the brokers are set up
    security: Mapping[str, str] = field(default_factory=dict, repr=False)

    def client(self) -> dict[str, Any]:
        """What every client of that Kafka is told."""
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "jobqueue",
            "log_level": 0,  # errors come by callback
            **self.security,
        }


def said(error: Any) -> str:
    """What went wrong, in Kafka's words."""
    first = error.args[0] if error.args else error
    return str(first.str()) if isinstance(first, confluent_kafka.KafkaError) else str(first)
