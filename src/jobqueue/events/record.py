"""Read the event stream from Kafka: ``Record`` reads stored records, ``Tail`` follows new records.

Both classes block. They belong to no consumer group and commit no offsets.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import confluent_kafka
from confluent_kafka import TopicPartition

from jobqueue.core.errors import NotFound, Unavailable
from jobqueue.core.identity import Writer
from jobqueue.core.stream import StreamItem
from jobqueue.events.codec import UnknownRecord, decode, writer_of
from jobqueue.events.settings import KafkaSettings, said

_log = logging.getLogger("jobqueue.events")
_TIMEOUT = 10.0
_SILENCE = 30.0  # seconds without a record, after which a reader raises Unavailable
_POLL = 0.5
_TAIL_POLL = 0.2
_PAGE = 5_000
_LOOK_BACK = 100  # messages of a partition in which ``latest_writers`` looks for a record
_END = confluent_kafka.KafkaError._PARTITION_EOF

Part = tuple[str, int]
"""A topic and one of its partitions."""


class _StreamReader:
    """A Kafka consumer of all partitions of the given topics, open during a ``with`` block."""

    def __init__(self, settings: KafkaSettings, group: str, **more: Any) -> None:
        self._address = settings.bootstrap
        self._consumer: Any = confluent_kafka.Consumer(
            {
                **settings.client(),
                "group.id": group,  # required, but not used: nothing is committed
                "enable.auto.commit": False,
                "fetch.message.max.bytes": settings.max_message_bytes,
                "enable.partition.eof": True,
                **more,
            }
        )

    def __enter__(self) -> Self:
        try:
            self._consumer.assign(list(self._places()))
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

    def _places(self) -> Iterator[TopicPartition]:
        raise NotImplementedError

    def _partitions(self, topic: str) -> list[int]:
        found = self._consumer.list_topics(topic, timeout=_TIMEOUT).topics[topic]
        if found.error is not None or not found.partitions:
            raise NotFound(f"Kafka at {self._address} has no topic {topic!r}")
        return sorted(found.partitions)

    def _away(self, why: str) -> Unavailable:
        return Unavailable(f"Kafka at {self._address}: {why}")


class Tail(_StreamReader):
    """Reads all partitions of a topic, from their beginnings or from their ends on."""

    def __init__(self, settings: KafkaSettings, topic: str, *, beginning: bool) -> None:
        super().__init__(settings, "jobqueue-tail")
        self._topic = topic
        self._beginning = beginning
        self._open: set[int] = set()  # partitions whose end has not been reached

    def _places(self) -> Iterator[TopicPartition]:
        offset = confluent_kafka.OFFSET_BEGINNING if self._beginning else confluent_kafka.OFFSET_END
        for number in self._partitions(self._topic):
            self._open.add(number)
            yield TopicPartition(self._topic, number, offset)

    def records(self, *, follow: bool = True) -> Iterator[StreamItem | None]:
        """Yield records as they arrive, and None whenever no record arrived for a moment.

        Without ``follow``, stop at the end of the topic.
        """
        heard = time.monotonic()
        while follow or self._open:
            message = self._consumer.poll(_TAIL_POLL)
            if message is None:
                if not follow and time.monotonic() > heard + _SILENCE:
                    raise self._away(f"no record came for {_SILENCE:g} s")
                yield None
                continue
            error = message.error()
            if error is None:
                heard = time.monotonic()
                try:
                    yield decode(message.value())
                except UnknownRecord as unknown:
                    _log.warning(
                        "skipping offset %d of topic %s, partition %d: %s",
                        message.offset(),
                        message.topic(),
                        message.partition(),
                        unknown,
                    )
            elif error.code() == _END:
                self._open.discard(message.partition())
            elif not error.retriable() and error.fatal():
                raise self._away(error.str())


@dataclass(frozen=True, slots=True)
class Raw:
    """Holds a message of a topic as Kafka returned it, before it is decoded."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes | None  # None: a tombstone
    at: float = 0.0  # Kafka's timestamp
    writer: Writer | None = None  # None: the headers name no writer

    @property
    def where(self) -> str:
        return f"{self.topic}, partition {self.partition}, offset {self.offset}"


class Record(_StreamReader):
    """Reads the stored messages of all partitions of the given topics.

    With ``last``, read at most that many of the latest messages of each partition.
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
        self._ends: dict[Part, int] = {}
        self.total = 0  # messages to read
        self.cut_off: dict[str, str] = {}  # problems of partitions that lack their first records
        self._trouble = ""
        more = {"auto.offset.reset": "error", "error_cb": self._failed}
        super().__init__(settings, "jobqueue-replay", **more)

    def _failed(self, error: Any) -> None:
        self._trouble = error.str()

    def _places(self) -> Iterator[TopicPartition]:
        for topic in self._topics:
            for number in self._partitions(topic):
                here = TopicPartition(topic, number)
                first, end = self._consumer.get_watermark_offsets(here, timeout=_TIMEOUT)
                if first > 0:
                    where = f"{topic}, partition {number}"
                    self.cut_off[where] = f"Kafka has deleted the records before offset {first}"
                if self._last is not None:
                    first = max(first, end - self._last)
                if end > first:
                    self._ends[topic, number] = end
                    self.total += end - first
                    yield TopicPartition(topic, number, first)

    def messages(self) -> Iterator[list[Raw]]:
        """Yield pages of messages. Messages with the same key come in the order of writing."""
        heard = time.monotonic()
        while self._ends:
            page: list[Raw] = []
            for message in self._consumer.consume(_PAGE, _POLL):
                error = message.error()
                if error is None:
                    page += self._read(message)
                elif error.code() == _END:
                    self._reached(message.topic(), message.partition(), message.offset())
                else:
                    self._trouble = error.str()
            if page:
                heard = time.monotonic()
                yield page
            elif time.monotonic() > heard + self._silence:
                raise self._away(self._trouble or f"no record came for {self._silence:g} s")

    def _read(self, message: Any) -> list[Raw]:
        """Return a list of the message; empty if it was written after the reading began."""
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if offset >= self._ends.get((topic, partition), 0):
            return []
        self._reached(topic, partition, offset + 1)
        key, at = message.key() or b"", message.timestamp()[1] / 1000
        writer = writer_of(message.headers())
        return [Raw(topic, partition, offset, key, message.value(), at, writer)]

    def _reached(self, topic: str, partition: int, offset: int) -> None:
        if offset >= self._ends.get((topic, partition), offset + 1):
            del self._ends[topic, partition]


def latest_writers(settings: KafkaSettings, topics: Sequence[str], silence: float) -> set[Writer]:
    """Return the stores that wrote the latest record of each partition.

    In a partition without a record among its last hundred messages, no writer is found. Raise
    Unavailable if no message comes for ``silence`` seconds.
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
    """Return the writer of a message, or None if the message is not a record of the stream."""
    if raw.writer is None:
        with contextlib.suppress(UnknownRecord):
            decode(raw.value)
            return Writer()
    return raw.writer
