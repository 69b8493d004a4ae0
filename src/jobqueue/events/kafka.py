"""Publish records and hints to Kafka with librdkafka's idempotent producer, and create topics.

A message never times out: while the brokers are unreachable, the producer keeps the messages, and
sends them in order afterwards. So an outage does not change the order of messages, and the relay
only waits. A message that a broker refuses for good is reported as ``Refused``; any other error is
``PublishFailed``, after which the relay sends again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewPartitions, NewTopic

from jobqueue.core.errors import JobQueueError
from jobqueue.core.identity import Writer
from jobqueue.events.publisher import Message, PublishFailed, Refused
from jobqueue.events.record import latest_writers
from jobqueue.events.settings import KafkaSettings, said

_log = logging.getLogger("jobqueue.events.kafka")
_ADMIN_TIMEOUT = 5.0
_PROBE_TIMEOUT = 2.0
_POLL = 0.1
_GOODBYE = 2.0

_BATCH_BYTES = 1_000_000  # librdkafka's own default
# A hint is useful for seconds. Kafka keeps it for a day for people who look into a problem.
_HINTS_KEPT = {"retention.ms": str(24 * 3600 * 1000), "cleanup.policy": "delete"}

_Error = confluent_kafka.KafkaError
_TOO_LARGE = frozenset({_Error.MSG_SIZE_TOO_LARGE, _Error.RECORD_LIST_TOO_LARGE})
# Errors that do not depend on the time: the broker would refuse the message again.
_FOR_GOOD = frozenset({*_TOO_LARGE, _Error.INVALID_RECORD, _Error.POLICY_VIOLATION})


class _Sending:
    """Holds the messages of one ``send`` call, and counts the answers in the polling thread.

    A broker refuses all messages of one request together. A message that is refused as too large,
    but is smaller than ``limit``, is *innocent*: another message of its request was too large.
    """

    def __init__(
        self, messages: Sequence[Message], limit: int, done: Callable[[_Sending], None]
    ) -> None:
        self._messages = messages
        self._limit = limit
        self.left = len(messages)
        self.refused: list[Refused] = []
        self.failed = ""
        self.crowded = False  # an innocent message was refused
        self.untimely = False  # a timestamp was refused
        self._done = done

    def delivered(self, error: Any, report: Any) -> None:
        """Count the broker's answer for one message."""
        # Most answers are good and there are many: no object is made for a good answer.
        if error is None:
            self._passed()
        else:
            sent = (report.topic(), report.value())
            self.not_taken(next(m for m in self._messages if (m.topic, m.value) == sent), error)

    def not_taken(self, message: Message, error: Any) -> None:
        code = error.code()
        innocent = code in _TOO_LARGE and len(message.key) + len(message.value) <= self._limit
        if code in _FOR_GOOD and not innocent:
            self.refused.append(Refused(message.topic, message.event_id, error.str()))
        else:
            self.crowded = self.crowded or innocent
            self.untimely = self.untimely or code == _Error.INVALID_TIMESTAMP
            self.failed = self.failed or f"{message.topic}: {error.str()}"
        self._passed()

    def _passed(self) -> None:
        self.left -= 1
        if not self.left:
            self._done(self)


class KafkaPublisher:
    """Implements ``Publisher`` with an idempotent Kafka producer."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: Any = None
        self._polling: threading.Thread | None = None
        self._ended = threading.Event()
        self._waiting: dict[_Sending, asyncio.Future[list[Refused]]] = {}
        self._trouble = ""
        self._batch_bytes = _BATCH_BYTES
        self._singly = False  # send each message in a request of its own
        self._dated = True  # send each message with the time of its event
        self._used: Sequence[str] = settings.topics  # topics that may have records

    @property
    def address(self) -> str:
        return self._settings.bootstrap

    @property
    def trouble(self) -> str:
        return self._trouble

    async def open(self) -> None:
        if self._producer is not None:
            return
        try:
            smallest, self._used = await asyncio.to_thread(make_topics, self._settings)
        except confluent_kafka.KafkaException as error:
            raise PublishFailed(said(error)) from error
        except TimeoutError as error:  # Kafka became unreachable meanwhile
            raise PublishFailed(f"Kafka has sent no answer for {_ADMIN_TIMEOUT:g} s") from error
        self._loop = asyncio.get_running_loop()
        self._trouble = ""
        self._ended = threading.Event()
        limit = self._settings.max_message_bytes
        # No request is larger than the smallest limit of a topic, unless it is a single message.
        self._batch_bytes = min(_BATCH_BYTES, smallest)
        self._producer = confluent_kafka.Producer(
            {
                **self._settings.client(),
                "enable.idempotence": True,
                "acks": "all",
                "delivery.timeout.ms": 0,  # never
                "message.max.bytes": limit,
                "linger.ms": 5,
                "batch.num.messages": 1 if self._singly else 10_000,
                "batch.size": self._batch_bytes,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 2_000_000,  # the relay bounds the messages under way
                "error_cb": self._failed,
            }
        )
        self._polling = threading.Thread(
            target=_poll, args=(self._producer, self._ended), name="jobqueue-kafka", daemon=True
        )
        self._polling.start()

    async def writers(self) -> set[Writer]:
        try:
            return await asyncio.to_thread(
                latest_writers, self._settings, self._used, _ADMIN_TIMEOUT
            )
        except JobQueueError as error:
            raise PublishFailed(str(error)) from error

    async def probe(self) -> None:
        try:
            await asyncio.to_thread(check, self._settings, _PROBE_TIMEOUT)
        except confluent_kafka.KafkaException as error:
            raise PublishFailed(said(error)) from error

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        polling, self._polling = self._polling, None
        if producer is None or polling is None:
            return
        ended = self._ended

        def end() -> None:
            producer.purge()
            producer.flush(_GOODBYE)
            ended.set()
            polling.join(_GOODBYE)

        await asyncio.to_thread(end)
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()

    def send(self, messages: Sequence[Message]) -> asyncio.Future[list[Refused]]:
        waiting: asyncio.Future[list[Refused]] = asyncio.get_running_loop().create_future()
        producer = self._producer
        if producer is None:
            waiting.set_exception(PublishFailed("the publisher is not open: call open() first"))
            return waiting
        if not messages:
            waiting.set_result([])
            return waiting
        batch = _Sending(messages, 0 if self._singly else self._batch_bytes, self._done)
        self._waiting[batch] = waiting
        produce, delivered = producer.produce, batch.delivered
        now = time.time()  # brokers refuse a time in the far future
        for message in messages:
            at = message.at if self._dated else None
            try:
                produce(
                    message.topic,
                    message.value,
                    message.key,
                    partition=message.partition,
                    on_delivery=delivered,
                    headers=message.headers,
                    timestamp=0 if at is None else max(1, int(min(at, now) * 1000)),
                )
            except confluent_kafka.KafkaException as error:  # too large for this client
                self._loop.call_soon(batch.not_taken, message, error.args[0])
            except BufferError as error:
                full = _Error(_Error._QUEUE_FULL, str(error))
                self._loop.call_soon(batch.not_taken, message, full)
        return waiting

    # -- in the polling thread -----------------------------------------------------------------

    def _done(self, batch: _Sending) -> None:
        if not batch.failed:
            self._trouble = ""
        if batch.crowded:  # the next connection finds out which message is too large
            self._singly = True
        if batch.untimely and self._dated:
            self._dated = False
            _log.warning(
                "Kafka at %s refuses the time of an event as a record's timestamp (see the topics'"
                " message.timestamp.before.max.ms); from now on the timestamp is the time of"
                " publishing, and the header ce_time is the time of the event",
                self.address,
            )
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._answer, batch)

    def _failed(self, error: Any) -> None:
        self._trouble = error.str()
        _log.debug("Kafka at %s reports an error: %s; the client retries", self.address, error)

    # -- on the loop ---------------------------------------------------------------------------

    def _answer(self, batch: _Sending) -> None:
        waiting = self._waiting.pop(batch, None)
        if waiting is None or waiting.done():
            return
        if batch.failed:
            waiting.set_exception(PublishFailed(batch.failed))
        else:
            waiting.set_result(batch.refused)


def _poll(producer: Any, ended: threading.Event) -> None:
    while not ended.is_set():
        producer.poll(_POLL)


def check(settings: KafkaSettings, timeout: float) -> str:
    """Return how many brokers Kafka has and which topics a server would create; change nothing.

    Raise KafkaException if no broker answers in time.
    """
    found = AdminClient(settings.client()).list_topics(timeout=timeout)
    missing = [topic for topic in (*settings.topics, *settings.hints) if topic not in found.topics]
    brokers = f"{len(found.brokers)} broker{'' if len(found.brokers) == 1 else 's'}"
    return f"{brokers}; {', '.join(missing)} would be created" if missing else brokers


def make_topics(settings: KafkaSettings) -> tuple[int, list[str]]:
    """Create missing topics, and log wrong settings of topics that existed before.

    Return the largest message size that all topics allow, and the topics of records that existed
    before. A topic whose settings cannot be read does not limit the size. Raise KafkaException, or
    TimeoutError if Kafka becomes unreachable meanwhile.
    """
    admin = AdminClient(settings.client())
    there = admin.list_topics(timeout=_ADMIN_TIMEOUT).topics
    kept = {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "max.message.bytes": str(settings.max_message_bytes),
    }
    wanted = dict.fromkeys(settings.topics, (settings.partitions, kept))
    for topic, partitions in settings.hints.items():
        wanted[topic] = (partitions, _HINTS_KEPT)
    new = [
        NewTopic(topic, partitions, settings.replication, config=config)
        for topic, (partitions, config) in wanted.items()
        if topic not in there
    ]
    if new:
        for made in admin.create_topics(new, request_timeout=_ADMIN_TIMEOUT).values():
            try:
                made.result(_ADMIN_TIMEOUT)
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() != _Error.TOPIC_ALREADY_EXISTS:
                    raise
    for topic, partitions in settings.hints.items():
        if topic in there and len(there[topic].partitions) < partitions:
            _widen(admin, topic, partitions)
    used = [topic for topic in settings.topics if topic in there]
    limits = [_look_at(admin, topic, kept) for topic in used]
    return min([settings.max_message_bytes, *limits]), used


def _widen(admin: Any, topic: str, partitions: int) -> None:
    # The store gives each worker the number of a partition, which must exist. More partitions do
    # not disturb the order of hints: each hint names its partition.
    more = NewPartitions(topic, partitions)
    for made in admin.create_partitions([more], request_timeout=_ADMIN_TIMEOUT).values():
        made.result(_ADMIN_TIMEOUT)
    _log.info("increased the number of partitions of topic %s to %d", topic, partitions)


def _look_at(admin: Any, topic: str, wanted: Mapping[str, str]) -> int:
    """Log the topic's settings that differ from ``wanted``; return its largest message size."""
    limit = int(wanted["max.message.bytes"])
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        (answer,) = admin.describe_configs([resource], request_timeout=_ADMIN_TIMEOUT).values()
        found = answer.result(_ADMIN_TIMEOUT)
    except confluent_kafka.KafkaException as error:
        _log.warning(
            "cannot read the settings of Kafka topic %s: %s; wrong settings there are not detected",
            topic,
            said(error),
        )
        return limit
    for name, value in wanted.items():
        there = found[name].value if name in found else value
        if name == "max.message.bytes":
            limit = int(there)
            if limit >= int(value):
                continue
        if there != value:
            _log.warning(
                "Kafka topic %s has %s=%s, not %s: records may be lost or refused; change the"
                " setting in Kafka",
                topic,
                name,
                there,
                value,
            )
    return limit
