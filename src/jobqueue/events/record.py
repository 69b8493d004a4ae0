"""Reading the stream from its beginning to where it ended when the reading began."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import confluent_kafka
from confluent_kafka import TopicPartition

from jobqueue.core.errors import NotFound, Unavailable
from jobqueue.core.identity import Writer
from jobqueue.events.codec import UnknownRecord, decode
from jobqueue.events.headers import writer_of
from jobqueue.events.settings import KafkaSettings, said

_TIMEOUT = 10.0
_SILENCE = 30.0  # without a record before it is given up
_POLL = 0.5
_PAGE = 5_000
_LOOK_BACK = 100

Part = tuple[str, int]
"""A topic and one of its partitions."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A message as it lies in Kafka."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes | None  # None: a tombstone
    at: float = 0.0  # Kafka's timestamp
    writer: Writer | None = None  # None: it does not say

    @property
    def where(self) -> str:
        """Its place, for people."""
        return f"{self.topic}, partition {self.partition}, offset {self.offset}"


class Record:
    """Every partition of some topics, up to their ends. Blocking; no group, nothing committed.

    With ``last``: of each partition only so many records, the latest ones.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Sequence[str],
        *,
        last: int | None = None,
        silence: float = _SILENCE,
    ) -> None:
        self._topics = topics
        self._last = last
        self._silence = silence
        self._address = settings.bootstrap
        self._ends: dict[Part, int] = {}
        self.total = 0  # messages to read
        self.cut_off: dict[str, str] = {}  # where the beginning is not there any more
        self._trouble = ""
        self._consumer: Any = confluent_kafka.Consumer(
            {
                **settings.client(),
                "group.id": "jobqueue-replay",  # asked for, and not used
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.message.max.bytes": settings.max_message_bytes,
                "enable.partition.eof": True,
                "error_cb": self._failed,
            }
        )

    def _failed(self, error: Any) -> None:
        self._trouble = error.str()

    def __enter__(self) -> Record:
        try:
            begins = [place for topic in self._topics for place in self._look_at(topic)]
            self._consumer.assign(begins)
        except confluent_kafka.KafkaException as error:
            self._consumer.close()
            raise self._away(said(error)) from error
        except BaseException:
            self._consumer.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._consumer.close()

    def _away(self, why: str) -> Unavailable:
        return Unavailable(f"Kafka at {self._address}: {why}")

    def _look_at(self, topic: str) -> Iterator[TopicPartition]:
        found = self._consumer.list_topics(topic, timeout=_TIMEOUT).topics[topic]
        if found.error is not None or not found.partitions:
            raise NotFound(f"Kafka at {self._address} has no topic {topic!r}")
        for number in sorted(found.partitions):
            here = TopicPartition(topic, number)
            first, end = self._consumer.get_watermark_offsets(here, timeout=_TIMEOUT)
            if first > 0:
                where = f"{topic}, partition {number}"
                self.cut_off[where] = f"the records before offset {first} are gone"
            if self._last is not None:
                first = max(first, end - self._last)
            if end > first:
                self._ends[topic, number] = end
                self.total += end - first
                yield TopicPartition(topic, number, first)

    def messages(self) -> Iterator[list[Raw]]:
        """Pages of messages, those of one key in their order."""
        heard = time.monotonic()
        while self._ends:
            page: list[Raw] = []
            for message in self._consumer.consume(_PAGE, _POLL):
                error = message.error()
                if error is None:
                    page += self._read(message)
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    self._reached(message.topic(), message.partition(), message.offset())
                else:
                    self._trouble = error.str()
            if page:
                heard = time.monotonic()
                yield page
            elif time.monotonic() > heard + self._silence:
                raise self._away(self._trouble or f"no record came for {self._silence:g} s")

    def _read(self, message: Any) -> list[Raw]:
        """The message, unless it was written since."""
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if offset >= self._ends.get((topic, partition), 0):
            return []
        self._reached(topic, partition, offset + 1)
        return [
            Raw(
                topic,
                partition,
                offset,
                message.key() or b"",
                message.value(),
                message.timestamp()[1] / 1000,
                writer_of(message.headers()),
            )
        ]

    def _reached(self, topic: str, partition: int, offset: int) -> None:
        if offset >= self._ends.get((topic, partition), offset + 1):
            del self._ends[topic, partition]


def latest_writers(settings: KafkaSettings, topics: Sequence[str], silence: float) -> set[Writer]:
    """Who wrote the latest record of each partition.

    Where that is nobody's record, who wrote the one before it. A topic in which the last hundred
    are nobody's counts as empty.
    """
    found: dict[Part, Writer | None] = {}
    for last in (1, _LOOK_BACK):
        with Record(settings, topics, last=last, silence=silence) as record:
            for page in record.messages():
                for raw in page:
                    part = raw.topic, raw.partition
                    found[part] = _writer(raw) or found.get(part)
        if None not in found.values():
            break
    return {writer for writer in found.values() if writer is not None}


def _writer(raw: Raw) -> Writer | None:
    """Who wrote it; None: it is no record of the stream."""
    if raw.writer is None:
        with contextlib.suppress(UnknownRecord):
            decode(raw.value)
            return Writer()
    return raw.writer
