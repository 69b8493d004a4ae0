"""Build the settings that all Kafka clients share, and read the texts of Kafka's errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Holds Kafka's address, the login, and the settings of the topics."""

    bootstrap: str
    topics: Sequence[str]  # topics of records, which are kept for ever
    max_message_bytes: int
    hints: Mapping[str, int] = field(default_factory=dict)  # partitions of each topic of hints
    partitions: int = 6  # of a topic of records
    replication: int = -1  # -1: the brokers' default
    security: Mapping[str, str] = field(default_factory=dict, repr=False)

    def client(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "jobqueue",
            "log_level": 0,  # no log lines of its own: the callback ``error_cb`` gets the errors
            **self.security,
        }


def said(error: Any) -> str:
    """Return Kafka's own text of an error or exception."""
    first = error.args[0] if error.args else error
    return str(first.str()) if isinstance(first, confluent_kafka.KafkaError) else str(first)
