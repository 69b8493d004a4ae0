"""Reading the stream as it comes, for people."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import confluent_kafka

from jobqueue.core.errors import NotFound, Unavailable
from jobqueue.core.stream import StreamItem
from jobqueue.events.codec import UnknownRecord, decode
from jobqueue.events.settings import KafkaSettings, said

_log = logging.getLogger("jobqueue.events.tail")
_TIMEOUT = 10.0
_POLL = 0.2
_SILENCE = 30.0  # without a record before its end is given up


class Tail:
    """Every partition of a topic, from its end or its beginning on. Blocking; no group."""

    def __init__(self, settings: KafkaSettings, topic: str, *, beginning: bool) -> None:
        self._topic = topic
        self._address = settings.bootstrap
        self._beginning = beginning
        self._consumer: Any = confluent_kafka.Consumer(
            {
                **settings.client(),
                "group.id": "jobqueue-tail",  # asked for, and not used: nothing is committed
                "enable.auto.commit": False,
                "fetch.message.max.bytes": settings.max_message_bytes,
                "enable.partition.eof": True,
            }
        )

    def __enter__(self) -> Tail:
        try:
            found = self._consumer.list_topics(self._topic, timeout=_TIMEOUT).topics[self._topic]
        except confluent_kafka.KafkaException as error:
            self._consumer.close()
            raise Unavailable(f"Kafka at {self._address}: {said(error)}") from error
        if found.error is not None or not found.partitions:
            self._consumer.close()
            raise NotFound(f"Kafka at {self._address} has no topic {self._topic!r}")
        offset = confluent_kafka.OFFSET_BEGINNING if self._beginning else confluent_kafka.OFFSET_END
        self._open = set(found.partitions)
        self._consumer.assign(
            [confluent_kafka.TopicPartition(self._topic, n, offset) for n in found.partitions]
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._consumer.close()

    def records(self, *, follow: bool = True) -> Iterator[StreamItem | None]:
        """Records as they come, and None now and then while there are none.

        Without ``follow`` it ends at the end of every partition.
        """
        heard = time.monotonic()
        while follow or self._open:
            message = self._consumer.poll(_POLL)
            if message is None:
                if not follow and time.monotonic() > heard + _SILENCE:
                    raise Unavailable(
                        f"Kafka at {self._address}: no record came for {_SILENCE:g} s"
                    )
                yield None
                continue
            error = message.error()
            if error is None:
                heard = time.monotonic()
                try:
                    yield decode(message.value())
                except UnknownRecord as unknown:
                    _log.warning(
                        "topic %s, partition %d, offset %d: %s; it is passed over",
                        self._topic,
                        message.partition(),
                        message.offset(),
                        unknown,
                    )
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                self._open.discard(message.partition())
            elif not error.retriable() and error.fatal():
                raise Unavailable(f"Kafka at {self._address}: {error.str()}")
